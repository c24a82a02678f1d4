"""Learn vectors of words from plain text, for --word-vectors of classifiers and readers.

  clusterformer vectors texts/ more.txt.xz vectors.txt
  clusterformer vectors wikipedia/ vectors.txt --document-separator '<|endofdoc|>' --workers 4

OUT gets a line for each word, frequent words first: the word and its numbers, as GloVe's files
have it. A word is a run of letters and digits, or one other character. gensim does the learning:
pip install "fairseq_clusterformer[vectors]".
"""

import time
from collections.abc import Sequence

from fairseq_clusterformer.corpora.vectors import METHODS, learn_vectors
from fairseq_clusterformer.ranges import Range

from .common import Parser, number

# gensim looks at all words of a window, and reads 10,000 words at once
_WINDOW = number(Range(1, 10_000, whole=True))


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="clusterformer vectors", description=__doc__)
    add = parser.add
    about = "folders, searched recursively except for hidden files, or files; .xz, .gz and .bz2 "
    add("sources SOURCE", f"{about}are unpacked", nargs="+")
    add("out OUT", "the file to write")
    add("--method", "what learns the vectors", choices=METHODS, default="word2vec")
    add("--width N", "numbers of a vector", default=300, type=_WINDOW)
    add("--window N", "words on either side that a word is to predict", default=5, type=_WINDOW)
    add("--cbow", "predict a word from its window: faster, and worse for rare words")
    add("--negative N", "words drawn against each right one", default=5, type=_WINDOW)
    add("--epochs N", "passes over the text", default=5)
    add("--min-count N", "rarer words have no vector", default=5)
    add("--max-words N", "write only as many, the most frequent ones")
    add("--lower-case", "of all words; GloVe's 6B files are so")
    about = "the line that ends a document (default: each file is a document)"
    add("--document-separator LINE", about)
    about = "take files of such names only, such as '*.txt'; may be repeated"
    add("--pattern GLOB", about, action="append")
    about = "of the drawing; with one worker the vectors are the same each time"
    add("--seed N", about, default=1)
    add("--workers N", "threads", default=1)
    add("--force", "replace OUT")
    options, start = vars(parser.parse_args(arguments)), time.monotonic()
    counts = learn_vectors(**options)
    if counts is None:
        print(f"{options['out']} is already done")
        return 0
    print(*(f"{number:>13,} {what}\n" for what, number in counts.items()), sep="", end="")
    print(f"wrote {options['out']} in {time.monotonic() - start:.0f} s")
    return 0
