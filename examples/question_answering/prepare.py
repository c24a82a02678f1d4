"""Prepare corpora of questions that the papers' tables need for fairseq.

  python examples/question_answering/prepare.py searchqa data-bin/searchqa --source DIR

DEST is what `clusterformer prepare qa` makes, which prepares SQuAD, bAbI and your own questions.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from fairseq_clusterformer.cli.main import program
from fairseq_clusterformer.cli.prepare import qa

NAME = "python examples/question_answering/prepare.py"


def main(arguments: Sequence[str]) -> int:
    from question_answering.corpora import CORPORA

    return qa.prepare_known(NAME, __doc__, CORPORA, arguments)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(program(NAME, main, sys.argv[1:]))
