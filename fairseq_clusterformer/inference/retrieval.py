"""Which passages of documents a reader reads for a question, by their words and their meaning."""

from collections.abc import Callable, Sequence

import bm25s
import numpy as np
from torch import Tensor

from fairseq_clusterformer.data.unicode import READ_FORM, composed

from .found import WORD
from .sections import Section

STEM = 5  # letters that make two words one: "builds" and "building"
SATURATION, BY_LENGTH = 1.2, 0.75  # k1 and b
RANKS = 60  # of reciprocal rank fusion


class Passages:
    """Sections of documents, and how relevant each is to a question.

    By words, sections are ranked by BM25 (Robertson and Zaragoza 2009), where a word is its first
    letters. Words that every section has weigh next to nothing, so there is no list of stop words.
    By meaning, they are ranked by the cosine of sentence vectors.

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
        self._words = bm25s.BM25(k1=SATURATION, b=BY_LENGTH)
        if self.sections:
            self._words.index([_stems(section.text) for section in sections], show_progress=False)
        if encode is not None and self.sections:
            self._vectors = np.concatenate([part.float().numpy() for part in vectors])
            self._first = np.cumsum([0, *map(len, vectors[:-1])])

    def __len__(self) -> int:
        return len(self.sections)

    def words(self, question: str) -> np.ndarray:
        """How relevant the sections are by their words, from 0, float32 [sections]."""
        vocabulary = self._words.vocab_dict if self.sections else {}
        known = [stem for stem in _stems(question) if stem in vocabulary]
        return self._words.get_scores(known) if known else np.zeros(len(self), np.float32)

    def likeness(self, question: str) -> np.ndarray:
        """How like the question the most similar part of each section is, -1 to 1; 0 without
        vectors, float32 [sections]."""
        if self._encode is None:
            return np.zeros(len(self), np.float32)
        return np.maximum.reduceat(self._vectors @ self._encode(question).numpy(), self._first)

    def likeliest(self, words: np.ndarray, likeness: np.ndarray, most: int) -> list[int]:
        """The places of the most relevant sections, in their order.

        Both ranks count, by reciprocal rank fusion (Cormack et al. 2009).

        Args:
            words, likeness: of a question.
            most: sections to name; all, if there are no more, or if none is relevant (as by words
                in a script without blanks).
        """
        known = [relevance for relevance in (words, likeness) if relevance.any()]
        if len(self) <= most or not known:
            return list(range(len(self)))
        ranks = [np.argsort(np.argsort(-each, kind="stable")) for each in known]
        return sorted(np.argsort(-sum(1 / (RANKS + r) for r in ranks), kind="stable")[:most])


def _stems(text: str) -> list[str]:
    found = WORD.finditer(composed(text, READ_FORM))
    return [match[0].lower()[:STEM] for match in found]
