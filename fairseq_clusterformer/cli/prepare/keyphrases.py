"""Prepare web pages and their keyphrases for fairseq.

DEST gets the pages in subwords, their words and nodes, what the nodes look like, and where the
keyphrases stand. ``prepared.json`` lists the options, what is in each split, and what was dropped
and why. Pages of train without a keyphrase in their text are dropped.

A line of a file is a JSON object with "url", "text", "VDOM" and "KeyPhrases", as in OpenKP's
files. "VDOM" is a list of nodes, or the same as JSON in a string:

  {"text": "Star Trek", "start_idx": 0, "end_idx": 2, "feature": [44, 728, 78, 45, 1, ...]}

Nodes cover all words of the text, which single blanks separate. The first ten features are x,
width, y and height in pixels; block, inline, heading and leaf (1 or 0); the size of the font; bold
(1 or 0). The other ten say the same of the parent. "KeyPhrases" is a list of lists of words.
"""

from collections.abc import Sequence
from pathlib import Path

from fairseq_clusterformer.corpora import SPLITS
from fairseq_clusterformer.etc.openkp_build import prepare

from ..common import Parser, add_dest, prepare_folder
from .shared import (
    add_files,
    add_subwords,
    check_folder,
    check_train,
    files_of_splits,
    take_vocabulary,
)

#: patterns of the names of train, valid and test in --source
FILES = ("OpenKPTrain*.jsonl*", "OpenKPDev*.jsonl*", "OpenKPEval*.jsonl*")


def prepare_corpus(
    *, dest: Path, source: Path | None, workers: int, force: bool, **options
) -> dict | None:
    """Prepare pages; see `etc.openkp_build.prepare`."""
    check_folder(source)
    pairs = zip(SPLITS, FILES, strict=True)
    found = {split: sorted(source.glob(pattern)) for split, pattern in pairs} if source else {}
    splits = files_of_splits(options, found, source, FILES)
    vocabulary = take_vocabulary(options)
    check_train(splits, vocabulary)
    return prepare(dest, splits=splits, vocabulary=vocabulary, workers=workers, force=force)


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="clusterformer prepare keyphrases", description=__doc__)
    known = parser.corpora().add_parser("openkp", description=__doc__, help=", ".join(FILES))
    add_dest(known)
    known.add("--source DIR", f"a folder with {', '.join(FILES)}")
    add_files(known, "--source")
    add_subwords(known)
    known.add("--workers N", "processes", default=1)
    known.add("--force", "replace DEST, which must hold nothing but what this command wrote")
    options = vars(parser.parse_args(arguments))
    del options["corpus"]  # there is one
    return prepare_folder({"prepare": prepare_corpus, **options})
