"""What texts are made of: bytes, characters in one form of Unicode, words and sentences.

Texts become NFC before they become tokens, except by bytes. Readers of documents take NFKC, which
also undoes ligatures and full-width digits, and their offsets stay those of the original.
"""

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from unicodedata import combining, is_normalized, normalize

from fairseq_clusterformer.errors import read_json

from . import RECORD

if TYPE_CHECKING:
    import numpy as np

FORM, READ_FORM = "NFC", "NFKC"
#: what may change, and the letter before it, which a mark may join
_RUN = re.compile(r"[\x00-\x7f]?[^\x00-\x7f]+")

_SCRIPTS = ("Han", "Hiragana", "Katakana", "Thai", "Lao", "Khmer", "Myanmar")
#: letters of scripts that put no blanks between words, which stand for themselves, as a regular
#: expression writes them in brackets; the mark of long vowels is of no script
UNSPACED = "".join(rf"\p{{{script}}}" for script in _SCRIPTS) + "\u30fc\uff70"
_LETTER = rf"[[\p{{L}}\p{{M}}\p{{N}}]--[{UNSPACED}]]"
_NAME = rf"[[\p{{L}}\p{{N}}]--[{UNSPACED}]][{_LETTER}\u200C\u200D]*|[\p{{L}}\p{{N}}]\p{{M}}*"
_SENTENCE = r"\S.*?(?:[.!?][\"'\u201d)]*(?=\s+[\p{Lu}\p{N}\"'\u201c(])|$)"


@cache
def byte_symbols() -> list[str]:
    """Return the symbols of the 256 byte values: printable ASCII stands for itself, every other
    byte (the space too, which separates symbols in fairseq's files) for its two hex digits."""
    return [chr(byte) if 0x21 <= byte <= 0x7E else f"<{byte:02X}>" for byte in range(256)]


@cache
def letters_of_bytes() -> dict[str, int]:
    """The byte of each letter that stands for one, in byte-level models such as GPT-2's."""
    from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

    return {letter: byte for byte, letter in bytes_to_unicode().items()}


def form_of(folder: Path, default: str = FORM) -> str:
    """The form that a prepared folder or a bundle was trained with; older ones do not say it."""
    try:
        recipe = read_json(folder / RECORD)["recipe"]
        return str(recipe.get("unicode", default))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return default


def composed(text: str, form: str = FORM) -> str:
    """A text in a form of Unicode, "NFC" or "NFKC"; the same text in all others."""
    return normalize(form, text) if form in (FORM, READ_FORM) else text


def with_places(text: str, form: str) -> "tuple[str, np.ndarray, np.ndarray] | None":
    """A text in a form, and where each of its characters begins and ends in the original, int32
    [N]; None: it is in that form already."""
    if form not in (FORM, READ_FORM) or is_normalized(form, text):
        return None
    import numpy as np  # takes too long for --help

    cuts, parts, starts, ends = [0], [], [], []
    for run in _RUN.finditer(text):
        cuts.append(run.start())
        for place in range(run.start() + 1, run.end()):
            if not _joins(text, cuts[-1], place, form):
                cuts.append(place)
        cuts.append(run.end())
    for start, end in pairwise([*cuts, len(text)]):
        part = normalize(form, text[start:end])
        is_same = part == text[start:end]
        parts.append(part)
        starts.append(np.arange(start, end) if is_same else np.full(len(part), start))
        ends.append(np.arange(start + 1, end + 1) if is_same else np.full(len(part), end))
    return "".join(parts), *(np.concatenate(x).astype(np.int32) for x in (starts, ends))


def _joins(text: str, begin: int, place: int, form: str) -> bool:
    """Whether a letter may change with what stands before it, as marks and Hangul's parts do."""
    letter = text[place]
    if combining(normalize(form.replace("C", "D"), letter)[0]):  # such as U+0F73, of class 0
        return True
    before = text[begin:place]
    return normalize(form, before + letter) != normalize(form, before) + normalize(form, letter)


@cache
def compiled(pattern: str):
    import regex  # takes too long for --help

    return regex.compile(rf"(?V1){pattern}")


def words_of(text: str) -> list[str]:
    """The words of a text: runs of letters and digits, and every other visible character."""
    return compiled(rf"{_LETTER}+|[^\s\x1c-\x1f]").findall(text)


def places_of_names(text: str) -> Iterator[tuple[int, int]]:
    """Where the words and the symbols ($, +, =) of a text begin and end, without punctuation."""
    for match in compiled(rf"{_NAME}|[\p{{Sc}}\p{{Sm}}\p{{So}}]").finditer(text):
        yield match.span()


def joins(character: str) -> bool:
    """Whether a character belongs to one word with such characters before and behind it."""
    return compiled(_LETTER).fullmatch(character) is not None


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """Where the sentences of a line begin, and where they end: behind a mark of its end that a
    blank and then a capital letter, a number or a quotation mark follow, and at the line's end."""
    return (match.span() for match in compiled(_SENTENCE).finditer(text))
