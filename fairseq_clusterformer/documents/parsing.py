"""HTML and PDF as paragraphs, in a process of its own with limits of time and memory.

The process runs this file alone, which therefore imports nothing of this package. It parses one
document after the other, and ends with the process that started it, or with a document that takes
too much.
"""

import atexit
import io
import json
import logging
import re
import subprocess
import sys
import threading
import unicodedata
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from html.parser import HTMLParser
from itertools import pairwise
from os import getpid
from pathlib import Path

SECONDS = 30.0  # for a document, and 10 more for each of its megabytes
MEMORY = 2_000_000_000  # bytes

SENTENCE_END = re.compile(r"[.!?\u2026][\"')\]\u201d\u2019]*\s+")
BLANK_LINE = re.compile(r"\n\s*\n|\f")
_LONGEST = 1200  # characters of a paragraph of a PDF
_LETTERS = r"[^\W\d_]+"
_BROKEN_WORD = re.compile(
    rf"\b((?:{_LETTERS}[-\u2010]){{0,3}}{_LETTERS})([-\u2010\u00ad])[ \t]*\n[ \t]*({_LETTERS})"
)
_WORD = re.compile(rf"{_LETTERS}(?:[-\u2010]{_LETTERS})*")
# English, German and French: "Jan" to "janvier"; bounded, or repeated they take quadratic time
_MONTH = (
    r"(?:jan|f[e\u00e9][bv]|m[a\u00e4]r|a[pv]r|ma[iy]|ju[nil]|a[uo]|sep|o[ck]t|nov|d[e\u00e9][cz])"
    r"[^\W\d_]{0,7}\.?"
)
_DAY = r"\d{1,2}(?:\.|st|nd|rd|th)?"
DATE = re.compile(
    rf"(?:{_DAY}\s{_MONTH}|{_MONTH}\s{_DAY}),?\s\d{{4}}"
    r"|\d{1,4}[-/.]\d{1,2}[-/.]\d{2,4}|\d{1,2}:\d{2}(?::\d{2})?",
    re.IGNORECASE,
)
_ROMAN = re.compile("[ivxl]{1,8}")
_ROMAN_VALUES = {"i": 1, "v": 5, "x": 10, "l": 50}
_COMPOUNDING = set("half high long low non self short two three four five six ten well".split())
_LONGEST_RUNNING = 200  # characters of a line that may recur
_EDGE = 3  # lines at the top and at the bottom of a page where others may recur
_BLOCKS = set(
    "address article aside blockquote body caption center dd details dialog dir div dl dt "
    "fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr html legend li "
    "main menu nav ol p pre search section summary table tr ul".split()
)
_BLANKS = {"br", "td", "th"}  # between words, not paragraphs
_UNSEEN = set("menu nav noscript script select style svg template textarea title".split())

_lock = threading.Lock()  # one document at a time


class Unreadable(Exception):
    """Why a document cannot be read, without its name."""


def parse_elsewhere(kind: str, data: bytes) -> tuple[str, list[str]]:
    """Title and paragraphs of a document, which another process parses. Raises Unreadable: if it
    cannot be parsed, or takes more time or memory than it may.

    Args:
        kind: "HTML", "main HTML" (without menus; this needs trafilatura) or "PDF".
        data: HTML in UTF-8, or a PDF.
    """
    seconds = SECONDS + len(data) / 100_000
    late = threading.Event()
    with _lock:
        worker = _worker(getpid())

        def stop() -> None:
            late.set()
            worker.kill()

        timer = threading.Timer(seconds, stop)
        timer.daemon = True
        timer.start()
        answer = b""
        try:
            with suppress(BrokenPipeError):
                worker.stdin.write(json.dumps([kind, len(data)]).encode() + b"\n" + data)
                worker.stdin.flush()
                answer = worker.stdout.readline()
        finally:
            timer.cancel()
            if late.is_set() or not answer.endswith(b"\n"):
                _end(worker)
                _worker.cache_clear()
    if late.is_set():
        raise Unreadable(f"takes more than {seconds:.0f} seconds to read")
    if not answer.endswith(b"\n"):
        raise Unreadable(f"cannot be read in {MEMORY:,} bytes of memory")
    title, found = json.loads(answer)
    if title is None:
        raise Unreadable(found)
    return title, found


@lru_cache(1)
def _worker(_owner: int) -> subprocess.Popen:
    """The process that parses, one for each process that asks."""
    command = [sys.executable, "-P", __file__, str(MEMORY)]  # -P: no other file of this folder
    pipe = subprocess.PIPE
    worker = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
    atexit.register(_end, worker)
    return worker


def _end(worker: subprocess.Popen) -> None:
    worker.kill()
    with suppress(BrokenPipeError):
        worker.communicate()


