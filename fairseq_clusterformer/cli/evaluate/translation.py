"""BLEU of a translation model in one table, with what each number stands for.

    score_translation.sh --checkpoint CKPT[:CKPT2] --data DATA [-- MORE OF FAIRSEQ-GENERATE]
    score_translation.sh --generated FILE [--data DATA]

tokenised       sacreBLEU's BLEU on the tokens of hypothesis and reference as the data has them,
                without smoothing: what multi-bleu.perl gives
compound-split  the same after splitting words at hyphens (--compound-split), as papers on WMT14
                English-German do
sacreBLEU       on detokenised text against the raw references DATA/raw/SPLIT.LANG; where there are
                none (the data was made from tokenised text), against the detokenised reference
                tokens, and the output says so. Lower-cased data is scored in lower case, and the
                signature says case:lc

Without --data, only the first two are given: how to detokenise is known from the data's folder.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fairseq_clusterformer.cli.common import whole_number
from fairseq_clusterformer.corpora.folder import RECORD
from fairseq_clusterformer.errors import LOADING, UserError, write_aside
from fairseq_clusterformer.inference.bleu import read_generated, score, table
from fairseq_clusterformer.text import TextPipeline

PACKAGE = Path(__file__).resolve().parents[2]


def generate(args: argparse.Namespace, source: str, target: str) -> Path:
    """Runs fairseq-generate; returns the file of its translations, beside which its log lies."""
    out = args.out or Path(args.checkpoint.split(os.pathsep)[0]).parent / "generated"
    # unbuffered, so that an error is the last line of the log
    command = [sys.executable, "-u", "-m", "fairseq_cli.generate", args.data]
    command += ["--user-dir", PACKAGE, "--path", args.checkpoint]
    command += ["--gen-subset", args.split, "--results-path", out]
    command += ["-s", source, "-t", target, "--beam", args.beam, "--lenpen", args.lenpen]
    for option in ("batch_size", "max_tokens"):
        if (value := getattr(args, option)) is not None:
            command += [f"--{option.replace('_', '-')}", value]
    command = [str(word) for word in (*command, *args.more)]
    out.mkdir(parents=True, exist_ok=True)
    output, log = (out / f"generate-{args.split}.{ending}" for ending in ("txt", "log"))
    with open(log, "w") as file:
        status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode
    if status:
        last = log.read_text(errors="replace").rstrip().split("\n")[-1]
        raise UserError(f"fairseq-generate ended with status {status}: {last}; see {log}")
    return output


def _read(path: Path, option: str) -> str:
    try:
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{option} is {path}: {reason}; allowed: a file of UTF-8 text") from None


def _raw_references(args: argparse.Namespace, target: str, count: int) -> tuple[str, list | None]:
    """Where raw references are, and they; "tokens" and None if the data has none.

    Data made from tokenised text has that as raw text.
    """
    path = args.reference or args.data / "raw" / f"{args.split}.{target}"
    recipe = json.loads((args.data / RECORD).read_text())["recipe"]
    if args.reference is None and not (recipe.get("detokenised", True) and path.is_file()):
        return "tokens", None
    lines = _read(path, "--reference").removesuffix("\n").split("\n")
    if len(lines) != count:
        raise UserError(
            f"--reference is {path}: it has {len(lines)} lines; allowed: {count}, one for each "
            f"sentence translated (--split is {args.split})"
        )
    return str(path), lines


def _follow_model(args: argparse.Namespace) -> None:
    """Set -s and -t to what the models translate; refuse what they do not."""
    from fairseq.checkpoint_utils import load_checkpoint_to_cpu

    import fairseq_clusterformer.plugin  # noqa: F401  allows the types that fairseq writes

    for path in args.checkpoint.split(os.pathsep):
        if not Path(path).is_file():
            raise UserError(f"--checkpoint is {path}: no such file; allowed: a checkpoint")
        try:
            task = load_checkpoint_to_cpu(path)["cfg"]["task"]
            own = {"source_lang": task["source_lang"], "target_lang": task["target_lang"]}
        except LOADING as error:
            raise UserError(
                f"--checkpoint is {path}: {type(error).__name__} in reading its languages; "
                "allowed: a checkpoint of a translation model"
            ) from None
        for name, language in own.items():
            if language is None:  # it was trained without -s and -t
                continue
            if getattr(args, name) is None:
                setattr(args, name, language)
            elif getattr(args, name) != language:
                raise UserError(
                    f"-{name[0]} is {getattr(args, name)}; allowed: {language}, which {path} has"
                )


def _languages(args: argparse.Namespace, pipeline: TextPipeline) -> tuple[str, str]:
    """-s and -t, or the order in which the data's files name them."""
    source, target = args.source_lang, args.target_lang
    if source is None and target is None:
        source, target = pipeline.languages
    source = source or next(lang for lang in pipeline.languages if lang != target)
    target = target or next(lang for lang in pipeline.languages if lang != source)
    if {source, target} != set(pipeline.languages):
        raise UserError(
            f"-s is {source} and -t is {target}; allowed: {' and '.join(pipeline.languages)}, "
            f"the languages of {args.data}"
        )
    return source, target


