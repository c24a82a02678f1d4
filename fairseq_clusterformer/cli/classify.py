"""Label texts, or pairs of texts, with a trained classifier.

  clusterformer classify --checkpoint checkpoint_best.pt "A fine film." "Dull."
  clusterformer classify --checkpoint checkpoint_best.pt --input reviews.txt --top 3
  cat pairs.tsv | clusterformer classify --checkpoint BUNDLE

Each text gets one line: its most likely label, a tab, and the label's probability; with --top N,
the N most likely labels. A file and stdin hold one text per line. A model of pairs takes two
texts from the command line for each pair, and lines with a tab between both texts.
"""

import itertools
import sys
from collections.abc import Iterator, Sequence

from fairseq_clusterformer.errors import UserError

from .common import Parser, add_model, harmless, input_lines, load_model


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="clusterformer classify", description=__doc__)
    add = parser.add
    add("texts TEXT", "a text to label (default: the lines of stdin)", nargs="*")
    add_model(parser, "a classifier's, or a bundle")
    add("--input FILE", "label its lines")
    add("--top N", "labels per text", default=1)
    add("--batch-size N", "texts at once", default=32)
    args = parser.parse_args(arguments)
    lines = input_lines(parser, args.texts, args.input)
    classifier = load_model(args, "clusterformer_sentence")
    typed = not args.texts and not args.input and sys.stdin.isatty()
    rows = _rows(args.texts, lines, 1 + classifier.is_pair)
    cut = 0
    while batch := list(itertools.islice(rows, 1 if typed else args.batch_size)):
        for found in classifier.classify(batch):
            best = itertools.islice(found.probabilities.items(), args.top)
            print(harmless("\t".join(f"{label}\t{p:.4f}" for label, p in best)))
            cut += found.is_cut
        sys.stdout.flush()
    if cut:
        parser.say(f"{cut:,} texts were longer than the model reads, and lost their end")
    return 0


def _rows(texts: Sequence[str], lines: Iterator[str], width: int) -> Iterator[tuple[str, ...]]:
    """Yield what is to be labelled: the texts of the command line if any, else lines."""
    if len(texts) % width:
        raise UserError(f"TEXT: there are {len(texts)}; allowed: two per pair")
    if texts:
        yield from zip(*[lines] * width, strict=True)
    for number, line in enumerate(lines, 1):
        row = (line.strip(),) if width == 1 else tuple(line.removesuffix("\r").split("\t"))
        if len(row) != width:
            allowed = "two texts with a tab between them, as the model was trained on pairs"
            raise UserError(f"line {number:,} has {len(row)} columns; allowed: {allowed}")
        yield row
