"""Distant supervision: find the places of answers, where a corpus gives only their text.

Not every place that is found answers the question. A record whose answer is not found is dropped
from training data; ``keep_unfound`` keeps it, without a span, to score predictions.
"""

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from fairseq_clusterformer.corpora.question_answering.records import (
    GoldAnswer,
    Mention,
    Paragraph,
    Record,
    Sentence,
    Unusable,
)
from fairseq_clusterformer.data.words import places_of_names

#: folded words, with their characters [start, end)
Words = list[tuple[str, int, int]]


def find_answers(
    texts: Iterable[str], paragraphs: Sequence[Paragraph], among: Iterable[int] | None = None
) -> tuple[GoldAnswer, ...]:
    """Return every place where one of `texts` stands in the paragraphs (or those `among` them).

    Whole words are compared, without regard to case, marks such as accents, punctuation and white
    space. A place reaches from the first word's start to the last word's end; of places that
    start together the longest is kept.
    """
    chosen = range(len(paragraphs)) if among is None else sorted(set(among))
    words = {index: _words(paragraphs[index].text) for index in chosen}
    return _places(texts, paragraphs, words, chosen)


def _places(
    texts: Iterable[str],
    paragraphs: Sequence[Paragraph],
    words_of: Mapping[int, Words] | Sequence[Words],
    among: Iterable[int],
) -> tuple[GoldAnswer, ...]:
    """As :func:`find_answers`, of paragraphs whose words are found already."""
    wanted = defaultdict(set)
    for text in texts:
        if words := _folded(_words(text)):
            wanted[words[0]].add(words)
    found = []
    for index in among:
        text, words = paragraphs[index].text, words_of[index]
        for i, (word, start, _) in enumerate(words):
            here = [w for w in wanted.get(word, ()) if _folded(words[i : i + len(w)]) == w]
            if here:
                end = words[i + max(map(len, here)) - 1][2]
                found.append(GoldAnswer(index, start, end, text[start:end]))
    return tuple(found)


def in_sentences(
    answers: Sequence[GoldAnswer], sentences: Sequence[Sentence]
) -> tuple[GoldAnswer, ...]:
    """Return the answers that lie in one of some sentences; all if none does."""
    inside = [
        answer
        for answer in answers
        if any(
            s.paragraph == answer.paragraph and s.start <= answer.start and answer.end <= s.end
            for s in sentences
        )
    ]
    return tuple(inside or answers)


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
    words = [_words(part.text) for part in paragraphs]
    for number, text in enumerate(candidates):
        places = _places([text], paragraphs, words, range(len(paragraphs)))
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


def _words(text: str) -> Words:
    """Return the folded words with their characters [start, end)."""
    return [(_fold(text[start:end]), start, end) for start, end in places_of_names(text)]


def _folded(words: Words) -> tuple[str, ...]:
    return tuple(word for word, _, _ in words)


@lru_cache(1 << 18)
def _fold(word: str) -> str:
    """Return a word in lower case and without marks."""
    decomposed = unicodedata.normalize("NFKD", word).casefold()
    return "".join(char for char in decomposed if not unicodedata.combining(char))
