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
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_clusterformer.ranges import LENGTH_PENALTY

from .common import Parser, add_model, harmless, input_lines, number, whole_number

if TYPE_CHECKING:
    from fairseq_clusterformer.inference.translate import Translator


def add_translator(parser: Parser) -> None:
    """Add the options of commands that translate."""
    about = "a translation model's, a bundle, or an installed one: multi30k-de-en, multi30k-en-de"
    add_model(parser, about, several=True)
    add = parser.add_argument
    about = "to be sure: an error if the model has another"
    add("-s", "--source-lang", metavar="LANG", help=about)
    add("-t", "--target-lang", metavar="LANG")
    add("--beam", type=whole_number, default=5, help="default: %(default)s")
    kind = number(LENGTH_PENALTY)
    add("--lenpen", type=kind, default=1.0, help="length penalty (default: %(default)s)")


def load_translator(args: argparse.Namespace) -> "Translator":
    """The models of a command line, checked for the languages in it.

    Raises:
        UserError: if a checkpoint or its data is wrong, or has other languages.
    """
    from fairseq_clusterformer.inference.load import load_checkpoint
    from fairseq_clusterformer.inference.translate import Translator

    models = [load_checkpoint(p, data=args.data, task="translation") for p in args.checkpoint]
    translator = Translator(*models, device="cpu" if args.cpu else None)
    translator.check_languages(args.source_lang, args.target_lang)
    return translator


def _parser() -> Parser:
    parser = Parser(prog="clusterformer translate", description=__doc__)
    add = parser.add_argument
    add("sentences", nargs="*", metavar="SENTENCE", help="default: lines of --input or stdin")
    add_translator(parser)
    add("--input", metavar="FILE", type=Path, help="a sentence per line")
    add("--batch-size", type=whole_number, default=32, help="sentences at once; default: 32")
    add("--nbest", type=whole_number, default=1, help="translations of each line, the best first")
    add("--scores", action="store_true", help="each line begins with log2 p / length, and a tab")
    add("--capitalize", action="store_true", help="begin each line with a capital letter")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Translate; returns the exit status.

    Raises:
        UserError: if a checkpoint, its data or the input is wrong.
    """
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.nbest > args.beam:
        parser.error(f"--nbest is {args.nbest}; allowed: --beam, which is {args.beam}, or less")
    lines = list(input_lines(parser, args.sentences, args.input))
    translator = load_translator(args)
    from fairseq_clusterformer.inference.translate import capitalize

    found = translator.hypotheses(
        lines, beam=args.beam, lenpen=args.lenpen, nbest=args.nbest, batch_size=args.batch_size
    )
    for hypotheses in found:
        if not hypotheses:
            print("\n" * (args.nbest - 1))
        for each in hypotheses:
            text = harmless(capitalize(each.text) if args.capitalize else each.text)
            print(f"{each.score:.4f}\t{text}" if args.scores else text)
    return 0
