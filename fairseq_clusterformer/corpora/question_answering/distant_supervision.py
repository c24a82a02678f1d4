"""Distant supervision: find the places of answers, where a corpus gives only their text. Not
every place that is found answers the question."""

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache

from fairseq_clusterformer.data.characters import places_of_names

from .records import GoldAnswer, Mention, Paragraph, Record, Sentence, Unusable


def find_answers(texts: Iterable[str], paragraphs: Iterable[str]) -> tuple[GoldAnswer, ...]:
    """Return every place where one of `texts` stands in the paragraphs. Whole words are compared,
    without regard to case, marks such as accents, punctuation and white space. Of places that
    start together the longest is kept."""
    wanted = defaultdict(set)  # by the first word
    for text in texts:
        if words := _words(text)[0]:
            wanted[words[0]].add(words)
    found = []
    for index, paragraph in enumerate(paragraphs):
        words, places = _words(paragraph)
        for i, word in enumerate(words):
            if here := [len(w) for w in wanted.get(word, ()) if words[i : i + len(w)] == w]:
                start, end = places[i][0], places[i + max(here) - 1][1]
                found.append(GoldAnswer(index, start, end, paragraph[start:end]))
    return tuple(found)


def in_sentences(
    answers: Sequence[GoldAnswer], sentences: Sequence[Sentence]
) -> tuple[GoldAnswer, ...]:
    """Return the answers that lie in one of some sentences; all if none does."""
    inside = [
        one
        for one in answers
        for number, start, end in sentences
        if number == one.paragraph and start <= one.start and one.end <= end
    ]
    return tuple(dict.fromkeys(inside) or answers)


def mentions_of(
    id_: str, candidates: Sequence[str], paragraphs: Sequence[str]
) -> tuple[Mention, ...]:
    """Return the places of each candidate, as `find_answers`; they may overlap those of another.
    Raises `Unusable` if there is no candidate."""
    if not candidates or not all(isinstance(text, str) for text in candidates):
        raise Unusable("no candidates", f"question {id_}")
    return tuple(
        Mention(number, place.paragraph, place.start, place.end)
        for number, text in enumerate(candidates)
        for place in find_answers([text], paragraphs)
    )


def distant_record(
    id_: str,
    question: str,
    paragraphs: Iterable[Paragraph],
    names: Iterable[str],
    *,
    texts: Iterable[str] | None = None,
) -> Record:
    """Return a record whose spans are the places of an answer's `names`; one must be given.
    `texts` are the accepted answers, where they differ from the `names`."""
    names = [name for name in dict.fromkeys(names) if isinstance(name, str) and name.strip()]
    if not names:
        raise Unusable("no answer")
    paragraphs = tuple(paragraphs)
    texts = tuple(dict.fromkeys(names if texts is None else texts))
    found = find_answers(names, [part.text for part in paragraphs])
    return Record(id_, question, paragraphs, found, texts)


@lru_cache(256)  # each candidate is searched in the same paragraphs
def _words(text: str) -> tuple[tuple[str, ...], list[tuple[int, int]]]:
    """Folded words, and their characters [start, end)."""
    places = list(places_of_names(text))
    return tuple(_fold(text[start:end]) for start, end in places), places


@lru_cache(1 << 18)
def _fold(word: str) -> str:
    decomposed = unicodedata.normalize("NFKD", word).casefold()
    return "".join(char for char in decomposed if not unicodedata.combining(char))
