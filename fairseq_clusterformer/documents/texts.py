"""Texts without what is not seen, and plain text in paragraphs."""

from collections.abc import Iterable, Iterator

import regex

BLANK_LINE = regex.compile(r"\n\s*\n|\f")
_BLANKS = regex.compile(r"\s+")
# Soft hyphens, joiners, marks of order. Joiners and selectors of a form mean something in Arabic
# and Indic scripts and in emoji, so they go behind others alone.
_NO_WIDTH = regex.compile(
    r"(?V1)\u00ad\n[ \t]*"  # where a word is broken
    r"|[[\p{Default_Ignorable_Code_Point}\ufff9-\ufffb]--[\u200c\u200d\ufe00-\ufe0f\u115f\u1160\u3164\uffa0]]"
    r"|(?<![^\s\p{L}\p{N}\p{P}]|[\p{Arabic}\p{Syriac}\p{Mongolian}\p{InSC=Consonant}"
    r"\p{InSC=Virama}\p{InSC=Vowel_Dependent}\p{InSC=Nukta}\p{Han}])[\u200c\u200d\ufe00-\ufe0f]+"
)
_MARKS = regex.compile(r"(\p{M}{30})\p{M}+")  # normalisation takes quadratic time of a run
ABBREVIATION = (  # what a point behind does not end
    r"\b(?:Jr|Sr|Dr|Mr|Mrs|Ms|Prof|St|Mt|Ft|Gen|Col|Lt|Sgt|Capt|Rev|Hon|Gov|Sen|Rep|Inc|Ltd"
    r"|Co|Corp|Bros|No|Nos|vs|Fig|Vol|pp|ca|bzw|Nr|Hr|Fr)"
)
#: where a sentence ends, and the next one begins
SENTENCE_END = regex.compile(
    rf"(?:(?<!\b\p{{L}}|{ABBREVIATION})\.|[!?\u2026])[\"')\]\u201d\u2019]*+\s+|[\u3002\uff01\uff1f]"
)
_WIDEST = 130  # characters of a line, where a paragraph has several
_LONGEST = 20_000  # characters of a paragraph
_LINE = regex.compile(r"\S[^\n]*")
_CLOSING = "\"')]\u201d\u2019"  # behind the end of a sentence


def visible(text: str) -> str:
    """A text without letters of no width, and with at most 30 marks on a letter (UAX 15)."""
    return _MARKS.sub(r"\1", _NO_WIDTH.sub("", text))


def clean(text: str) -> str:
    """A visible text in one line with single blanks."""
    return _BLANKS.sub(" ", visible(text)).strip()


def of_plain(text: str) -> Iterator[str]:
    """Paragraphs: what blank lines divide, and lines that are paragraphs themselves, as one is too
    long for a line, or three or more all end a sentence."""
    for block in BLANK_LINE.split(text):
        lines = [match[0].rstrip() for match in _LINE.finditer(block)]
        ends = all(line.rstrip(_CLOSING)[-1:] in (".", "!", "?", "\u2026") for line in lines)
        is_wide = any(len(line) > _WIDEST for line in lines)
        yield from lines if is_wide or (ends and len(lines) > 2) else [block]


def at_most(text: str, most: int = _LONGEST) -> Iterator[str]:
    """A text in pieces that are no longer than `most`: whole sentences, else words, else any."""
    start = 0
    while len(text) - start > most:
        ends = [found.end() for found in SENTENCE_END.finditer(text, start, start + most + 1)]
        end = ends[-1] if ends else text.rfind(" ", start + 1, start + most) + 1 or start + most
        yield text[start:end]
        start = end
    yield text[start:]


def paragraphs(texts: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Clean texts that are not empty, and their places; long ones in several."""
    cleaned = ((clean(text), place) for text, place in texts)
    return [(part.strip(), at) for text, at in cleaned if text for part in at_most(text)]
