"""PDF as paragraphs: lines that end early, blank lines and the ends of pages divide them, as a PDF
says where letters lie, not what is a paragraph. A longer one is divided between sentences."""

import io
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from .texts import BLANK_LINE, at_most

_LONGEST = 1200  # characters of a paragraph
_LETTERS = r"[^\W\d_]+"
_BROKEN_WORD = re.compile(
    rf"\b((?:{_LETTERS}[-\u2010]){{0,3}}{_LETTERS})([-\u2010\u00ad])[ \t]*\n[ \t]*({_LETTERS})"
)
_WORD = re.compile(rf"{_LETTERS}(?:[-\u2010]{_LETTERS})*")
_NUMBER = re.compile(r"(?<![\d.,])\d{1,5}(?![\d.,]*\d)")
_LONGEST_RUNNING = 200  # characters of a line that may recur
_EDGE = 3  # lines at the top and at the bottom of a page where others may recur


def of_pdf(data: bytes) -> tuple[str, list[tuple[str, str]]]:
    """The title, and paragraphs with their pages; pypdf's errors are let through."""
    import pypdf

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    reader = pypdf.PdfReader(io.BytesIO(data))
    title = (reader.metadata and reader.metadata.title) or ""
    flowing = _without_running([_lines(page.extract_text()) for page in reader.pages])
    placed = _without_running([_placed(page) for page in reader.pages])
    pages = [_of_columns(there) or lines for lines, there in zip(flowing, placed, strict=True)]
    texts = _whole_words(["\n".join(lines) for lines in pages])
    return _whole_characters(title), [
        (text, f"page {number}") for number, page in enumerate(texts, 1) for text in _of_page(page)
    ]


def _whole_characters(text: str) -> str:
    """A text with halves and marks of characters put together; half of one becomes U+FFFD."""
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return unicodedata.normalize("NFC", whole)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in _whole_characters(text).split("\n")]


def _placed(page) -> list[str]:
    """The lines of a page as they lie on it; none where its fonts do not say how wide they are."""
    with suppress(Exception):
        return _lines(page.extract_text(extraction_mode="layout"))
    return []


def _without_running(pages: list[list[str]]) -> list[list[str]]:
    """The lines of pages without those that recur at one place at the edge of many pages, such as
    headers and page numbers. Left and right pages may have their own."""
    found: list[dict[tuple[int, str], int]] = []  # lines by their places and their forms
    for number, lines in enumerate(pages):
        full = [place for place, line in enumerate(lines) if line.strip()]
        outer = [*enumerate(full[:_EDGE]), *((-1 - i, n) for i, n in enumerate(full[:-4:-1]))]
        own = ((place, n, form) for place, n in outer for form in _forms(number, lines[n]))
        found.append({(place, form): line for place, line, form in own})
    counts = Counter(edge for own in found for edge in own)
    least = max(2, 0.3 * len(pages))
    running = [{own[edge] for edge in own if counts[edge] >= least} for own in found]
    kept = [
        [line for number, line in enumerate(lines) if number not in without]
        for lines, without in zip(pages, running, strict=True)
    ]
    return kept if any(map(any, kept)) else pages


def _forms(page: int, line: str) -> Iterator[str]:
    """What may recur of a line: itself, or itself but for a number that rises with the pages'."""
    if len(line) <= _LONGEST_RUNNING:
        plain = " ".join(line.split()).casefold()
        yield plain
        for found in _NUMBER.finditer(plain):
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


@lru_cache(1)
def _dictionary() -> set[str]:
    # the words of the reader that comes with the package, and what begins others
    text = (Path(__file__).parents[1] / "trained/reader-en/dict.txt").read_text("utf-8")
    return {line.split(" ")[0] for line in text.splitlines() if line[:2] != "##"}


def _whole_words(pages: list[str]) -> list[str]:
    """Pages where words that a line's end divides are whole again. A hyphen stays where the
    document has the compound elsewhere, behind a letter or a compound, before a capital, and
    between two words that make none."""
    others = {
        word.casefold().replace("\u2010", "-")
        for page in pages
        for word in _WORD.findall(_BROKEN_WORD.sub("\n", page))
    }
    known = others | _dictionary()

    def whole(found: re.Match) -> str:
        first, hyphen, second = found.groups()
        keeps = len(first) == 1 or "-" in first or not second[0].islower()
        parts, joined = [first.casefold(), second.casefold()], (first + second).casefold()
        keeps = keeps or "-".join(parts) in others
        keeps = keeps or (known.issuperset(parts) and joined not in known)
        joins = hyphen == "\u00ad" or joined in others or not keeps
        return first + second if joins else f"{first}-{second}"

    return [_BROKEN_WORD.sub(whole, page).replace("\u00ad", "") for page in pages]


def _of_page(page: str) -> Iterator[str]:
    for block in BLANK_LINE.split(page):
        lines = [line.strip() for line in block.split("\n") if line.strip()]
        width = sorted(map(len, lines))[int(0.9 * len(lines))] if lines else 0
        text = lines[0] if lines else ""
        for line, following in pairwise(lines):
            ends = len(line) < 0.8 * width and not following[0].islower()
            text += ("\n\n" if ends else " ") + following
        for paragraph in text.split("\n\n"):
            yield from at_most(paragraph, _LONGEST)
