"""Translate text as people write it.

  clusterformer translate --checkpoint checkpoint_best.pt "Ein Satz." "Noch einer."
  clusterformer translate --checkpoint BUNDLE --input text.de > text.en

Each line of the input (--input, else stdin) is one sentence and becomes one line of output; empty
lines stay empty. Text is tokenised, lower-cased and split into subwords as the training data was,
and put together again afterwards. If that data was lower-cased, so is the translation. All input
is read before anything is translated: a line longer than the model allows is an error, which names
the line. fairseq-interactive --bpe clusterformer also prints scores and more than one translation.
"""

import argparse
from collections.abc import Sequence

from fairseq_clusterformer.ranges import LENGTH_PENALTY

from .common import Parser, add_model, harmless, input_lines, number


def add_translator(parser: Parser) -> None:
    """Add the options of commands that translate."""
    about = "a translation model's, a bundle, or an installed one: multi30k-de-en, multi30k-en-de"
    add_model(parser, about, several=True)
    about = "to be sure: an error if the model has another"
    parser.add_argument("-s", "--source-lang", metavar="LANG", help=about)
    parser.add_argument("-t", "--target-lang", metavar="LANG")
    parser.add("--beam N", "hypotheses that are followed", default=5)
    parser.add("--lenpen F", "length penalty", type=number(LENGTH_PENALTY), default=1.0)


def load_translator(args: argparse.Namespace):
    """The models of a command line, checked for the languages in it."""
    from fairseq_clusterformer.checkpoints.load import load_checkpoint
    from fairseq_clusterformer.use.translate import Translator

    models = [load_checkpoint(p, data=args.data, task="translation") for p in args.checkpoint]
    translator = Translator(*models, device="cpu" if args.cpu else None)
    translator.translate([], source=args.source_lang, target=args.target_lang)
    return translator


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="clusterformer translate", description=__doc__)
    parser.add("sentences SENTENCE", "default: lines of --input or stdin", nargs="*")
    add_translator(parser)
    parser.add("--input FILE", "a sentence per line")
    parser.add("--batch-size N", "sentences at once", default=32)
    args = parser.parse_args(arguments)
    lines = list(input_lines(parser, args.sentences, args.input))
    how = {name: vars(args)[name] for name in ("beam", "lenpen", "batch_size")}
    for text in load_translator(args).translate(lines, **how):
        print(harmless(text))
    return 0
