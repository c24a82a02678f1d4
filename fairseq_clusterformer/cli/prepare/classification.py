"""Prepare labelled texts and pairs for fairseq: your own, or one of eleven known data sets.

The folder that is made holds ``input0`` (for pairs also ``input1``) and ``label``. Each has a
``dict.txt``, and ``train``, ``valid`` and ``test`` as ``.bin`` and ``.idx``. fairseq's
``sentence_prediction`` reads it too. ``data.json`` lists counts, classes, lengths and what was
dropped; ``prepared.json`` lists the options. The folder appears when it is complete: run the same
command again after an interruption. Once it is there, the command does nothing.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fairseq_clusterformer.cli.common import (
    Parser,
    add_dest,
    fraction,
    prepare_folder,
    whole_number,
)
from fairseq_clusterformer.corpora.classification.build import Settings, prepare
from fairseq_clusterformer.corpora.classification.corpora import CORPORA, NO_VALID
from fairseq_clusterformer.corpora.classification.newsgroups import STRIPS
from fairseq_clusterformer.corpora.classification.own import FORMATS, Layout, own_corpus

_OWN = """Prepare your own labelled texts or pairs, in the folder DEST.

SOURCE is a file, or a folder of files whose names contain train, valid (or dev) and test, or a
folder with the folders train and test, or a folder per label, whose files are texts (such as
pos/*.txt and neg/*.txt). What a file holds is said by its suffix:

  .tsv, .csv   columns label, text and for pairs text2; or others, named by a header line
  .jsonl       objects {"label": ..., "text": ...}, for pairs text and text2, or text1 and text2
  others       lines LABEL text, or as .tsv if the first line has a tab

.gz, .bz2 and .xz are unpacked. Without files of valid and test, both are drawn from train, with an
equal share of each label. If one of them is given, only valid is drawn.
"""


def _strips(text: str) -> tuple[str, ...]:
    names = tuple(text.split(",")) if text != "none" else ()
    if not set(names) <= STRIPS.keys():
        raise argparse.ArgumentTypeError(f"is {text}; allowed: {', '.join(STRIPS)}, or none")
    return names


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"is {text}; allowed: names with commas between them")
    return names


def _fields(text: str) -> tuple[str, ...]:
    names = _names(text)
    if len(names) > 2:
        raise argparse.ArgumentTypeError(f"is {text}; allowed: one name, or two with a comma")
    return names


def _parser() -> Parser:
    parser = Parser(prog="clusterformer prepare classification", description=__doc__)
    corpora = parser.corpora()
    own = corpora.add_parser("text", description=_OWN, help="your own labelled texts or pairs")
    own.add_argument("source", metavar="SOURCE", type=Path, help="a file or a folder; see above")
    add_dest(own)
    _add_own_options(own.add_argument)
    _add_common_options(own.add_argument, "DEST")
    for name in CORPORA:
        known = corpora.add_parser(name, description=__doc__, help=f"DEST/{name} is made")
        _add_known_options(known.add_argument, name)
        _add_common_options(known.add_argument, f"DEST/{name}")
    return parser


def _add_own_options(add: Callable[..., object]) -> None:
    for split in ("valid", "test"):
        add(f"--{split}", metavar="PATH", type=Path, help=f"the file or folder of {split}")
        add(
            f"--{split}-fraction",
            metavar="F",
            type=fraction,
            default=0.1,
            help=f"the share of train that is drawn for {split} (default: %(default)s)",
        )
    add("--format", choices=FORMATS, help="of all files (default: by the suffix)")
    add(
        "--label-field",
        metavar="NAME",
        default="label",
        help="the header's or JSON's name of the label (default: %(default)s)",
    )
    add(
        "--text-fields",
        metavar="NAMES",
        type=_fields,
        default=(),
        help="the same of the text, or of both texts, as in question,answer (default: text, or "
        "text and text2, or text1 and text2)",
    )
    add(
        "--labels",
        metavar="LIST",
        type=_names,
        default=(),
        help="read these labels alone, as in pos,neg (default: all)",
    )
    add("--encoding", metavar="NAME", default="utf-8", help="of the files (default: %(default)s)")
    add(
        "--tokenised",
        action="store_true",
        help="words stand between blanks (default: punctuation marks become words)",
    )


def _add_known_options(add: Callable[..., object], name: str) -> None:
    add("dest", metavar="DEST", type=Path, help=f"the folder in which to make {name}")
    add(
        "--source",
        metavar="DIR",
        type=Path,
        required=True,
        help="the folder with the data set's files, or one that holds it"
        + ("; or the archive" if name == "20news" else ""),
    )
    if name in NO_VALID:
        add(
            "--valid-fraction",
            metavar="F",
            type=fraction,
            default=Settings.validation,
            help="the share of train that becomes valid (default: %(default)s)",
        )
    if name == "20news":
        add(
            "--strip",
            metavar="LIST",
            type=_strips,
            default=("fields",),
            help="what is taken out of a post: some of fields (the header but for the subject's "
            "text), headers (all of it), footers and quotes, with commas between, or none "
            "(default: fields)",
        )


def _add_common_options(add: Callable[..., object], made: str) -> None:
    add(
        "--seed",
        metavar="N",
        type=whole_number,
        default=1,
        help="of the folds, or of the splits that are drawn (default: %(default)s)",
    )
    add(
        "--vocabulary-size",
        metavar="N",
        type=whole_number,
        default=30_000,
        help="the most entries of the dictionary, 4 special symbols included (default: "
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
        help="the most tokens of a text, </s> included; longer ones lose their end (default: "
        "1500 for 20news, any number for the others)",
    )
    add("--force", action="store_true", help=f"replace {made} if it has been prepared before")


def main(arguments: Sequence[str]) -> int:
    """Prepare a data set; returns the exit status.

    Raises:
        UserError: if an option or a file is wrong.
    """
    options = vars(_parser().parse_args(arguments))
    settings = Settings(
        **{key: options.pop(key) for key in ("seed", "vocabulary_size", "min_count")},
        max_length=options.pop("max_length"),
        validation=options.pop("valid_fraction", Settings.validation),
    )
    if options["corpus"] == "text":
        del options["corpus"]
        options["settings"] = replace(settings, test=options.pop("test_fraction"))
        return prepare_folder({"prepare": _prepare_own, **options})
    options["dest"] /= options["corpus"]
    options |= {"prepare": _prepare_known, "settings": settings}
    return prepare_folder(options)


def _prepare_own(
    source: Path,
    dest: Path,
    valid: Path | None,
    test: Path | None,
    settings: Settings,
    force: bool,
    format: str | None,
    label_field: str,
    text_fields: tuple[str, ...],
    labels: tuple[str, ...],
    encoding: str,
    tokenised: bool,
) -> dict | None:
    layout = Layout(format, label_field, text_fields, labels, encoding, tokenised)
    corpus = own_corpus(source, layout, valid=valid, test=test)
    if "valid" in corpus.files or "test" in corpus.files:
        settings = replace(settings, test=0)
    return prepare(dest, corpus, settings, vars(layout), force)


def _prepare_known(
    corpus: str, dest: Path, source: Path, settings: Settings, force: bool, **options: object
) -> dict | None:
    known = CORPORA[corpus](source, **options)
    if settings.max_length is None:
        settings = replace(settings, max_length=known.max_length)
    return prepare(dest, known, settings, options, force)
