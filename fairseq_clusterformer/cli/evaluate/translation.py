"""BLEU of a translation model in one table, with what each number stands for.

  clusterformer evaluate translation --checkpoint checkpoint_best.pt --data DATA --split test

tokenised       sacreBLEU's BLEU on the tokens of hypothesis and reference as the data has them,
                without smoothing: what multi-bleu.perl gives
compound-split  the same after splitting words at hyphens (--compound-split), as papers on WMT14
                English-German do
sacreBLEU       on detokenised text against the raw references DATA/raw/SPLIT.LANG; of data made
                from tokenised text, which has none, against the detokenised reference tokens, and
                the output says so. For lower-cased data, the signature says case:lc

The sentences are those of the prepared split. --out writes their translations as text, which
`sacrebleu REFERENCES -i FILE --confidence` scores against references of your own.
"""

import json
from collections.abc import Sequence

from fairseq_clusterformer.data import RECORD
from fairseq_clusterformer.errors import bad_option, read_json
from fairseq_clusterformer.outputs import check_output, write_text

from ..common import Parser, add_force, check_files, inputs_of, read_lines
from ..translate import add_translator, load_translator


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="clusterformer evaluate translation", description=__doc__)
    add_translator(parser)
    add = parser.add
    add("--split SPLIT", "such as valid, test, test1", default="test")
    add("--batch-size N", "sentences at once")
    add("--max-tokens N", "at once", default=12000)
    add("--compound-split", "also give BLEU with words split at hyphens")
    add("--json FILE", "also write everything here")
    add("--out FOLDER", "write the translations to FOLDER/SPLIT.LANG")
    add_force(parser)
    args = parser.parse_args(arguments)
    how = {"inputs": inputs_of(args), "force": args.force}
    if args.json is not None:
        check_output("--json", args.json, **how)
    translator = load_translator(args)
    from fairseq_clusterformer.use.translate import score, table

    source, target, text = translator.source, translator.target, translator.text
    folder, name = translator.loaded.folder, f"{args.split}.{target}"
    references, raw = folder / "raw" / name, None
    if read_json(folder / RECORD)["recipe"].get("detokenised", True) and references.is_file():
        raw = list(read_lines(references, "--data"))
    how["inputs"] += [translator.loaded.path, folder]
    if args.out is not None:
        check_files(args.out, [name], **how)
    search = {key: vars(args)[key] for key in ("beam", "lenpen", "batch_size", "max_tokens")}
    found, right = translator.of_split(args.split, **search)
    if raw is not None and len(raw) != len(found):
        raise bad_option("--data", folder, f"{len(found)}", f"{references} has {len(raw)} lines")
    rows = score(found, right, text, target, raw, args.compound_split)
    if args.out is not None:
        lines = "".join(f"{text.decode(line, target)}\n" for line in found)
        write_text("--out", args.out / name, lines, makes_folder=True, **how)
    if args.json is not None:
        record = {"split": args.split, "data": str(folder), "source": source, "target": target}
        record |= {"references": "tokens" if raw is None else str(references)}
        record |= {"checkpoint": args.checkpoint, "beam": args.beam, "lenpen": args.lenpen}
        record |= {"sentences": len(found), "lowercase": text.lowercase, "scores": rows}
        write_text("--json", args.json, json.dumps(record, indent=2) + "\n", **how)
    case = "lower-cased data" if text.lowercase else "case as in the data"
    print(f"{args.split}, {source}-{target}, {len(found)} sentences, {case}")
    print(table(rows))
    if raw is None:
        problem = f"{folder} has no raw references of {name}"
        print(f"{problem}: sacreBLEU is against the detokenised reference tokens")
    return 0
