"""Answer questions from your documents, files of many forms and folders of them.

    clusterformer answer --document letters report.pdf --question "Who ...?"
    clusterformer answer --checkpoint C --document a.txt --interactive
    clusterformer answer --document letters --encoder all-MiniLM-L6-v2 --index kept --serve

The reader is extractive: it finds a piece of a document, and writes no sentence of its own.

For each answer this prints its probability, its place and the sentence around it. A reader of
words (bidaf_reader, qanet_reader) weighs each answer against "no answer" alone: several may have a
probability near 1, also wrong ones. With another reader, all answers share a sum of 1. With a
calibrated reader (calibration.json), it is the share of right ones among such answers. In plain
text paragraphs are counted from 1, and characters [first, last) are those of the paragraph with
single blanks. A reader with --supporting-facts (etc_reader) also says which sentences support the
answer. If most likely nothing answers the question, this is said first. The margin is how much
likelier the best answer is than "no answer", in nats.

Text, Markdown, HTML, PDF, EPUB, e-mail (.eml, .mhtml) and notebooks (.ipynb) are read, and Word
(.docx), Excel (.xlsx) and RTF with pip install ".[documents]" in the clone. Folders are searched
with all folders below them; what cannot be read there is named and skipped.

Documents are read in passages, which know nothing of each other, so memory does not grow with
their length. For a question the --windows most relevant ones are read, by their words (BM25) and,
with --encoder, by their meaning. --html shows the tokens in the cluster of the answer's main word.

--interactive reads questions from stdin, one on each line. --serve opens a page to drop documents
on and to ask in; it needs pip install ".[serve]" in the clone. There is no password: with another
--host, everybody who can reach the page can read the documents.
"""

import argparse
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec

from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.outputs import check_output, write_text
from fairseq_clusterformer.ranges import Range

from . import common
from .common import Parser, encoding, harmless, inputs_of, number


def main(arguments: Sequence[str]) -> int:
    parser = _parser()
    args = parser.parse_args(arguments)
    _check(parser, args)
    # of a stream's encoding, a wrong question alone is refused, and unknown letters are codes
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors=errors)
    if args.serve and (missing := [n for n in ("fastapi", "uvicorn") if find_spec(n) is None]):
        allowed = 'pip install ".[serve]" in the clone, or no --serve'
        raise UserError(f"--serve needs {missing[0]}, which is not installed; allowed: {allowed}")
    from fairseq_clusterformer.checkpoints.bundle import is_bundle, located, no_file
    from fairseq_clusterformer.documents.sources import read_sources

    if not is_bundle(there := located(args.checkpoint)) and not there.is_file():
        raise no_file(there, "--checkpoint")
    if args.encoder and not (args.encoder / "config.json").is_file():
        allowed = "a folder of BERT's form that transformers has written"
        raise bad_option("--encoder", args.encoder, allowed, "it has no config.json")
    inputs = inputs_of(args, *args.document, *(f for d in args.document for f in d.rglob("*")))
    how = {"inputs": inputs, "force": args.force}
    if args.html:
        check_output("--html", args.html, **how)
    reading = {"encoding": args.encoding, "main_text": args.main_text}
    sources = read_sources(args.document, **reading, report=parser.say)
    from fairseq_clusterformer.checkpoints.load import load_checkpoint
    from fairseq_clusterformer.documents.read import TASK, Reader

    loaded = load_checkpoint(args.checkpoint, data=args.data, task=TASK)
    device = "cpu" if args.cpu else None
    reader = Reader(loaded, index=args.index, encoder=args.encoder, device=device)
    windows = reader.windows if args.windows is None else int(args.windows)
    asking = {"windows": windows, "least": args.no_answer_margin}
    if args.serve:
        from fairseq_clusterformer.documents.serve import Desk, serve

        desk = Desk(reader, top=args.top, most=args.tokens_at_once, **asking)
        for source in sources:
            desk.add(source)
        return serve(desk, args.host, args.port, args.upload_limit * 1_000_000, **reading)
    sections = [part for each in sources for part in reader.sections(each, args.tokens_at_once)]
    passages = reader.passages(sections)
    if 0 < windows < len(passages):
        parser.say(f"of {len(passages):,} passages, {windows} are read for a question (--windows)")
    asking["candidates"] = args.candidates
    for question in _questions(args):
        try:
            ranking = reader.ask(question, passages, args.top, **asking)
            _show(ranking)
            if args.html:
                from fairseq_clusterformer.documents.drawing import answer_page

                write_text("--html", args.html, answer_page(question.strip(), ranking), **how)
        except UserError as error:
            if not args.interactive:
                raise
            parser.say(f"error: {error}")
    return 0