def _serve(memory: int) -> None:
    """Parse what comes from stdin until it ends."""
    with suppress(ImportError, ValueError):  # not on every system
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # no library prints between the answers
    for head in sys.stdin.buffer:
        kind, size = json.loads(head)
        try:
            data = sys.stdin.buffer.read(size)
            is_pdf = kind == "PDF"
            answer = _of_pdf(data) if is_pdf else _of_html(data.decode(), kind == "main HTML")
        except Unreadable as error:
            answer = None, str(error)
        except MemoryError:
            return  # it may have left a part of the document in the pipe
        except Exception as error:  # parsers end in many kinds of them where a file is damaged
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            answer = None, f"cannot be read as {kind.removeprefix('main ')} ({reason[:200]})"
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


class _Page(HTMLParser):
    """Collects the text of a page that is seen, a line for each paragraph, and its title."""

    def __init__(self) -> None:
        super().__init__()
        self.title: list[str] = []
        self.lines: list[str] = []
        self._within: list[str] = []  # what is not seen, each kind once

    def handle_starttag(self, tag: str, attrs: list) -> None:
        if tag in _UNSEEN and tag not in self._within:
            self._within.append(tag)
        self._between(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._within:
            del self._within[self._within.index(tag) :]
        self._between(tag)

    def handle_data(self, data: str) -> None:
        if self._within == ["title"]:
            self.title.append(data)
        elif not self._within:
            self.lines.append(re.sub(r"\s+", " ", data))

    def _between(self, tag: str) -> None:
        self.lines.append("\n" if tag in _BLOCKS else " " if tag in _BLANKS else "")


def _of_html(text: str, main_text: bool) -> tuple[str, list[str]]:
    """Title and paragraphs: what stands between the borders of block elements."""
    page = _Page()
    # A "<" behind the last ">" begins no tag, and would be looked at again and again.
    end = text.rfind(">") + 1
    page.feed(text[:end] + text[end:].replace("<", "&lt;"))
    page.close()
    title = "".join(page.title)
    if not main_text:
        return title, "".join(page.lines).split("\n")
    import trafilatura

    return title, (trafilatura.extract(text, include_comments=False) or "").split("\n")


def _of_pdf(data: bytes) -> tuple[str, list[str]]:
    """Title and paragraphs."""
    import pypdf
    from pypdf.errors import FileNotDecryptedError

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        flowing = [_lines(page.extract_text()) for page in reader.pages]
        placed = [_placed(page) for page in reader.pages]
        title = (reader.metadata and reader.metadata.title) or ""
    except FileNotDecryptedError:
        raise Unreadable("needs a password") from None
    pages = zip(_without_running(flowing), _without_running(placed), strict=True)
    texts = ["\n".join(_of_columns(there) or lines) for lines, there in pages]
    found = [text for page in _whole_words(texts) for text in _of_page(page)]
    return _whole_characters(title), [*map(_whole_characters, found)]


def _whole_characters(text: str) -> str:
    """A text whose halves of characters are put together; one alone becomes U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in unicodedata.normalize("NFC", text).split("\n")]


def _placed(page) -> list[str]:
    """The lines of a page as they lie on it; none where its fonts do not say how wide they are."""
    with suppress(Exception):
        return _lines(page.extract_text(extraction_mode="layout"))
    return []


def _without_running(pages: list[list[str]]) -> list[list[str]]:
    """The lines of pages without those that recur at one place at the edge of many pages, such as
    headers, page numbers and dates. Left and right pages may have their own."""

    def edges(number: int, lines: list[str]) -> dict[tuple[int, str], int]:
        """Where each outer line lies, by its place and by each form in which it may recur."""
        full = [place for place, line in enumerate(lines) if line.strip()]
        dated = Counter(DATE.sub("<date>", line) for line in lines)
        outer = [*enumerate(full[:_EDGE]), *((-1 - i, n) for i, n in enumerate(full[:-4:-1]))]
        return {
            (place, form): line
            for place, line in outer
            if len(lines[line]) <= _LONGEST_RUNNING
            for form in _forms(number, lines[line], dated)
        }

    found = [edges(number, lines) for number, lines in enumerate(pages)]
    counts = Counter(edge for own in found for edge in own)
    least = max(2, 0.3 * len(pages))
    running = [{own[edge] for edge in own if counts[edge] >= least} for own in found]
    kept = [
        [line for number, line in enumerate(lines) if number not in without]
        for lines, without in zip(pages, running, strict=True)
    ]
    return kept if any(map(any, kept)) else pages


def _forms(page: int, line: str, dated: Counter) -> Iterator[str]:
    """What a line has in common with those of other pages: itself; itself but for its date, if
    few lines of the page are so; or itself but for a number that rises with the pages'."""
    plain = " ".join(line.split()).casefold()
    yield plain
    masked = DATE.sub("<date>", line)
    if masked != line and dated[masked] <= 2:
        yield " ".join(masked.split()).casefold()
    if _ROMAN.fullmatch(plain):
        values = [_ROMAN_VALUES[letter] for letter in plain] + [0]
        number = sum(-v if v < following else v for v, following in pairwise(values))
        yield f"<roman {number - page}>"
    for found in re.finditer(r"(?<![\d.,])\d{1,5}(?![\d.,]*\d)", plain):
        yield f"{plain[: found.start()]}<{int(found[0]) - page}>{plain[found.end() :]}"


def _of_columns(lines: list[str]) -> list[str]:
    """The lines of a page, one column after the other; none if it has one column. Blanks in
    `lines` keep what is below each other below each other."""
    width = max(map(len, lines), default=0)
    # In each column, a line of text has four words or more: rows of a table have fewer.
    gaps = {
        gap: sum(
            line[gap - 1 : gap + 2] == "   "
            and min(len(line[:gap].split()), len(line[gap:].split())) >= 4
            for line in lines
        )
        for gap in range(width // 5, 4 * width // 5)
    }
    gap = max(gaps, key=gaps.get, default=0)
    across = [bool(line[gap - 1 : gap + 2].strip()) for line in lines]
    if not gaps or gaps[gap] < 3 or 2 * sum(across) > gaps[gap]:
        return []
    columns, block = [], []
    for line, is_across in [*zip(lines, across, strict=True), ("", True)]:
        if not is_across:
            block.append(line)
            continue
        for part in ([each[:gap] for each in block], [each[gap:] for each in block]):
            columns += _of_columns(part) or [each.strip() for each in part]
        columns += [line, ""]  # what is above it comes first
        block = []
    return columns


def _whole_words(pages: list[str]) -> list[str]:
    """Pages where words that a line's end divides are whole again.

    A hyphen goes where the document has the whole word elsewhere, and stays where it has the
    compound. Else it stays behind a letter, a hyphenated word or a word that makes compounds, and
    between two known words; unless both parts make a known word.
    """
    others = {
        word.casefold().replace("\u2010", "-")
        for page in pages
        for word in _WORD.findall(_BROKEN_WORD.sub("\n", page))
    }
    known = others | _dictionary()

    def whole(found: re.Match) -> str:
        first, hyphen, second = found.groups()
        parts = [first.casefold(), second.casefold()]
        joined, compound = "".join(parts), "-".join(parts)
        if hyphen == "\u00ad" or joined in others:
            return first + second
        keeps = len(first) == 1 or "-" in first or not second[0].islower() or compound in others
        makes = parts[0] in _COMPOUNDING or known.issuperset(parts)
        return f"{first}-{second}" if keeps or (makes and joined not in known) else first + second

    return [_BROKEN_WORD.sub(whole, page).replace("\u00ad", "") for page in pages]


@lru_cache(1)
def _dictionary() -> set[str]:
    """What begins words in the dictionaries of the installed models: 25,000 words. Of pieces of
    words (``reader-en``), those begin words that have no mark."""
    words = set()
    for file in Path(__file__).parents[1].glob("trained/*/dict.txt"):
        symbols = [line.split(" ")[0] for line in file.read_text(encoding="utf-8").splitlines()]
        if any(symbol.startswith("##") for symbol in symbols):
            words.update(each for each in symbols if not each.startswith("##"))
        else:
            words.update(each[1:].casefold() for each in symbols if each.startswith("\u2581"))
    return words


def _of_page(page: str) -> Iterator[str]:
    """Paragraphs of a page of a PDF, which says nothing of paragraphs."""
    for block in BLANK_LINE.split(page):
        lines = [line.strip() for line in block.split("\n") if line.strip()]
        width = sorted(map(len, lines))[int(0.9 * len(lines))] if lines else 0
        text = lines[0] if lines else ""
        for line, following in pairwise(lines):
            ends = len(line) < 0.8 * width and not following[0].islower()
            text += ("\n\n" if ends else " ") + following
        for paragraph in text.split("\n\n"):
            yield from _at_most(paragraph, _LONGEST)


def _at_most(text: str, most: int) -> Iterator[str]:
    """A text in pieces of whole sentences, which are no longer than `most` where one is not."""
    start = end = 0
    for sentence_end in [*(match.end() for match in SENTENCE_END.finditer(text)), len(text)]:
        if sentence_end - start > most and end > start:
            yield text[start:end]
            start = end
        end = sentence_end
    yield text[start:]


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
