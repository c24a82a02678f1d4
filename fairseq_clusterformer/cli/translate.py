"""Translate text as people write it.

  clusterformer translate --checkpoint checkpoint_best.pt "Ein Satz." "Noch einer."
  clusterformer translate --checkpoint BUNDLE --input text.de > text.en

Each line of the input (--input, else stdin) is one sentence and becomes one line of output, or
--nbest lines; empty lines stay empty. Text is tokenised, lower-cased and split into subwords as
the training data was, and put together again afterwards. If that data was lower-cased, so is the
translation; --capitalize makes the first letter of each line a capital. All input is read before
anything is translated: a line longer than the model allows is an error, which names the line.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fairseq_clusterformer.cli.common import Parser, whole_number
from fairseq_clusterformer.errors import UserError, bad_option


def _parser() -> Parser:
    parser = Parser(prog="clusterformer translate", description=__doc__)
    add = parser.add_argument
    add("sentences", nargs="*", metavar="SENTENCE", help="default: lines of --input or stdin")
    add(
        "--checkpoint",
        action="append",
        required=True,
        metavar="PATH",
        help="a translation model's, or a bundle; given several times: an ensemble",
    )
    add("--data", metavar="FOLDER", help="of the training (default: as the checkpoint says)")
    add(
        "-s", "--source-lang", metavar="LANG", help="to be sure: an error if the model has another"
    )
    add("-t", "--target-lang", metavar="LANG")
    add("--input", metavar="FILE", type=Path, help="a sentence per line")
    add("--beam", type=whole_number, default=5, help="default: %(default)s")
    add("--lenpen", type=float, default=1.0, help="length penalty (default: %(default)s)")
    add("--batch-size", type=whole_number, default=32, help="sentences at once; default: 32")
    add("--nbest", type=whole_number, default=1, help="translations of each line, the best first")
    add("--scores", action="store_true", help="each line begins with log2 p / length, and a tab")
    add("--capitalize", action="store_true", help="begin each line with a capital letter")
    add("--cpu", action="store_true", help="do not use an accelerator")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Translate; returns the exit status.

    Raises:
        UserError: if a checkpoint, its data or the input is wrong.
    """
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.sentences and args.input:
        parser.error(f"--input is {args.input}, and there are sentences; allowed: one of both")
    if args.nbest > args.beam:
        parser.error(f"--nbest is {args.nbest}; allowed: --beam, which is {args.beam}, or less")
    lines = args.sentences or _lines(args)

    from fairseq_clusterformer.inference.load import load_checkpoint
    from fairseq_clusterformer.inference.translate import Translator, capitalize

    models = [load_checkpoint(p, data=args.data, task="translation") for p in args.checkpoint]
    translator = Translator(*models, device="cpu" if args.cpu else None)
    translator.check_languages(args.source_lang, args.target_lang)
    found = translator.hypotheses(
        lines, beam=args.beam, lenpen=args.lenpen, nbest=args.nbest, batch_size=args.batch_size
    )
    for hypotheses in found:
        if not hypotheses:
            print("\n" * (args.nbest - 1))
        for each in hypotheses:
            text = capitalize(each.text) if args.capitalize else each.text
            print(f"{each.score:.4f}\t{text}" if args.scores else text)
    return 0


def _lines(args: argparse.Namespace) -> list[str]:
    """The input; a line ends in a newline and nowhere else."""
    name = args.input or "stdin"
    try:
        content = args.input.read_bytes() if args.input else sys.stdin.buffer.read()
        text = content.decode()
    except OSError as error:
        raise bad_option("--input", name, "a text file", error.strerror) from None
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(f"{name}, line {line}: is not UTF-8; allowed: UTF-8 text") from None
    return text.removesuffix("\n").split("\n") if text else []
