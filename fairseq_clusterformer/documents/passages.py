"""Which passages of documents a reader reads for a question, by their words and their meaning."""

import logging
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache

import bm25s
import numpy as np
import regex

from fairseq_clusterformer.data.characters import READ_FORM, composed

from .sections import Section
from .sentences import SentenceEncoder
from .texts import visible

logging.getLogger("bm25s").setLevel(logging.WARNING)  # it tells each step

RANKS = 60  # of reciprocal rank fusion
STEM = 5  # letters that make two words one: "builds" and "building"
# Numbers with their points, initials with theirs, and words with apostrophes except for an 's. In
# scripts that put no blanks between words, each letter is one.
WORD = regex.compile(
    r"(?V1)\d+(?:[.,]\d+)+|\b(?:\p{L}\.){2,}"
    r"|[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
    r"|[\w--[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]]+"
    r"(?:['\u2019](?!s\b)\p{L}+)*"
)


class Passages:
    """Sections of documents, and how relevant each is to a question.

    By words, they are ranked by BM25 (Robertson and Zaragoza 2009), in which words that every
    section has weigh next to nothing, and by meaning by the cosine of an encoder's vectors.

    Args:
        sections: those of one document together and in their order.
        encoder: None: words alone.
    """

    def __init__(
        self, sections: Sequence[Section], encoder: SentenceEncoder | None = None
    ) -> None:
        self.sections, self._encoder = [*sections], encoder if sections else None
        if self._encoder:
            vectors = encoder.of_sections(sections)
            self._vectors = np.concatenate(vectors)
            self._first = np.cumsum([0, *map(len, vectors[:-1])])

    def __len__(self) -> int:
        return len(self.sections)

    def likeness(self, text: str) -> np.ndarray:
        """The cosine of each section, by its most similar part, with a text, float32 [S]."""
        cosines = self._vectors @ self._encoder.of_question(text)
        return np.maximum.reduceat(cosines, self._first)

    def likeliest(self, question: str, most: int) -> list[tuple[int, float, float]]:
        """The places of the `most` most relevant sections, in their order, each with its relevance
        by words (from 0) and by meaning (up to 1; 0 without an encoder). Both ranks count, by
        reciprocal rank fusion (Cormack et al. 2009). The first ones, if none is relevant."""
        words = self.by_words(question)
        likeness = self.likeness(question) if self._encoder else np.zeros(len(self))
        ranks = [np.argsort(np.argsort(-x, kind="stable")) for x in (words, likeness) if x.any()]
        order = np.argsort(-sum(1 / (RANKS + rank) for rank in ranks), kind="stable")
        chosen = sorted(order[:most]) if ranks else range(min(most, len(self)))
        return [(int(place), float(words[place]), float(likeness[place])) for place in chosen]

    def by_words(self, question: str) -> np.ndarray:
        """How relevant each section is by its words, from 0, float32 [S]."""
        found, (known, weights) = np.zeros(len(self), np.float32), self._words
        for word in (known[stem] for stem in stems(question) if stem in known):
            own = slice(*weights["indptr"][word : word + 2])
            found[weights["indices"][own]] += weights["data"][own]
        return found

    @cached_property
    def _words(self) -> tuple[dict[str, int], dict[str, np.ndarray]]:
        """The numbers of words, and how they weigh: a sparse matrix, by words."""
        known: dict[str, int] = {}
        ids = [
            np.array([known.setdefault(stem, len(known)) for stem in stems(each.text)], np.int32)
            for each in self.sections
        ]
        made = bm25s.BM25(k1=1.2, b=0.75)
        if known:  # it divides by the number of words
            made.index((ids, known), create_empty_token=False, show_progress=False)
        return known, made.scores if known else {}


def stems(text: str) -> Iterator[str]:
    """The words of a text, cut to their stems; one with digits stays whole."""
    return (_stem(match[0]) for match in WORD.finditer(composed(visible(text), READ_FORM)))


@lru_cache(1 << 16)
def _stem(word: str) -> str:
    word = word.lower().replace(".", "") if word[:1].isalpha() else word.lower()
    return word if any(map(str.isdigit, word)) else word[:STEM]
