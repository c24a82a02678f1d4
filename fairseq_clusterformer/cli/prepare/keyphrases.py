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
from functools import partial
from pathlib import Path

from fairseq_clusterformer.cli import common
from fairseq_clusterformer.cli.common import PATH, Parser, add_dest, prepare_folder
from fairseq_clusterformer.cli.prepare.subwords import add_subwords, take_vocabulary
from fairseq_clusterformer.corpora import SPLITS
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.etc.openkp_build import prepare

#: patterns of the names of train, valid and test in --source
FILES = ("OpenKPTrain*.jsonl*", "OpenKPDev*.jsonl*", "OpenKPEval*.jsonl*")


def _parser() -> Parser:
    parser = Parser(prog="clusterformer prepare keyphrases", description=__doc__)
    known = parser.corpora().add_parser("openkp", description=__doc__, help=", ".join(FILES))
    add_dest(known)
    add = partial(common.add, known)
    add("--source", f"a folder with {', '.join(FILES)}")
    for split in SPLITS:
        add(f"--{split}", f"the files of {split}, instead of those in --source", **PATH, nargs="+")
    add_subwords(known)
    add("--workers", "processes")
    add("--force", "replace DEST, which must hold nothing but what this command wrote")
    return parser


def _files(source: Path | None, given: dict[str, list[Path] | None]) -> dict[str, list[Path]]:
    """The files of each split.

    Raises:
        UserError: if there are none, or one is missing.
    """
    if source and not source.is_dir():
        raise bad_option("--source", source, "a folder", "no such folder")
    found = {
        split: sorted(source.glob(pattern)) if source else []
        for split, pattern in zip(SPLITS, FILES, strict=True)
    }
    splits = {split: given[split] or found[split] for split in SPLITS}
    splits = {
        split: [path.absolute() for path in paths] for split, paths in splits.items() if paths
    }
    for split, paths in splits.items():
        for path in paths:
            if not path.is_file():
                raise bad_option(f"--{split}", path, "files of the corpus", "no such file")
    if not splits:
        allowed = f"a folder with {', '.join(FILES)}; or --train, --valid or --test with files"
        problem = "nothing found" if source else ""
        raise bad_option("--source", source or "missing", allowed, problem)
    return splits


def prepare_corpus(
    *, dest: Path, source: Path | None, workers: int, force: bool, **options
) -> dict | None:
    """Prepare pages; see ``clusterformer prepare keyphrases --help``.

    Returns:
        the content of ``prepared.json``, or None if `dest` has been prepared before.

    Raises:
        UserError: if an option or a file is wrong.
    """
    splits = _files(source, {split: options[split] for split in SPLITS})
    vocabulary = take_vocabulary(options)
    if vocabulary.train and "train" not in splits:
        raise UserError(
            "a sentencepiece model to train, but no train; allowed: --train with files, or "
            "--gpt2-bpe or --sentencepiece-model"
        )
    return prepare(dest, splits=splits, vocabulary=vocabulary, workers=workers, force=force)


def main(arguments: Sequence[str]) -> int:
    """Prepare pages; returns the exit status.

    Raises:
        UserError: if an option or a file is wrong.
    """
    options = vars(_parser().parse_args(arguments))
    del options["corpus"]  # there is one
    return prepare_folder({"prepare": prepare_corpus, **options})
