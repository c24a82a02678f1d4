"""Documents that people have, as paragraphs of text: plain text, Markdown, HTML and PDF.

What divides paragraphs depends on the kind of file:

- plain text: blank lines; also line ends, where lines are too long to be those of one paragraph,
  or three or more all end a sentence;
- Markdown: blank lines, headings, items of lists, and rows of tables;
- HTML: block elements, which rows of tables are too;
- PDF: blank lines, lines that end early, and the ends of pages. A longer paragraph is divided
  between sentences.

Within a paragraph, blanks and line ends are single blanks.
"""

import codecs
import importlib.util
import io
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fairseq_clusterformer.errors import UserError, bad_option

from .parsing import BLANK_LINE, DATE, Unreadable, parse_elsewhere

_KINDS = "a file of text, Markdown (.md), HTML (.html) or PDF"
ALLOWED = f"{_KINDS}, or a folder of them"
_MARKDOWN = (".md", ".markdown")
_HTML = (".html", ".htm", ".xhtml", ".xht")
#: what is read of a folder; a file that is named itself may have any ending
ENDINGS = (".txt", ".text", ".pdf", *_MARKDOWN, *_HTML)

_BLANKS = re.compile(r"\s+")
_WORD_END, _PART = re.compile(r"(?<=\S)\s"), 1 << 16  # characters, or a few more
_DATED = re.compile(  # with each date as <date>: dates or a page number, and no more
    r"(?i)(?=.*<date>)(?:(?:last|posted|published|updated|modified|on|at|[^\W\d_]+day)\b|<date>|[\W\d_])*+"
    r"|page\s\d+(?:\s(?:of|/)\s\d+)?"
)
_WIDEST = 130  # characters of a line, where a paragraph has several
_LINE = re.compile(r"\S[^\n]*")
_CLOSING = "\"')]\u201d\u2019"  # behind the end of a sentence
# What a blank may be matched by is one place of a pattern: no text takes quadratic time.
_TABLE_RULE = re.compile(r"\|?(\s*+:?-++:?\s*+\|)++(\s*+:?-++:?)?")  # of a line without margins
_MARKDOWN_RULE = re.compile(r"\s*+([-=*_]\s?+){3,}+\s*")
_MARKDOWN_HEADING = re.compile(r"\s{0,3}#{1,6}\s")
_MARKDOWN_ITEM = re.compile(r"\s*([-*+]|\d+[.)])\s")
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # begins as UTF-16's does
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_DECLARED = re.compile(
    rb"""<(?:meta|\?xml)\b[^>]*?(?:charset|encoding)\s*=\s*["']?([\w.:-]+)""", re.I
)
#: what a page that declares these is in, by WHATWG's standard, as browsers read it
_MEANT = dict.fromkeys(("ascii", "iso8859-1"), "cp1252")
_MEANT |= dict.fromkeys(("utf-16", "utf-16-le", "utf-16-be"), "utf-8")


@dataclass(frozen=True, eq=False)
class Source:
    """The text of a document."""

    name: str  # the file as it was given, or what the caller calls a text
    title: str  # of an HTML page or a PDF; else the file's name without its ending
    paragraphs: tuple[str, ...]  # none of them is empty
    #: the numbers of those that answer nothing: dates without a heading, page numbers, and what
    #: half of the files in a folder have, such as menus
    silent: frozenset[int] = frozenset()


def text_source(text: str, name: str) -> Source:
    """A text that is no file; blank lines divide its paragraphs. Raises UserError: if there is no
    text in it."""
    paragraphs = _joined(_of_plain(text))
    if not paragraphs:
        raise bad_option("documents", name, "text", "is empty")
    return Source(name, "", paragraphs)


def read_source(path: Path, encoding: str | None = None, *, main_text: bool = False) -> Source:
    """Read a file. Its ending says what it is; a PDF is also known by its first bytes. Raises
    UserError: naming the file and what is wrong with it.

    Args:
        encoding: of text and HTML; None: what a byte order mark or the HTML page itself says,
            else UTF-8.
        main_text: of HTML, keep the main text alone, without menus. This needs trafilatura.
    """
    try:
        return _read(path, encoding, main_text)
    except Unreadable as error:
        raise bad_option("--document", path, ALLOWED, str(error)) from None


def uploaded_source(
    data: bytes, name: str, encoding: str | None = None, *, main_text: bool = False
) -> Source:
    """A file whose content came by itself; otherwise as :func:`read_source`."""
    try:
        return _silenced([_of_bytes(data, Path(name), encoding, main_text)])[0]
    except Unreadable as error:
        raise bad_option("document", name, _KINDS, str(error)) from None


