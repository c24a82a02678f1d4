"""Prepare a data set of labelled texts or pairs that the papers' tables need for fairseq.

  python examples/classification/prepare.py mr data-bin --source DIR

DEST/NAME is what `clusterformer prepare classification` makes, which prepares your own texts.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from fairseq_clusterformer.cli.main import program
from fairseq_clusterformer.cli.prepare import classification

NAME = "python examples/classification/prepare.py"


def main(arguments: Sequence[str]) -> int:
    from classification.known import CORPORA, NO_VALID, known_corpus

    return classification.prepare_known(
        NAME, __doc__, arguments, names=CORPORA, divided=NO_VALID, find=known_corpus
    )


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(program(NAME, main, sys.argv[1:]))
