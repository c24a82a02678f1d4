"""Which passages of documents a reader reads for a question, by their words and their meaning.

Words are ranked by BM25 of bm25s, which an index keeps by a hash of what was ranked: what has
changed is made anew.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import bm25s
import numpy as np
import regex
import torch
from torch import Tensor

from fairseq_clusterformer.data.unicode import READ_FORM, composed
from fairseq_clusterformer.errors import UserError

from .index import Index
from .sections import Section
from .texts import visible

logger = logging.getLogger(__name__)
logging.getLogger("bm25s").setLevel(logging.WARNING)  # it tells each step

OWNER = b"words"  # of what an index keeps of them
RANKS = 60  # of reciprocal rank fusion
STEM = 5  # letters that make two words one: "builds" and "building"
_WEIGHING = {"k1": 1.2, "b": 0.75}
_SCORES = ("indptr", "indices", "data")  # of bm25s: a sparse matrix, by words
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

    By words, sections are ranked by BM25 (Robertson and Zaragoza 2009), and by meaning by the
    cosine of sentence vectors. Words that every section has weigh next to nothing, so there is no
    list of stop words.

    Args:
        sections: those of one document together and in their order.
        vectors: of each section, [parts, D] of length 1; none: words alone.
        encode: makes the vector [D] of a question.
        index: keeps what is made of the words; None: none does.
    """

    def __init__(
        self,
        sections: Sequence[Section],
        vectors: Sequence[Tensor] = (),
        encode: Callable[[str], Tensor] | None = None,
        index: Index | None = None,
    ) -> None:
        self.sections, self._encode, self._index = [*sections], encode, index
        self._words: dict[str, np.ndarray] = {}
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
        vectors). The first ones, if none is relevant.

        Both ranks count, by reciprocal rank fusion (Cormack et al. 2009).
        """
        words, likeness = self.by_words(question), np.zeros(len(self))
        if self._encode is not None and self.sections:
            likeness = self._likeness(question)
        ranks = [np.argsort(np.argsort(-x, kind="stable")) for x in (words, likeness) if x.any()]
        order = np.argsort(-sum(1 / (RANKS + rank) for rank in ranks), kind="stable")
        chosen = sorted(order[:most]) if ranks else range(min(most, len(self)))
        return [(int(place), float(words[place]), float(likeness[place])) for place in chosen]

    def by_words(self, question: str) -> np.ndarray:
        """How relevant each section is by its words, from 0, float32 [S]."""
        found = np.zeros(len(self), np.float32)
        if self.sections:
            self.index_words()
            firsts, sections, scores = (self._words[name] for name in _SCORES)
            for word in (self._known[stem] for stem in stems(question) if stem in self._known):
                own = slice(firsts[word], firsts[word + 1])
                found[sections[own]] += scores[own]
        return found

    def index_words(self) -> None:
        """Weigh the words of the sections, once, when this is first called."""
        if self._words:
            return
        key = self._hash() if self._index else b""
        kept = self._index.get([key]) if self._index else {}
        made = kept.get(key) or self._made()
        if self._index and not kept:
            try:
                self._index.replace(OWNER, key, made)
            except UserError as error:  # where nobody may write
                logger.warning("%s; words are indexed again", error)
        self._words = {name: value.numpy() for name, value in made.items()}
        words = json.loads(self._words["words"].tobytes())
        self._known = {word: number for number, word in enumerate(words)}

    def _made(self) -> dict[str, Tensor]:
        known: dict[str, int] = {}
        ids = [
            np.array([known.setdefault(stem, len(known)) for stem in stems(each.text)], np.int32)
            for each in self.sections
        ]
        made = bm25s.BM25(**_WEIGHING)
        if not known:  # it divides by the number of words
            known, ids = {"": 0}, [np.zeros(1, np.int32), *ids[1:]]
        made.index((ids, known), create_empty_token=False, show_progress=False)
        words = torch.frombuffer(bytearray(json.dumps([*known]).encode()), dtype=torch.uint8)
        return {name: torch.from_numpy(made.scores[name]) for name in _SCORES} | {"words": words}

    def _hash(self) -> bytes:
        """Of the texts of sections, and of how their words are weighed."""
        found = hashlib.sha256(f"{bm25s.__version__} {_WEIGHING} {WORD.pattern} {STEM}".encode())
        for section in self.sections:
            text = section.text.encode(errors="surrogatepass")
            found.update(len(text).to_bytes(8) + text)
        return found.digest()


def stems(text: str) -> Iterator[str]:
    """The words of a text, cut to their stems; one with digits stays whole."""
    return (_stem(match[0]) for match in WORD.finditer(composed(visible(text), READ_FORM)))


@lru_cache(1 << 16)
def _stem(word: str) -> str:
    word = word.lower().replace(".", "") if word[:1].isalpha() else word.lower()
    return word if any(map(str.isdigit, word)) else word[:STEM]
