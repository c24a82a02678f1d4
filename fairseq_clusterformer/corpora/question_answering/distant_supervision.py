"""Distant supervision: find the places of answers, where a corpus gives only their text.

Not every place that is found answers the question. A record whose answer is not found is dropped
from training data; ``keep_unfound`` keeps it, without a span, to score predictions.
"""

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from fairseq_clusterformer.corpora.question_answering.records import (
    GoldAnswer,
    Mention,
    Paragraph,
    Record,
    Unusable,
)

if TYPE_CHECKING:
    import regex


def find_answers(
    texts: Iterable[str], paragraphs: Sequence[Paragraph], among: Iterable[int] | None = None
) -> tuple[GoldAnswer, ...]:
    """Return every place where one of `texts` stands in the paragraphs (or those `among` them).

    Whole words are compared, without regard to case, marks such as accents, punctuation and white
    space. A place reaches from the first word's start to the last word's end; of places that
    start together the longest is kept.
    """
    wanted = defaultdict(set)
    for text in texts:
        if words := tuple(word for word, _, _ in _words(text)):
            wanted[words[0]].add(words)
    found = []
    for index in range(len(paragraphs)) if among is None else sorted(set(among)):
        text = paragraphs[index].text
        words = _words(text)
        plain = [word for word, _, _ in words]
        for i, word in enumerate(plain):
            matches = [w for w in wanted.get(word, ()) if tuple(plain[i : i + len(w)]) == w]
            if matches:
                start, end = words[i][1], words[i + max(map(len, matches)) - 1][2]
                found.append(GoldAnswer(index, start, end, text[start:end]))
    return tuple(found)


def mentions_of(
    id_: str,
    candidates: Sequence[str],
    paragraphs: Sequence[Paragraph],
    *,
    keep_unfound: bool = False,
) -> tuple[Mention, ...]:
    """Return the places of each candidate on its own, as :func:`find_answers`; they may overlap
    those of another.

    Args:
        id_: of the question.
        keep_unfound: some candidates may stand nowhere.

    Raises:
        Unusable: if there is none, or one stands nowhere.
    """
    if not candidates or not all(isinstance(text, str) for text in candidates):
        raise Unusable("no candidates", f"question {id_}")
    mentions = []
    for number, text in enumerate(candidates):
        places = find_answers([text], paragraphs)
        if not places and not keep_unfound:
            raise Unusable("a candidate that no mention links", f"{text!r} of question {id_}")
        mentions += [Mention(number, place.paragraph, place.start, place.end) for place in places]
    return tuple(mentions)


def distant_record(
    id_: str,
    question: str,
    paragraphs: Iterable[Paragraph],
    names: Iterable[str],
    *,
    keep_unfound: bool = False,
    texts: Iterable[str] | None = None,
    supporting: tuple[int, ...] = (),
) -> Record:
    """Return a record whose spans are the places of an answer's `names`.

    Args:
        keep_unfound: return a record even if no place is found.
        texts: the accepted answers, where they differ from the `names`.
        supporting: paragraphs to search first; the others are searched if nothing is found.

    Raises:
        Unusable: if there is no name, or no place.
    """
    names = [name for name in dict.fromkeys(names) if isinstance(name, str) and name.strip()]
    if not names:
        raise Unusable("no answer")
    paragraphs = tuple(paragraphs)
    answers = find_answers(names, paragraphs, supporting) if supporting else ()
    answers = answers or find_answers(names, paragraphs)
    texts = tuple(dict.fromkeys(texts if texts is not None else names))
    record = Record(id_, question, paragraphs, answers, texts, long_answers=supporting)
    if not answers and not keep_unfound:
        raise Unusable("answer not found", f"{names[0]!r} is in no paragraph of question {id_}")
    return record


@cache
def _word() -> "regex.Pattern":
    """A word of letters, digits and their marks, or one symbol ($, +, =); no punctuation."""
    import regex  # takes too long for --help

    return regex.compile(r"[\p{L}\p{N}][\p{L}\p{N}\p{M}\u200C\u200D]*|[\p{Sc}\p{Sm}\p{So}]")


def _words(text: str) -> list[tuple[str, int, int]]:
    """Return the folded words with their characters [start, end)."""
    return [(_fold(match[0]), *match.span()) for match in _word().finditer(text)]


@lru_cache(1 << 18)
def _fold(word: str) -> str:
    """Return a word in lower case and without marks."""
    decomposed = unicodedata.normalize("NFKD", word).casefold()
    return "".join(char for char in decomposed if not unicodedata.combining(char))
