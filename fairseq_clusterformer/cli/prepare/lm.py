"""Language modelling data for fairseq: your own text, enwik8, WikiText-103.

DEST becomes a folder for fairseq's language_modeling task: dict.txt, and train, valid and test as
.bin and .idx. Its prepared.json holds the options, and counts the documents, lines, bytes and
tokens of each split.
"""

from collections.abc import Sequence
from functools import partial

from fairseq_clusterformer.corpora.language_modelling.corpora import (
    ENWIK8,
    WIKITEXT103,
    prepare_enwik8,
    prepare_text,
    prepare_wikitext103,
)

from .. import common
from ..common import NUMBER, Parser, add_dest, line_encoding, prepare_folder
from .shared import add_existing, take_vocabulary


def _parser() -> Parser:
    parser = Parser(prog="clusterformer prepare lm", description=__doc__)
    corpora = parser.corpora()
    text = corpora.add_parser("text", help="your own text", description=__doc__)
    _add_text_options(text)
    known = {
        "enwik8": (ENWIK8, prepare_enwik8, "100 MB of Wikipedia, by bytes"),
        "wikitext103": (WIKITEXT103, prepare_wikitext103, "103 million words of Wikipedia"),
    }
    for name, (archive, prepare, about) in known.items():
        corpus = corpora.add_parser(name, help=about, description=__doc__)
        corpus.set_defaults(prepare=prepare)
        add_dest(corpus, name)
        places = f"{', '.join(archive.members)} or {archive.name}"
        help_ = f"a folder that holds {places}; without it, {archive.url} is downloaded"
        common.add(corpus, "--source", help_)
    return parser


def _add_text_options(parser: Parser) -> None:
    parser.set_defaults(prepare=prepare_text)
    add = partial(common.add, parser)
    add(
        "source",
        "a folder, searched recursively except for hidden files, or one file; .xz, .gz and .bz2 "
        "are unpacked",
    )
    add_dest(parser)
    units = parser.add_mutually_exclusive_group()
    unit = partial(common.add, units)
    unit(
        "--bytes",
        "one token per byte, without </s> (the default); use fairseq's --sample-break-mode none",
        action="store_true",
    )
    unit(
        "--sentencepiece",
        "that many subwords, from a model that is trained on train and put into DEST; a line ends "
        "in </s>",
    )
    unit(
        "--words",
        "one token per word of train, split at blanks, for text that is tokenised already; other "
        "words become <unk>; a line ends in </s>",
        action="store_true",
    )
    add_existing(parser, units)
    add(
        "--sentences",
        "a line for each sentence, and an empty one behind each document, as etc_masked_lm reads "
        "them",
        action="store_true",
    )
    add(
        "--document-separator",
        "the line that ends a document; it becomes no token (default: each file is a document)",
        metavar="LINE",
    )
    add(
        "--split",
        "files: as the files are named (train-00.txt.xz, valid.txt, test/...); documents: whole "
        "documents, drawn by a checksum of their text; contiguous: train, valid and test in "
        "order, cut at line ends (default: files where the names say so; otherwise documents, or "
        "contiguous for fewer than 20 files without --document-separator, where one file would be "
        "more than a split's 5 percent)",
        choices=("files", "documents", "contiguous"),
    )
    for split in ("valid", "test"):
        about = f"the part of all bytes that becomes {split}, unless split by files"
        add(f"--{split}-fraction", about, default=0.05)
    add("--train-bytes", "keep only the first lines of train, N bytes at most", **NUMBER)
    add(
        "--pattern",
        "take files of such names only, such as '*.txt'; may be repeated (default: all files that "
        "are not binary)",
        metavar="GLOB",
        action="append",
    )
    add(
        "--encoding",
        "of the files (default: utf-8); the folder's text is UTF-8",
        metavar="NAME",
        type=line_encoding,
        default="utf-8",
    )
    add(
        "--allow-binary",
        "with --bytes: take any bytes, where otherwise what is not UTF-8 is an error",
        action="store_true",
    )


def main(arguments: Sequence[str]) -> int:
    """Prepare a corpus; raises UserError for a user's mistake."""
    options = vars(_parser().parse_args(arguments))
    for name in ("corpus", "bytes"):
        options.pop(name, None)
    if "sentencepiece" in options:
        options["vocabulary"] = take_vocabulary(options, usual=None)
    return prepare_folder(options)
