"""Which sections share the words of a question: what a reader needs to read of much text."""

import math
from collections import Counter
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from fairseq_clusterformer.data.unicode import READ_FORM, composed

from .found import WORD, Section

STEM = 5  # letters that make two words one: "builds" and "building"
SATURATION, BY_LENGTH = 1.2, 0.75  # k1 and b


class WordCounts:
    """The words of sections, counted once for each section as long as it is there."""

    def __init__(self) -> None:
        self._counts: WeakKeyDictionary[Section, Counter] = WeakKeyDictionary()

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
        lengths = [count.total() for count in counts]
        mean = max(1.0, sum(lengths) / len(lengths))
        scores = [0.0] * len(sections)
        for word in _stems(question):
            having = [place for place, count in enumerate(counts) if word in count]
            rare = math.log(1 + (len(sections) - len(having) + 0.5) / (len(having) + 0.5))
            for place in having:
                number = counts[place][word]
                length = 1 - BY_LENGTH + BY_LENGTH * lengths[place] / mean
                scores[place] += rare * number / (number + SATURATION * length)
        if not any(scores):
            return list(range(len(sections)))
        best = sorted(range(len(sections)), key=lambda place: -scores[place])[:most]
        return sorted(best)

    def _of(self, section: Section) -> Counter:
        if section not in self._counts:
            counted: Counter = Counter()
            starts, ends = section.document.characters
            for _, text, tokens in section.paragraphs():
                own = slice(tokens.start, tokens.stop)
                of_text = starts[own] >= 0
                if of_text.any():  # a piece of a paragraph has some of its text alone
                    first, last = starts[own][of_text].min(), ends[own].max()
                    counted.update(_stems(text[first:last]))
            self._counts[section] = counted
        return self._counts[section]


def _stems(text: str) -> Counter:
    found = WORD.finditer(composed(text, READ_FORM))
    return Counter(match[0].lower()[:STEM] for match in found)
