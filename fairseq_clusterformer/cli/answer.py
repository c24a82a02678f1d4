"""Answer questions from your documents: text, Markdown, HTML and PDF files, and folders of them.

    clusterformer answer --checkpoint C --document letters report.pdf --question "Who ...?"
    clusterformer answer --checkpoint C --document a.txt --interactive

The reader is extractive: it finds a piece of a document, and writes no sentence of its own.

For each answer this prints its probability among all answers in all documents and "no answer",
where it stands, and the sentence around it. Paragraphs are counted from 1. Characters
[first, last) are those of the paragraph with single blanks. If most likely nothing answers the
question, this is said first.

Folders are searched with all folders below them for .txt, .md, .html and .pdf files. Hidden files
and others are skipped and counted. A file in a folder that cannot be read is named and skipped.

A document of more than --tokens-at-once subwords is read in sections, which know nothing of each
other, so memory does not grow with its length. --html writes a page of the documents that the
answers are from, which shows the tokens in one cluster with the answer's main word.

--interactive reads questions from stdin, one on each line. Model and documents stay loaded.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_clusterformer.cli.common import NUMBER, PATH, Parser, add_model, encoding
from fairseq_clusterformer.errors import UserError, bad_option, write_aside

if TYPE_CHECKING:
    from fairseq_clusterformer.inference.read import Ranking


def main(arguments: Sequence[str]) -> int:
    """Run the command.

    Raises:
        UserError: for a mistake of the user's.
    """
    parser = _parser()
    args = parser.parse_args(arguments)
    if not args.question and not args.interactive:
        parser.error("there is no question; allowed: --question TEXT, or --interactive")
    if args.tokens_at_once < 2:
        parser.error(f"--tokens-at-once is {args.tokens_at_once}; allowed: 2 or more")

    from fairseq_clusterformer.inference.documents import read_sources

    def say(line: str) -> None:
        print(f"{parser.prog}: {line}", file=sys.stderr)

    sources = read_sources(args.document, args.encoding, main_text=args.main_text, report=say)
    from fairseq_clusterformer.inference.load import load_checkpoint
    from fairseq_clusterformer.inference.read import TASK, Reader

    loaded = load_checkpoint(args.checkpoint, data=args.data, task=TASK)
    reader = Reader(loaded, device="cpu" if args.cpu else None)
    sections = [part for each in sources for part in reader.sections(each, args.tokens_at_once)]
    for question in _questions(args):
        try:
            _show(question, reader.ask(question, sections, args.top), args.html)
        except UserError as error:
            if not args.interactive:
                raise
            say(f"error: {error}")
    return 0


def _questions(args: argparse.Namespace) -> Iterator[str]:
    """Those of the command line; then those of stdin, if asked for. Where there may be several,
    each is printed, unless the user has just typed it."""
    typed = args.interactive and sys.stdin.isatty()
    for question in args.question:
        if args.interactive or len(args.question) > 1:
            print(f"? {question.strip()}")
        yield question
    with suppress(EOFError):
        while args.interactive:
            if question := input("? " if typed else "").strip():
                if not typed:
                    print(f"? {question}")
                yield question


def _show(question: str, ranking: "Ranking", html: Path | None) -> None:
    """Print the best answers, and write the page if one is asked for."""
    from fairseq_clusterformer.inference.read import confidence

    if not ranking.is_answered:
        print(f"Most likely, no answer here ({confidence(ranking.no_answer)}).", end=" ")
        print("The best guesses are:" if ranking.answers else "")
    for place, found in enumerate(ranking.answers, 1):
        before, text, behind = found.around()
        print(f"{place}. {text}\n   {confidence(found.probability)}: {found.file}", end="")
        if found.paragraph is not None:
            first, last = found.characters
            print(f", paragraph {found.paragraph + 1}, characters [{first}, {last})", end="")
        print(f"\n   {before}[{text}]{behind}" if before or behind else "")
    sys.stdout.flush()
    if html:
        from fairseq_clusterformer.visual.pages import answer_page

        try:
            write_aside(html, answer_page(question.strip(), ranking))
        except OSError as error:
            raise bad_option("--html", html, "a file to write to", error.strerror) from None


def _parser() -> Parser:
    parser = Parser(prog="clusterformer answer", description=__doc__)
    add = parser.add_argument
    add_model(parser, "a reader's checkpoint or bundle")
    kinds = "files of text, Markdown, HTML or PDF, and folders of them"
    add("--document", required=True, nargs="+", help=kinds, **PATH)
    add("--question", action="append", default=[], metavar="TEXT", help="may be repeated")
    add("--interactive", action="store_true", help="read questions from stdin")
    add("--top", default=3, help="answers to print (default: %(default)s)", **NUMBER)
    add("--html", type=Path, metavar="FILE", help="page to write, of the latest question")
    about = "of text and HTML (default: their own, else UTF-8)"
    add("--encoding", metavar="NAME", type=encoding, help=about)
    menus = "of HTML, leave out menus and the like; needs trafilatura (default: read all)"
    add("--main-text", action="store_true", help=menus)
    at_once = "subwords of a document that are read at once (default: %(default)s)"
    add("--tokens-at-once", default=100_000, help=at_once, **NUMBER)
    return parser
