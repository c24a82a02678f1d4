"""Which passages of documents a reader reads for a question, by their words and their meaning."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from .sections import Section
from .word_index import WordIndex

RANKS = 60  # of reciprocal rank fusion


class Passages:
    """Sections of documents, and how relevant each is to a question.

    By words, sections are ranked by BM25, and by meaning by the cosine of sentence vectors.

    Args:
        sections: those of one document together and in their order.
        vectors: of each section, [parts, D] of length 1; none: words alone.
        encode: makes the vector [D] of a question.
        folder: an index, which keeps what is made of the words; None: none does.
    """

    def __init__(
        self,
        sections: Sequence[Section],
        vectors: Sequence[Tensor] = (),
        encode: Callable[[str], Tensor] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.sections, self._encode, self._folder = [*sections], encode, folder
        self._words: WordIndex | None = None
        if len(vectors):
            self._vectors = np.concatenate([part.float().numpy() for part in vectors])
            self._first = np.cumsum([0, *map(len, vectors[:-1])])

    def __len__(self) -> int:
        return len(self.sections)

    def index_words(self) -> WordIndex:
        """The words of the sections, indexed once, when this is first called."""
        if self._words is None:
            self._words = WordIndex(self.sections, self._folder)
        return self._words

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
        words, likeness = self.index_words().scores(question), np.zeros(len(self))
        if self._encode is not None and self.sections:
            likeness = self._likeness(question)
        ranks = [np.argsort(np.argsort(-x, kind="stable")) for x in (words, likeness) if x.any()]
        chosen = range(len(self))
        if len(self) > most and ranks:
            chosen = sorted(np.argsort(-sum(1 / (RANKS + r) for r in ranks), kind="stable")[:most])
        return [(int(place), float(words[place]), float(likeness[place])) for place in chosen]
