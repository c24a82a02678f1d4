"""Learn vectors of words from plain text, for --word-vectors of classifiers and readers.

  clusterformer vectors texts/ more.txt.xz vectors.txt
  clusterformer vectors wikipedia/ vectors.txt --document-separator '<|endofdoc|>' --workers 4

OUT gets a line for each word, frequent words first: the word and its numbers, as GloVe's files
have it. A word is a run of letters and digits, or one other character. gensim does the learning:
pip install "fairseq_clusterformer[vectors]".
"""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fairseq_clusterformer.corpora.vectors import METHODS, learn_vectors
from fairseq_clusterformer.ranges import Range

from . import common
from .common import NUMBER, Parser, number

_FLAG = {"action": "store_true"}
# gensim looks at all words of a window, and reads 10,000 words at once
_WINDOW = {"metavar": "N", "type": number(Range(1, 10_000, whole=True))}


def _parser() -> Parser:
    parser = Parser(prog="clusterformer vectors", description=__doc__)
    add = partial(common.add, parser)
    text = "folders, searched recursively except for hidden files, or files; .xz, .gz and .bz2 are"
    add("sources", f"{text} unpacked", metavar="SOURCE", nargs="+", type=Path)
    add("out", "the file to write", metavar="OUT", type=Path)
    add("--method", "what learns the vectors", choices=METHODS, default="word2vec")
    add("--width", "numbers of a vector", default=300, **_WINDOW)
    add("--window", "words on either side that a word is to predict", default=5, **_WINDOW)
    add("--cbow", "predict a word from its window: faster, and worse for rare words", **_FLAG)
    add("--negative", "words drawn against each right one", default=5, **_WINDOW)
    add("--epochs", "passes over the text", **NUMBER, default=5)
    add("--min-count", "rarer words have no vector", **NUMBER, default=5)
    add("--max-words", "write only as many, the most frequent ones", **NUMBER)
    add("--lower-case", "of all words; GloVe's 6B files are so", **_FLAG)
    about = "the line that ends a document (default: each file is a document)"
    add("--document-separator", about, metavar="LINE")
    about = "take files of such names only, such as '*.txt'; may be repeated"
    add("--pattern", about, metavar="GLOB", action="append")
    add("--seed", "of the drawing; with one worker the vectors are the same each time")
    add("--workers", "threads")
    add("--force", "replace OUT")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Learn vectors; raises UserError for a user's mistake."""
    options, start = vars(_parser().parse_args(arguments)), time.monotonic()
    counts = learn_vectors(**options)
    if counts is None:
        print(f"{options['out']} is already done")
        return 0
    print(*(f"{number:>13,} {what}\n" for what, number in counts.items()), sep="", end="")
    print(f"wrote {options['out']} in {time.monotonic() - start:.0f} s")
    return 0
