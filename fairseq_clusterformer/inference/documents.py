"""Files that people have, as paragraphs of text: plain text, HTML and PDF.

Plain text has blank lines between its paragraphs, HTML its block elements; of a PDF, which tells
nothing of paragraphs, each page is one unless blank lines divide it. In a paragraph blanks and
line ends are single blanks.
"""

import codecs
import io
import logging
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from fairseq_clusterformer.errors import UserError

ALLOWED = "a file of text, HTML (.html, .htm, .xhtml) or PDF (.pdf)"
_HTML = (".html", ".htm", ".xhtml", ".xht")
_BLANK_LINE = re.compile(r"\n\s*\n|\f")
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
_BLOCKS = set(
    "address article aside blockquote body caption center dd details dialog dir div dl dt "
    "fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr html legend li "
    "main menu nav ol p pre search section summary table tr ul".split()
)
_BLANKS = {"br", "td", "th"}  # between words, not paragraphs
_UNSEEN = {"noscript", "script", "select", "style", "svg", "template", "textarea", "title"}


@dataclass(frozen=True)
class Source:
    """A file's text.

    Args:
        name: of the file, as it was given.
        title: an HTML page's or a PDF's own, else the file's name without its ending.
        paragraphs: none of them empty.
    """

    name: str
    title: str
    paragraphs: tuple[str, ...]


def read_source(path: Path, encoding: str | None = None) -> Source:
    """Read a file.

    Args:
        path: what it is, its ending tells, or its first bytes.
        encoding: of text and HTML; None: as a byte order mark or, of HTML, the page itself says,
            else UTF-8.

    Raises:
        UserError: naming the file and what is wrong with it.
    """
    if path.is_dir():
        raise UserError(f"--document is {path}: is a folder; allowed: {ALLOWED}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"--document is {path}: {error.strerror}; allowed: {ALLOWED}") from None
    if path.suffix.lower() == ".pdf" or data.startswith(b"%PDF-"):
        title, texts = _of_pdf(path, data)
    elif path.suffix.lower() in _HTML:
        declared = _DECLARED.search(data[:4096])
        title, texts = _of_html(_decoded(path, data, encoding, declared))
    else:
        title, texts = "", _BLANK_LINE.split(_decoded(path, data, encoding))
    paragraphs = tuple(filter(None, (" ".join(text.split()) for text in texts)))
    if not paragraphs:
        raise UserError(f"--document is {path}: holds no text; allowed: {ALLOWED}")
    return Source(str(path), " ".join(title.split()) or path.stem, paragraphs)


def _decoded(
    path: Path, data: bytes, encoding: str | None, declared: re.Match[bytes] | None = None
) -> str:
    """The text of a file, with line ends as Python has them.

    Raises:
        UserError: for an encoding that there is not, or that the file is not in.
    """
    marked = next((name for mark, name in _MARKS.items() if data.startswith(mark)), None)
    own = marked or (declared and declared[1].decode()) or "utf-8"
    used = encoding or own
    try:
        text = io.TextIOWrapper(io.BytesIO(data), encoding=used).read()
        text.encode()  # some encodings know halves of characters
    except LookupError:
        says = f"--encoding is {encoding}" if encoding else f"{path}: says it is in {own}"
        raise UserError(f"{says}, which is unknown; allowed: utf-8, latin-1, cp1252 ...") from None
    except UnicodeError as error:
        at = getattr(error, "start", 0)
        raise UserError(
            f"--document is {path}: is not in {used} (byte {at:,}); allowed: {ALLOWED}, and "
            "--encoding NAME for text in another encoding than UTF-8"
        ) from None
    if "\0" in text:
        raise UserError(
            f"--document is {path}: holds the character NUL, so it is no text in {used}; allowed: "
            f"{ALLOWED}, and --encoding NAME for text in another encoding than UTF-8"
        )
    return text


class _Page(HTMLParser):
    """Collects the text of a page that is seen, a line for each paragraph, and its title."""

    def __init__(self) -> None:
        super().__init__()
        self.title = ""
        self.lines: list[str] = []
        self._within: list[str] = []  # what is not seen

    def handle_starttag(self, tag: str, attrs: list) -> None:
        if tag in _UNSEEN:
            self._within.append(tag)
        self._between(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self._between(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._within:
            del self._within[self._within.index(tag) :]
        self._between(tag)

    def handle_data(self, data: str) -> None:
        if self._within == ["title"]:
            self.title += data
        elif not self._within:
            self.lines.append(re.sub(r"\s+", " ", data))

    def _between(self, tag: str) -> None:
        if tag in _BLOCKS:
            self.lines.append("\n")
        elif tag in _BLANKS:
            self.lines.append(" ")


def _of_html(text: str) -> tuple[str, list[str]]:
    """Title and paragraphs: what stands between the borders of block elements."""
    page = _Page()
    page.feed(text)
    page.close()
    return page.title, "".join(page.lines).split("\n")


def _of_pdf(path: Path, data: bytes) -> tuple[str, list[str]]:
    """Title and paragraphs.

    Raises:
        UserError: if a library is missing, or for what is no PDF or is locked.
    """
    try:
        import pypdf
        from pypdf import errors
    except ModuleNotFoundError:
        raise UserError(
            f"--document is {path}: pypdf is needed to read PDF, and is not installed; allowed: "
            f'{ALLOWED} after pip install "fairseq_clusterformer[documents]"'
        ) from None
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # what is wrong is told below
    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        pages = [page.extract_text() for page in reader.pages]
        title = (reader.metadata and reader.metadata.title) or ""
    except (
        *(errors.PyPdfError, errors.DependencyError, ArithmeticError, AttributeError),
        *(LookupError, NotImplementedError, RecursionError, TypeError, ValueError),
    ) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"--document is {path}: cannot be read as PDF ({reason}); allowed: {ALLOWED}"
        ) from None
    return title, [text for page in pages for text in _BLANK_LINE.split(page)]