def run(args: argparse.Namespace) -> dict:
    """Scores; returns what --json writes."""
    record: dict[str, object] = {"split": args.split}
    pipeline, target = TextPipeline(), None
    if args.checkpoint is not None:
        _follow_model(args)
    if args.data is not None:
        pipeline = TextPipeline.from_folder(args.data)
        source, target = _languages(args, pipeline)
        record |= {"data": str(args.data), "source": source, "target": target}
    if args.checkpoint is not None:
        path = generate(args, source, target)
        record |= {"checkpoint": args.checkpoint, "beam": args.beam, "lenpen": args.lenpen}
        record |= {"options": args.more}
    else:
        path = args.generated
        if path.is_dir():
            path = path / f"generate-{args.split}.txt"
    text = sys.stdin.buffer.read().decode() if str(path) == "-" else _read(path, "--generated")
    hypotheses, references = read_generated(text, str(path))
    _check_subwords(args, pipeline, [*hypotheses, *references])
    raw = None
    if target is not None:
        record["references"], raw = _raw_references(args, target, len(hypotheses))
    rows = score(
        hypotheses, references, pipeline, target, raw, args.compound_split, args.bootstrap
    )
    record |= {"generated": str(path), "sentences": len(hypotheses)}
    return {**record, "lowercase": pipeline.lowercase, "scores": rows}


def _check_subwords(
    args: argparse.Namespace, pipeline: TextPipeline, lines: Sequence[str]
) -> None:
    pieces = any("\u2581" in line for line in lines)
    if pieces and args.data is None:
        raise UserError("--generated has sentencepiece's pieces; allowed: those, with --data")
    if not pieces and pipeline.bpe == "sentencepiece":
        raise UserError(
            "--generated has no sentencepiece's pieces, as the data has; allowed: the output of "
            "fairseq-generate without --post-process, --bpe and --tokenizer"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="score_translation.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--checkpoint", metavar="CKPT[:CKPT2]", help="translate by it, then score")
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status; a user's mistake is one line on stderr and status 1."""
    words, more = list(sys.argv[1:] if arguments is None else arguments), []
    if "--" in words:
        words, more = words[: words.index("--")], words[words.index("--") + 1 :]
    parser = _parser()
    args = parser.parse_args(words)
    args.more = more
    if args.data is None and (args.checkpoint or args.reference):
        parser.error("--data is not given; allowed: with --generated alone, without --reference")
    if more and not args.checkpoint:
        parser.error(f"-- {' '.join(more)}: allowed is more of fairseq-generate with --checkpoint")
    try:
        record = run(args)
        if args.json is not None:
            write_aside(args.json, json.dumps(record, indent=2) + "\n")
    except (UserError, OSError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
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


if __name__ == "__main__":
    sys.exit(main())
