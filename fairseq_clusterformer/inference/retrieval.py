"""Which sections share the words of a question: what a reader needs to read of much text."""

import math
from collections import Counter
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from fairseq_clusterformer.data.unicode import READ_FORM, composed

from .found import WORD
from .sections import Section

STEM = 5  # letters that make two words one: "builds" and "building"
SATURATION, BY_LENGTH = 1.2, 0.75  # k1 and b


class WordCounts:
    """The words of sections, counted once for each section as long as it is there."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}  # of all words
        # of each section its words' numbers, and how often it has each, int32 [2, n]
        self._counts: WeakKeyDictionary[Section, np.ndarray] = WeakKeyDictionary()

    def likeliest(self, question: str, sections: Sequence[Section], most: int) -> list[int]:
        """The places of the sections that share most with a question, in their order.

        Sections are ranked by BM25 (Robertson and Zaragoza 2009), where a word is its first
        letters. Words that every section has weigh next to nothing, so there is no list of stop
        words.

        Args:
            most: sections to name; all, if there are no more, or if none shares a word with the
                question (as in a script without blanks).
        """
        if len(sections) <= most:
            return list(range(len(sections)))
        counts = [self._of(section) for section in sections]
        lengths = np.array([own[1].sum() for own in counts])
        by_length = 1 - BY_LENGTH + BY_LENGTH * lengths / max(1.0, lengths.mean())
        scores = np.zeros(len(sections))
        for word in _stems(question):
            number = self._numbers.get(word, -1)
            own = np.array([times[numbers == number].sum() for numbers, times in counts])
            having = np.count_nonzero(own)
            rare = math.log(1 + (len(sections) - having + 0.5) / (having + 0.5))
            scores += rare * own / (own + SATURATION * by_length)
        if not scores.any():
            return list(range(len(sections)))
        return sorted(np.argsort(-scores, kind="stable")[:most].tolist())

    def _of(self, section: Section) -> np.ndarray:
        if section not in self._counts:
            counted: Counter = Counter()
            for piece in section.pieces:
                text = section.source.paragraphs[piece.number]
                counted.update(_stems(text[piece.start : piece.end]))
            numbers = [self._numbers.setdefault(word, len(self._numbers)) for word in counted]
            self._counts[section] = np.array([numbers, [*counted.values()]], np.int32)
        return self._counts[section]


def _stems(text: str) -> Counter:
    found = WORD.finditer(composed(text, READ_FORM))
    return Counter(match[0].lower()[:STEM] for match in found)