def read_sources(
    paths: Sequence[Path],
    encoding: str | None = None,
    *,
    main_text: bool = False,
    report: Callable[[str], None],
) -> list[Source]:
    """Read files, and the files of folders and all folders below; each file once. Raises
    UserError: a named file that cannot be read, or a folder without a document.

    In a folder, hidden files and files with other endings than `ENDINGS` are skipped, and so is
    what cannot be read. A file that is named itself must be readable.

    Args:
        encoding, main_text: as of :func:`read_source`.
        report: takes one line for each folder, and one for each file that cannot be read.
    """
    sources: dict[Path, Source] = {}
    for path in paths:
        if not path.is_dir():
            source = read_source(path, encoding, main_text=main_text)
            sources.setdefault(path.resolve(), source)
            continue
        found, skipped = _files(path)
        unreadable = 0
        for file in found:
            try:
                sources.setdefault(file.resolve(), _read(file, encoding, main_text))
            except Unreadable as error:
                unreadable += 1
                report(f"skipped {file}: {error}")
        what = f"{len(found) - unreadable} read, {unreadable} unreadable, {skipped} skipped "
        what += "(hidden or of other kinds)"
        if len(found) == unreadable:
            raise bad_option("--document", path, ALLOWED, f"no document in this folder: {what}")
        report(f"{path}: {what}")
    return _silenced(list(sources.values()))


def _silenced(sources: list[Source]) -> list[Source]:
    """Sources that know what of them answers nothing."""
    files = Counter(text for source in sources for text in {*source.paragraphs})
    many = max(3, len(sources) / 2)

    def silent(texts: tuple[str, ...]) -> Iterator[int]:
        shared = [files[text] >= many for text in texts]
        size = sum(len(text) for text, is_shared in zip(texts, shared, strict=True) if is_shared)
        is_copy = size > 0.75 * sum(map(len, texts))  # or another version of a document
        for i, text in enumerate(texts):
            if (shared[i] and not is_copy) or (_is_dated(text) and not _is_heading(texts, i - 1)):
                yield i

    return [replace(source, silent=frozenset(silent(source.paragraphs))) for source in sources]


def _is_dated(text: str) -> bool:
    """Whether a text says when it was written, or on which page it is, and no more."""
    is_row = len(text) > 200 or "|" in text
    return not is_row and bool(_DATED.fullmatch(DATE.sub("<date>", text)))


def _is_heading(texts: Sequence[str], place: int) -> bool:
    """Whether a paragraph is a heading within a document, by its looks."""
    if place < 1 or len(text := texts[place]) > 60 or _is_dated(text):
        return False
    return text[-1].isalnum() or text[-1] == ":"


def state_of(path: Path) -> list[tuple[str, int, int]]:
    """What changes when a file, or one that is read of a folder, changes: names, times, sizes."""
    files = _files(path)[0] if path.is_dir() else [path] if path.exists() else []
    found = ((file, file.stat()) for file in files)
    return [(str(file), state.st_mtime_ns, state.st_size) for file, state in found]


def _files(folder: Path) -> tuple[list[Path], int]:
    """The documents below a folder in order, and how many other files there are."""
    found, skipped = [], 0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = Path(place, name)
            # a pipe, which never ends, is no file
            if not name.startswith(".") and file.suffix.lower() in ENDINGS and not file.is_fifo():
                found.append(file)
            else:
                skipped += 1
    return found, skipped


def _read(path: Path, encoding: str | None, main_text: bool) -> Source:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Unreadable("is a folder" if path.is_dir() else error.strerror) from None
    return _of_bytes(data, path, encoding, main_text)


def _of_bytes(data: bytes, path: Path, encoding: str | None, main_text: bool) -> Source:
    """Title and paragraphs; HTML and PDF, which strangers can make slow, in another process."""
    ending, title = path.suffix.lower(), ""
    if ending == ".pdf" or data.startswith(b"%PDF-"):
        title, texts = parse_elsewhere("PDF", data)
    elif ending in _HTML:
        if main_text and importlib.util.find_spec("trafilatura") is None:
            allowed = 'pip install "fairseq_clusterformer[documents]", or no --main-text'
            problem = "--main-text needs trafilatura, which is not installed"
            raise UserError(f"{problem}; allowed: {allowed}")
        text = _decoded(data, encoding, _declared(data))
        title, texts = parse_elsewhere("main HTML" if main_text else "HTML", text.encode())
    else:
        text = _decoded(data, encoding)
        texts = _of_markdown(text) if ending in _MARKDOWN else _of_plain(text)
    if not (paragraphs := _joined(texts)):
        raise Unreadable("holds no text")
    (title,) = _joined([title]) or (_printable(path.stem),)
    return Source(_printable(str(path)), title, paragraphs)