def _check(parser: Parser, args: argparse.Namespace) -> None:
    if args.serve:
        for name in ("question", "interactive", "html", "candidates"):
            if value := getattr(args, name):
                shown = f" {value}" if name == "html" else ""
                parser.error(f"--serve and --{name}{shown} are given; allowed: one of the two")
    elif not args.document:
        parser.error("there is no document; allowed: --document PATH, or --serve")
    elif not args.question and not args.interactive:
        parser.error("there is no question; allowed: --question TEXT, --interactive or --serve")
    if args.candidates and (least := args.no_answer_margin):
        given = f"--candidates and --no-answer-margin {least}"
        parser.error(f"{given} are given; allowed: one of the two, as a candidate is the answer")
    if not args.host:  # to a socket, all addresses
        parser.error("--host is empty; allowed: an address of this computer, such as 127.0.0.1")


def _questions(args: argparse.Namespace) -> Iterator[str]:
    """Those of the command line, then of stdin; of several, each is printed that nobody types."""
    typed = args.interactive and sys.stdin.isatty()
    for question in args.question:
        if args.interactive or len(args.question) > 1:
            _print(f"? {question.strip()}")
        yield question
    with suppress(EOFError):
        while args.interactive:
            if question := input("? " if typed else "").strip():
                if not typed:
                    _print(f"? {question}")
                yield question


def _print(*texts: str) -> None:
    print(*map(harmless, texts))


def _show(ranking) -> None:
    from fairseq_clusterformer.documents.found import confidence

    if ranking.verdict:
        _print(ranking.verdict, "The best guesses are:" if ranking else "")
    for rank, found in enumerate(ranking, 1):
        before, text, behind = found.around()
        where = ", ".join(filter(None, [found.file, found.place]))
        if found.place.startswith("paragraph"):
            where += ", characters [{}, {})".format(*found.characters)
        _print(f"{rank}. {found.text}\n   {confidence(found.probability)}: {where}")
        if before or behind:
            _print(f"   {before}[{text}]{behind}")
        for sentence, probability in found.supporting:
            _print(f"   supported by ({probability:.3f}): {sentence}")
    if ranking.note:
        _print(ranking.note)
    sys.stdout.flush()


def _parser() -> Parser:
    parser = Parser(prog="clusterformer answer", description=__doc__)
    add = parser.add
    common.add_model(parser, "a reader's checkpoint or bundle", default="reader-en")
    kinds = "files of text, Markdown, HTML, PDF and other forms, and folders of them"
    add("--document PATH", kinds, nargs="+", default=[])
    add("--question TEXT", "may be repeated", action="append", default=[])
    about = "texts of which one is the answer, for a reader that was trained with candidates"
    add("--candidates TEXT", about, nargs="+", default=[])
    add("--interactive", "read questions from stdin")
    add("--top N", "answers to print", default=3)
    about = 'least margin of an answer over "no answer"; -1 is content with less than this'
    add("--no-answer-margin M", about, type=common.finite, default=0.0)
    add("--index DIR", "keep the vectors of --encoder in this folder for a later run")
    about = "folder of BERT's form whose vectors of sentences also choose passages, such as "
    add("--encoder DIR", about + "all-MiniLM-L6-v2")
    add("--html FILE", "page to write, of the latest question")
    common.add_force(parser)
    add("--encoding NAME", "of text and HTML (default: their own, else UTF-8)", type=encoding)
    menus = "of HTML, leave out menus and the like; needs trafilatura (default: read all)"
    add("--main-text", menus)
    about = "subwords of a passage (default: --max-positions of the model's training)"
    add("--tokens-at-once N", about, type=number(Range(at_least=2, whole=True)))
    about = "passages to read for a question, the most relevant ones (default: 10, or 32 of a "
    some = number(Range(at_least=0, whole=True))
    add("--windows N", about + "model of words; 0: all)", type=some)
    add("--serve", "open a page to ask in")
    about = "of the page (default: %(default)s, this computer)"
    parser.add_argument("--host", default="127.0.0.1", help=about)
    add("--port N", "of the page", type=number(Range(1, 65_535, whole=True)), default=8000)
    add("--upload-limit N", "largest file that the page takes, in millions of bytes", default=20)
    return parser
