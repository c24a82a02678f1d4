"""BLEU of a translation model in one table, with what each number stands for.

  clusterformer evaluate translation --checkpoint PATH[:PATH2] --data DATA [-- MORE]
  clusterformer evaluate translation --generated FILE [--data DATA]

tokenised       sacreBLEU's BLEU on the tokens of hypothesis and reference as the data has them,
                without smoothing: what multi-bleu.perl gives
compound-split  the same after splitting words at hyphens (--compound-split), as papers on WMT14
                English-German do
sacreBLEU       on detokenised text against the raw references DATA/raw/SPLIT.LANG; where there are
                none (the data was made from tokenised text), against the detokenised reference
                tokens, and the output says so. Lower-cased data is scored in lower case, and the
                signature says case:lc

MORE is handed to fairseq-generate. Without --data only the first two are given, because the data's
folder says how to detokenise.
"""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from fairseq_clusterformer.cli.common import Parser, whole_number
from fairseq_clusterformer.errors import write_aside


def _parser() -> Parser:
    parser = Parser(prog="clusterformer evaluate translation", description=__doc__)
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--checkpoint", metavar="PATH[:PATH2]", help="a checkpoint or a bundle to score"
    )
    what.add_argument(
        "--generated",
        type=Path,
        metavar="FILE",
        help="what fairseq-generate printed (with -: read from stdin), or its --results-path",
    )
    add("--data", type=Path, help="folder made by a prepare script, with prepared.json")
    add("--split", default="test", help="such as valid, test, test1 (default: %(default)s)")
    add(
        "-s",
        "--source-lang",
        metavar="LANG",
        help="default: the checkpoint's, else the data's",
    )
    add("-t", "--target-lang", metavar="LANG")
    add("--reference", type=Path, metavar="FILE", help="raw references, a sentence a line")
    add("--compound-split", action="store_true", help="also give BLEU with words split at hyphens")
    add("--bootstrap", action="store_true", help="95%% confidence, by 1000 resamplings")
    add("--json", type=Path, metavar="FILE", help="also write everything here")
    add("--beam", type=whole_number, default=5, help="default: %(default)s")
    add("--lenpen", type=float, default=1.0, help="length penalty (default: %(default)s)")
    add("--batch-size", type=whole_number, help="sentences at once")
    add("--max-tokens", type=whole_number, help="tokens at once (fairseq's default: 12000)")
    add(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="for the translations (default: CKPT/../generated)",
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Print the table; returns the exit status.

    Raises:
        UserError: if a checkpoint, its data or what was generated is wrong.
    """
    words, more = list(arguments), []
    if "--" in words:
        words, more = words[: words.index("--")], words[words.index("--") + 1 :]
    parser = _parser()
    args = parser.parse_args(words)
    args.more = more
    if args.data is None and (args.checkpoint or args.reference):
        parser.error("--data is not given; allowed: with --generated alone, without --reference")
    if more and not args.checkpoint:
        parser.error(f"-- {' '.join(more)}: allowed is more of fairseq-generate with --checkpoint")
    from fairseq_clusterformer.inference.bleu import table

    record = _score(args)
    if args.json is not None:
        write_aside(args.json, json.dumps(record, indent=2) + "\n")
    pair = f", {record['source']}-{record['target']}" if args.data else ""
    case = "lower-cased data" if record["lowercase"] else "case as in the data"
    print(f"{args.split}{pair}, {record['sentences']} sentences, {case}")
    print(table(record["scores"]))
    if record.get("references") == "tokens":
        print(
            f"{args.data} has no raw references of {args.split}.{record['target']}: sacreBLEU is "
            "against the detokenised reference tokens"
        )
    return 0


def _score(args: argparse.Namespace) -> dict:
    """What --json writes."""
    from fairseq_clusterformer.inference import generated
    from fairseq_clusterformer.inference.bleu import score
    from fairseq_clusterformer.text import TextPipeline

    record: dict[str, object] = {"split": args.split}
    pipeline, target, raw = None, None, None
    checkpoints = [Path(path) for path in (args.checkpoint or "").split(os.pathsep) if path]
    if args.data is not None:
        pipeline = TextPipeline.from_folder(args.data)
        source, target = generated.languages(
            checkpoints, args.source_lang, args.target_lang, pipeline
        )
        record |= {"data": str(args.data), "source": source, "target": target}
    if checkpoints:
        options = ["-s", source, "-t", target, "--beam", args.beam, "--lenpen", args.lenpen]
        for name in ("batch_size", "max_tokens"):
            if (value := getattr(args, name)) is not None:
                options += [f"--{name.replace('_', '-')}", value]
        out = args.out or checkpoints[0].parent / "generated"
        path = generated.fairseq_generate(
            checkpoints, args.data, args.split, out, [*options, *args.more]
        )
        record |= {"checkpoint": args.checkpoint, "beam": args.beam, "lenpen": args.lenpen}
        record |= {"options": args.more}
    else:
        path = args.generated
        if path.is_dir():
            path = path / f"generate-{args.split}.txt"
    text = generated.read_text(path, "--generated")
    hypotheses, references = generated.read_generated(text, str(path))
    generated.check_subwords([*hypotheses, *references], pipeline)
    if target is not None:
        record["references"], raw = generated.raw_references(
            args.data, args.split, target, len(hypotheses), args.reference
        )
    pipeline = pipeline or TextPipeline()
    rows = score(
        hypotheses, references, pipeline, target, raw, args.compound_split, args.bootstrap
    )
    record |= {"generated": str(path), "sentences": len(hypotheses)}
    return {**record, "lowercase": pipeline.lowercase, "scores": rows}