def _joined(texts: Iterable[str]) -> tuple[str, ...]:
    """Paragraphs with single blanks, without the empty ones."""
    return tuple(filter(None, ("".join(_single_blanks(text)).strip() for text in texts)))


def _single_blanks(text: str) -> Iterator[str]:
    """Parts of a text with single blanks: words take ten times the memory of their text, so those
    of a long paragraph are not all there at once. A part ends with a word."""
    start = 0
    while word_end := _WORD_END.search(text, start + _PART):
        yield _BLANKS.sub(" ", text[start : word_end.start()])
        start = word_end.start()
    yield _BLANKS.sub(" ", text[start:])


def _printable(name: str) -> str:
    """The name of a file, where bytes that are no UTF-8 are spelt out."""
    return name.encode(errors="backslashreplace").decode()


def _declared(data: bytes) -> str | None:
    """The encoding that a page says it is in."""
    found = _DECLARED.search(data[:4096])
    if found is None:
        return None
    name = found[1].decode()
    try:
        meant = _MEANT[codecs.lookup(name).name]
        data.decode(meant)
    except (LookupError, ValueError):  # as it says, then
        return name
    return meant


def _decoded(data: bytes, encoding: str | None, declared: str | None = None) -> str:
    """The text of a file, with line ends as Python has them and without a byte order mark."""
    marked = next((name for mark, name in _MARKS.items() if data.startswith(mark)), None)
    used = encoding or marked or declared or "utf-8"
    try:
        text = io.TextIOWrapper(io.BytesIO(data), encoding=used).read().removeprefix("\ufeff")
        text.encode()  # some encodings know halves of characters
    except UnicodeError as error:
        at = f" (byte {error.start:,})" if isinstance(error, UnicodeDecodeError) else ""
        remedy = "choose another encoding (--encoding NAME)"
        raise Unreadable(f"is not in {used}{at}: {remedy}") from None
    except (LookupError, ValueError):  # unknown, or no name at all
        if not encoding:
            raise Unreadable(f"says that it is in {used}, which is unknown") from None
        shown = encoding if encoding.isprintable() else ascii(encoding)
        raise bad_option("--encoding", shown, "utf-8, latin-1, cp1252 ...") from None
    if "\0" in text:
        raise Unreadable(f"holds the character NUL, so it is no text in {used}")
    return text


def _of_plain(text: str) -> Iterator[str]:
    """Paragraphs: what blank lines divide, and lines that are paragraphs themselves."""
    for block in BLANK_LINE.split(text):
        ends = (line.rstrip(_CLOSING)[-1:] in (".", "!", "?", "\u2026") for line in _lines(block))
        is_wide = any(len(line) > _WIDEST for line in _lines(block))
        if is_wide or (all(ends) and sum(1 for _ in _lines(block)) > 2):
            yield from _lines(block)
        else:
            yield block


def _lines(text: str) -> Iterator[str]:
    """Those that are not blank, one by one: all of a long paragraph take much memory."""
    return (match[0].rstrip() for match in _LINE.finditer(text))


def _of_markdown(text: str) -> list[str]:
    """Paragraphs: what blank lines divide, and headings, items of lists and rows of tables."""
    found = []
    for block in BLANK_LINE.split(text):
        lines = block.split("\n")
        is_table = any(_TABLE_RULE.fullmatch(line.strip()) for line in lines)
        found.append("")
        for line in lines:
            if is_table and "|" in line:
                if not _TABLE_RULE.fullmatch(line.strip()):
                    cells = line.strip().removeprefix("|").removesuffix("|").split("|")
                    found += [" | ".join(cell.strip() for cell in cells), ""]
            elif heading := _MARKDOWN_HEADING.match(line):
                found += ["", line[heading.end() :].strip().rstrip("# \t"), ""]
            elif _MARKDOWN_RULE.fullmatch(line):
                found.append("")
            elif _MARKDOWN_ITEM.match(line):
                found += ["", line]
            else:
                found.append(line)
    return BLANK_LINE.split("\n".join(found))
