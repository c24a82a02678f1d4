"""Which passages of documents a reader reads for a question, by their words and their meaning."""

import logging
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import bm25s
import numpy as np
from torch import Tensor

from fairseq_clusterformer.data.unicode import READ_FORM, composed

from .found import WORD
from .sections import Section

logging.getLogger("bm25s").setLevel(logging.WARNING)  # it tells each step

STEM = 5  # letters that make two words one: "builds" and "building"
RANKS = 60  # of reciprocal rank fusion


class Passages:
    """Sections of documents, and how relevant each is to a question.

    By words, sections are ranked by BM25 (Robertson and Zaragoza 2009), where a word is its first
    letters; one with digits stays whole. Words that every section has weigh next to nothing, so
    there is no list of stop words. By meaning, they are ranked by the cosine of sentence vectors.

    Args:
        sections: those of one document together and in their order.
        vectors: of each section, [parts, D] of length 1; none: words alone.
        encode: makes the vector [D] of a question.
    """

    def __init__(
        self,
        sections: Sequence[Section],
        vectors: Sequence[Tensor] = (),
        encode: Callable[[str], Tensor] | None = None,
    ) -> None:
        self.sections, self._encode = [*sections], encode
        self._words = bm25s.BM25(k1=1.2, b=0.75, csc_backend="auto")
        # lists of strings would take twenty times the memory of the text
        known: dict[str, int] = {}
        ids = [
            array("i", (known.setdefault(stem, len(known)) for stem in _stems(section.text)))
            for section in sections
        ]
        if known:
            self._words.index((ids, known), show_progress=False)
        if len(vectors):
            self._vectors = np.concatenate([part.float().numpy() for part in vectors])
            self._first = np.cumsum([0, *map(len, vectors[:-1])])

    def __len__(self) -> int:
        return len(self.sections)

    def nearest(self, sentence: str, most: int) -> list[tuple[int, float]]:
        """The places of the sections most like a sentence, best first, each with the cosine."""
        likeness = self._likeness(sentence)
        best = np.argsort(-likeness, kind="stable")[:most]
        return [(int(place), float(likeness[place])) for place in best]

    def _likeness(self, text: str) -> np.ndarray:
        """Of each section, that of its most similar part."""
        cosines = self._vectors @ self._encode(text).numpy()
        return np.maximum.reduceat(cosines, self._first)

    def likeliest(self, question: str, most: int) -> list[tuple[int, float, float]]:
        """The places of the `most` most relevant sections, in their order, each with its relevance
        by words (from 0) and by meaning (that of its most similar part, up to 1; 0 without
        vectors). All, if there are no more, or if none is relevant (as by words in a script
        without blanks).

        Both ranks count, by reciprocal rank fusion (Cormack et al. 2009).
        """
        words, likeness = np.zeros((2, len(self)))
        vocabulary = getattr(self._words, "vocab_dict", {})  # none without a word
        if known := [stem for stem in _stems(question) if stem in vocabulary]:
            words = self._words.get_scores(known)
        if self._encode is not None and self.sections:
            likeness = self._likeness(question)
        ranks = [np.argsort(np.argsort(-x, kind="stable")) for x in (words, likeness) if x.any()]
        chosen = range(len(self))
        if len(self) > most and ranks:
            chosen = sorted(np.argsort(-sum(1 / (RANKS + r) for r in ranks), kind="stable")[:most])
        return [(int(place), float(words[place]), float(likeness[place])) for place in chosen]


def _stems(text: str) -> Iterator[str]:
    return (_stem(match[0]) for match in WORD.finditer(composed(text, READ_FORM)))


@lru_cache(1 << 16)
def _stem(word: str) -> str:
    word = word.lower()
    return word if any(map(str.isdigit, word)) else word[:STEM]
