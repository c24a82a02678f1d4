#!/usr/bin/env python3
"""Answer questions from files: text, HTML and PDF of any length.

    python scripts/answer.py --checkpoint C --document a.txt b.html c.pdf --question "Who ...?"
    python scripts/answer.py --checkpoint C --document a.txt --interactive

Prints the best answers of all files: how probable each is in its document, its logarithm (the
score), its file, paragraph (from 1) and characters [first, last) of the paragraph, in which blanks
and line ends count as single blanks, and the sentence around it. Where the model holds it for
likeliest that nothing answers, this is said first.

A document of more than --tokens-at-once subwords is read in parts, which know nothing of each
other, in memory that grows no further. --html writes a page of the documents that the answers are
from, with the tokens that shared an answer's cluster.

--interactive reads questions from stdin, a line each. Model and documents stay loaded, in tokens;
they are read anew for each question, which stands in every window and reaches every state.
"""

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_clusterformer.cli.common import Parser, whole_number
from fairseq_clusterformer.errors import UserError, write_aside
from fairseq_clusterformer.inference.documents import read_source

if TYPE_CHECKING:
    from fairseq_clusterformer.inference.read import DocumentReader, Found, Part

TOKENS_AT_ONCE = 100_000  # subwords of a document


def questions(args: argparse.Namespace) -> Iterator[str]:
    """Those of the command line; then those of stdin, if asked for. Where there may be several,
    each is printed, unless it is typed where it is seen."""
    typed = args.interactive and sys.stdin.isatty()
    for question in args.question:
        if args.interactive or len(args.question) > 1:
            print(f"? {question.strip()}")
        yield question
    while args.interactive:
        if typed:
            print("? ", end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            if not typed:
                print(f"? {line.strip()}")
            yield line


def answer(
    reader: "DocumentReader", parts: Sequence["Part"], question: str, args: argparse.Namespace
) -> None:
    """Print the best answers, and write the page if one is asked for.

    Raises:
        UserError: for a question that cannot be asked, or a page that cannot be written.
    """
    from fairseq_clusterformer.inference.read import figures, ranked

    tokens = reader.question(question)
    reads = [reader.read(tokens, part, args.top) for part in parts]
    found = ranked(reads, args.top)
    if not any(each.is_meant for each in found):
        none = min(read.answers.types["none"] for read in reads)
        print(f"No answer: with probability {figures(none)} nothing answers this.", end=" ")
        print("Next likely:" if found else "")
    for place, each in enumerate(found, 1):
        print("\n".join(_lines(place, each)))
    sys.stdout.flush()
    if args.html:
        from fairseq_clusterformer.visual.answer_page import page

        try:
            write_aside(args.html, page(question.strip(), found))
        except OSError as error:
            raise UserError(
                f"--html is {args.html}: {error.strerror}; allowed: a file to write to"
            ) from None


def _lines(place: int, found: "Found") -> Iterator[str]:
    """What is printed of an answer."""
    from fairseq_clusterformer.inference.read import figures

    before, text, behind = found.sentence()
    yield f"{place}. {text}"
    source = found.read.part.source.name
    if found.number is not None:
        first, last = found.answer.characters
        source += f", paragraph {found.number + 1}, characters [{first}, {last})"
    yield f"   {figures(found.probability)} (score {found.answer.score:.2f}): {source}"
    if before or behind:
        yield f"   {before}[{text}]{behind}"


def _parser() -> Parser:
    parser = Parser(prog="answer.py", description=__doc__)
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="FILE", help="a reader's")
    add("--document", required=True, nargs="+", type=Path, metavar="FILE")
    add("--question", action="append", default=[], metavar="TEXT", help="may be repeated")
    add("--interactive", action="store_true", help="read questions from stdin")
    add("--data", metavar="FOLDER", help="of the training (default: as the checkpoint says)")
    add("--top", type=whole_number, default=3, help="answers to print (default: %(default)s)")
    add("--html", type=Path, metavar="FILE", help="page to write, of the latest question")
    add("--encoding", metavar="NAME", help="of text and HTML (default: their own, else UTF-8)")
    add(
        "--tokens-at-once",
        type=whole_number,
        default=TOKENS_AT_ONCE,
        metavar="N",
        help="of a document; a longer one is read in parts (default: %(default)s)",
    )
    add("--cpu", action="store_true", help="even if there is an accelerator")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status; a user's mistake is one line on stderr and status 1."""
    parser = _parser()
    args = parser.parse_args(arguments)
    if not args.question and not args.interactive:
        parser.error("there is no question; allowed: --question TEXT, or --interactive")
    if args.tokens_at_once < 2:
        parser.error(f"--tokens-at-once is {args.tokens_at_once}; allowed: 2 or more")
    try:
        sources = [read_source(path, args.encoding) for path in args.document]
        from fairseq_clusterformer.inference.read import (
            DocumentReader,  # imports fairseq, which takes seconds
        )

        reader = DocumentReader(args.checkpoint, args.data, cpu=args.cpu)
        parts = [part for each in sources for part in reader.parts(each, args.tokens_at_once)]
        for question in questions(args):
            try:
                answer(reader, parts, question, args)
            except UserError as error:
                if not args.interactive:
                    raise
                print(f"{parser.prog}: error: {error}", file=sys.stderr)
    except UserError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130  # the shell's status for a run ended by SIGINT
    return 0


if __name__ == "__main__":
    logging.disable(logging.INFO)
    sys.exit(main())
