"""Language modelling data for fairseq: enwik8, WikiText-103, or any folder of plain text.

Called by ``prepare_enwik8.sh``, ``prepare_wikitext103.sh`` and ``prepare_text.sh``. DEST becomes
a folder as fairseq's ``language_modeling`` task wants it: ``dict.txt`` and ``train``, ``valid``
and ``test`` as ``.bin`` and ``.idx``; ``prepared.json`` beside them tells what was asked for and
the documents, lines, bytes and tokens of each split. DEST appears when it is complete: run the
same command again after an interruption. Once it is there, the command does nothing.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fairseq_clusterformer.cli.common import Parser, fraction, prepare_folder, whole_number
from fairseq_clusterformer.corpora.language_modelling.corpora import (
    ENWIK8,
    WIKITEXT103,
    prepare_enwik8,
    prepare_text,
    prepare_wikitext103,
)
from fairseq_clusterformer.corpora.language_modelling.text import TEXT_PATTERNS


def _parser(corpus: str) -> Parser:
    parser = Parser(
        prog=f"prepare_{corpus}.sh",
        description=__doc__,
    )
    if corpus == "text":
        parser.set_defaults(prepare=prepare_text)
        _add_text_options(parser.add_argument)
        return parser
    archive, prepare = {
        "enwik8": (ENWIK8, prepare_enwik8),
        "wikitext103": (WIKITEXT103, prepare_wikitext103),
    }[corpus]
    parser.set_defaults(prepare=prepare)
    parser.add_argument(
        "dest",
        metavar="DEST",
        type=Path,
        nargs="?",
        default=Path("data-bin", corpus),
        help="the folder to make (default: %(default)s)",
    )
    parser.add_argument(
        "--source",
        metavar="DIR",
        type=Path,
        help=f"a folder that holds {', '.join(archive.members)} or {archive.name}; without it, "
        f"{archive.url} is downloaded",
    )
    return parser


def _add_text_options(add: Callable[..., object]) -> None:
    add(
        "source",
        metavar="SOURCE",
        type=Path,
        help="a folder, searched recursively, or one file; .xz, .gz and .bz2 are unpacked",
    )
    add("dest", metavar="DEST", type=Path, help="the folder to make")
    add(
        "--bytes",
        action="store_true",
        help="one token a byte, no </s> (the default); use fairseq's --sample-break-mode none",
    )
    add(
        "--sentencepiece",
        metavar="VOCAB",
        type=whole_number,
        help="that many pieces, from a model trained on train and put into DEST; a line ends in "
        "</s>",
    )
    add(
        "--document-separator",
        metavar="LINE",
        help="the line that ends a document; it becomes no token: documents, each ending in a "
        "newline, follow each other (default: each file is a document)",
    )
    add(
        "--split",
        choices=("files", "documents", "contiguous"),
        help="files: as they are named (train-00.txt.xz, valid.txt, test/...), the default where "
        "all three are; documents: each whole, drawn by its text, the default elsewhere; "
        "contiguous: train, valid, test in order, cut at line ends",
    )
    for split in ("valid", "test"):
        add(
            f"--{split}-fraction",
            metavar="F",
            type=fraction,
            default=0.05,
            help=f"{split}'s part of the bytes, unless split by files (default: %(default)s)",
        )
    add(
        "--train-bytes",
        metavar="N",
        type=whole_number,
        help="keep only the first lines of train, N bytes at most",
    )
    add(
        "--pattern",
        metavar="GLOB",
        action="append",
        help=f"names of text files; may be repeated (default: {' '.join(TEXT_PATTERNS)})",
    )
    add(
        "--allow-binary",
        action="store_true",
        help="take any bytes; else NUL bytes and what is not UTF-8 are refused",
    )


def main(arguments: Sequence[str]) -> int:
    """Run ``prepare_<arguments[0]>.sh``; a user's mistake is one line on stderr and status 1."""
    corpus, *arguments = arguments
    parser = _parser(corpus)
    options = vars(parser.parse_args(arguments))
    if options.pop("bytes", False) and options["sentencepiece"]:
        parser.error("--bytes --sentencepiece: allowed is one of them")
    return prepare_folder(options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
