"""BLEU of a translation model in one table, with what each number stands for.

  clusterformer evaluate translation --checkpoint checkpoint_best.pt --data DATA --split test

tokenised       sacreBLEU's BLEU on the tokens of hypothesis and reference as the data has them,
                without smoothing: what multi-bleu.perl gives
compound-split  the same after splitting words at hyphens (--compound-split), as papers on WMT14
                English-German do
sacreBLEU       on detokenised text against the raw references DATA/raw/SPLIT.LANG; where there are
                none (the data was made from tokenised text), against the detokenised reference
                tokens, and the output says so. Lower-cased data is scored in lower case, and the
                signature says case:lc

The sentences are those of the prepared split. --out writes their translations as text.
"""

import argparse
import json
from collections.abc import Sequence

from fairseq_clusterformer.data import RECORD
from fairseq_clusterformer.data.unicode import composed
from fairseq_clusterformer.errors import bad_option, read_json
from fairseq_clusterformer.outputs import check_output, write_text

from ..common import Parser, add_force, check_files, inputs_of, read_lines
from ..translate import add_translator, load_translator


def _parser() -> Parser:
    parser = Parser(prog="clusterformer evaluate translation", description=__doc__)
    add_translator(parser)
    add = parser.add
    add("--split SPLIT", "such as valid, test, test1", default="test")
    add("--batch-size N", "sentences at once")
    add("--max-tokens N", "at once", default=12000)
    add("--reference FILE", "raw references, a sentence a line")
    add("--compound-split", "also give BLEU with words split at hyphens")
    add("--bootstrap", "95%% confidence, by 1000 resamplings")
    add("--json FILE", "also write everything here")
    add("--out FOLDER", "write the translations to FOLDER/SPLIT.LANG")
    add_force(parser)
    return parser


def main(arguments: Sequence[str]) -> int:
    args = _parser().parse_args(arguments)
    how = {"inputs": inputs_of(args, args.reference), "force": args.force}
    if args.json is not None:
        check_output("--json", args.json, **how)
    translator = load_translator(args)
    from fairseq_clusterformer.use.bleu import score, table

    source, target, text = translator.source, translator.target, translator.text
    references, raw = _raw_references(translator, args)
    how["inputs"] += [translator.loaded.path, translator.loaded.folder]
    if args.json is not None:  # again: now the model's own files are known
        check_output("--json", args.json, **how)
    if args.out is not None:
        check_files(args.out, [f"{args.split}.{target}"], **how)
    sizes = {"batch_size": args.batch_size, "max_tokens": args.max_tokens}
    found, right = translator.of_split(args.split, beam=args.beam, lenpen=args.lenpen, **sizes)
    if raw is not None and len(raw) != len(found):
        allowed = f"{len(found)}, one for each sentence translated (--split is {args.split})"
        raise bad_option("--reference", references, allowed, f"it has {len(raw)} lines")
    rows = score(found, right, text, target, raw, args.compound_split, args.bootstrap)
    if args.out is not None:
        lines = "".join(f"{text.decode(line, target)}\n" for line in found)
        place = args.out / f"{args.split}.{target}"
        write_text("--out", place, lines, makes_folder=True, **how)
    if args.json is not None:
        record = {"split": args.split, "data": str(translator.loaded.folder)}
        record |= {"source": source, "target": target, "references": references}
        record |= {"checkpoint": args.checkpoint, "beam": args.beam, "lenpen": args.lenpen}
        record |= {"sentences": len(found), "lowercase": text.lowercase, "scores": rows}
        write_text("--json", args.json, json.dumps(record, indent=2) + "\n", **how)
    case = "lower-cased data" if text.lowercase else "case as in the data"
    print(f"{args.split}, {source}-{target}, {len(found)} sentences, {case}")
    print(table(rows))
    if raw is None:
        problem = f"{translator.loaded.folder} has no raw references of {args.split}.{target}"
        print(f"{problem}: sacreBLEU is against the detokenised reference tokens")
    return 0


def _raw_references(translator, args: argparse.Namespace) -> tuple[str, list[str] | None]:
    """Where the raw references are, and they; "tokens" and None of tokenised data."""
    if args.reference is not None:
        lines = map(composed, read_lines(args.reference, "--reference"))
        return str(args.reference), list(lines)
    folder = translator.loaded.folder
    path = folder / "raw" / f"{args.split}.{translator.target}"
    recipe = read_json(folder / RECORD)["recipe"]
    if not (recipe.get("detokenised", True) and path.is_file()):
        return "tokens", None
    return str(path), list(read_lines(path, "--data"))
