"""What a word is, where words have vectors, and what a sentence is."""

from collections.abc import Iterator
from functools import cache

_SCRIPTS = ("Han", "Hiragana", "Katakana", "Thai", "Lao", "Khmer", "Myanmar")
#: letters of scripts that put no blanks between words, which stand for themselves, as a regular
#: expression writes them in brackets; the mark of long vowels is of no script
UNSPACED = "".join(rf"\p{{{script}}}" for script in _SCRIPTS) + "\u30fc\uff70"
_UNSPACED = f"[{UNSPACED}]"
_LETTER = rf"[[\p{{L}}\p{{M}}\p{{N}}]--{_UNSPACED}]"
_NAME = rf"[[\p{{L}}\p{{N}}]--{_UNSPACED}][{_LETTER}\u200C\u200D]*|[\p{{L}}\p{{N}}]\p{{M}}*"


@cache
def _compiled(pattern: str):
    import regex  # takes too long for --help

    return regex.compile(rf"(?V1){pattern}")


def words_of(text: str) -> list[str]:
    """The words of a text: runs of letters and digits, and every other visible character."""
    return _compiled(rf"{_LETTER}+|[^\s\x1c-\x1f]").findall(text)


def places_of_names(text: str) -> Iterator[tuple[int, int]]:
    """Where the words and the symbols ($, +, =) of a text begin and end, without punctuation."""
    for match in _compiled(rf"{_NAME}|[\p{{Sc}}\p{{Sm}}\p{{So}}]").finditer(text):
        yield match.span()


def joins(character: str) -> bool:
    """Whether a character belongs to one word with such characters before and behind it."""
    return _compiled(_LETTER).fullmatch(character) is not None


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """Where the sentences of a line begin, and where they end: behind a mark of its end that a
    blank and then a capital letter, a number or a quotation mark follow, and at the line's end."""
    for match in _compiled(_SENTENCE).finditer(text):
        yield match.span()


_SENTENCE = r"\S.*?(?:[.!?][\"'\u201d)]*(?=\s+[\p{Lu}\p{N}\"'\u201c(])|$)"
