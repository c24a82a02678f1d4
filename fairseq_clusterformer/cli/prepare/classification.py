"""Classification, inference and matching data for fairseq: eleven data sets in their own files.

DEST/NAME becomes a folder as fairseq's ``sentence_prediction`` task wants it: ``input0`` (and
``input1`` of pairs) with ``dict.txt`` and ``train``, ``valid`` and ``test`` as ``.bin`` and
``.idx``, and ``label`` alike, one symbol an example. cr, mr, subj and mpqa become ten such
folders, DEST/NAME/fold0 to fold9, for cross-validation. ``group`` of wikiqa has each pair's
question, one a line. ``data.json`` in each tells its counts, classes, lengths and what was
dropped; ``prepared.json`` in DEST/NAME what was asked for. DEST/NAME appears when it is complete:
run the same command again after an interruption. Once it is there, the command does nothing.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fairseq_clusterformer.cli.common import Parser, fraction, prepare_folder, whole_number
from fairseq_clusterformer.corpora.classification.build import Settings, prepare
from fairseq_clusterformer.corpora.classification.corpora import CORPORA, NO_VALID
from fairseq_clusterformer.corpora.classification.newsgroups import STRIPS


def _strips(text: str) -> tuple[str, ...]:
    names = tuple(text.split(",")) if text != "none" else ()
    if not set(names) <= STRIPS.keys():
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: {', '.join(STRIPS)}, or none")
    return names


def _parser() -> Parser:
    parser = Parser(prog="prepare_classification.py", description=__doc__)
    add = parser.add_argument
    add("name", metavar="NAME", choices=CORPORA, help=f"the data set: {', '.join(CORPORA)}")
    add("dest", metavar="DEST", type=Path, help="the folder in which to make the folder NAME")
    add(
        "--source",
        metavar="DIR",
        type=Path,
        required=True,
        help="the folder of the data set's files, or one that holds it; for 20news the archive "
        "too",
    )
    add(
        "--seed",
        metavar="N",
        type=whole_number,
        default=1,
        help="of the folds, or of the validation set (default: %(default)s)",
    )
    add(
        "--vocabulary-size",
        metavar="N",
        type=whole_number,
        default=30_000,
        help="entries of the dictionary at most, 4 special symbols among them (default: "
        "%(default)s); it has the words of train",
    )
    add(
        "--min-count",
        metavar="N",
        type=whole_number,
        default=1,
        help="how often a word must be in train to be in the dictionary (default: %(default)s)",
    )
    add(
        "--max-length",
        metavar="N",
        type=whole_number,
        help="tokens of a text at most, </s> among them; what is longer is cut (default: 1500 "
        "for 20news, any number for the others)",
    )
    add(
        "--validation",
        metavar="F",
        type=fraction,
        help=f"of {' and '.join(NO_VALID)}, which have no validation set: the part of train "
        "that becomes it (default: 0.1)",
    )
    add(
        "--strip",
        metavar="LIST",
        type=_strips,
        help="of 20news: what is taken out of a post, some of fields (the header but for the "
        "text of its subject), headers (all of it), footers and quotes, with commas between, or "
        "none (default: fields)",
    )
    add("--force", action="store_true", help="replace DEST/NAME where it has been prepared before")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Prepare a data set; a user's mistake is one line on stderr and status 1."""
    parser = _parser()
    given = parser.parse_args(arguments)
    name = given.name
    if given.strip is not None and name != "20news":
        parser.error(f"--strip is for 20news; NAME is {name}")
    if given.validation and name not in NO_VALID:
        parser.error(f"--validation is for {' and '.join(NO_VALID)}; NAME is {name}")
    options = vars(given)
    settings = {key: options.pop(key) for key in ("seed", "vocabulary_size", "min_count")}
    settings |= {"max_length": options.pop("max_length")}
    settings |= {"validation": options.pop("validation") or Settings.validation}
    dest = options.pop("dest") / name
    options |= {"prepare": _prepare, "dest": dest, "settings": Settings(**settings)}
    return prepare_folder(options)


def _prepare(
    name: str,
    dest: Path,
    source: Path,
    settings: Settings,
    strip: tuple[str, ...] | None,
    force: bool,
) -> dict | None:
    options = {"strip": ("fields",) if strip is None else strip} if name == "20news" else {}
    corpus = CORPORA[name](source, **options)
    if settings.max_length is None:
        settings = replace(settings, max_length=corpus.max_length)
    return prepare(dest, corpus, settings, options, force)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
