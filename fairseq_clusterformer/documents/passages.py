"""Which passages of documents a reader reads for a question, by their words and their meaning.

Words are ranked by BM25 of bm25s, which an index keeps in a folder, with a hash of what was ranked
and checksums: what has changed, or was damaged or edited, is made anew.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import bm25s
import numpy as np
import regex
from torch import Tensor

from fairseq_clusterformer.data.unicode import READ_FORM, composed
from fairseq_clusterformer.errors import read_json

from .sections import Section
from .texts import visible

logger = logging.getLogger(__name__)
logging.getLogger("bm25s").setLevel(logging.WARNING)  # it tells each step

FOLDER = "words"
RANKS = 60  # of reciprocal rank fusion
STEM = 5  # letters that make two words one: "builds" and "building"
_WEIGHING = {"k1": 1.2, "b": 0.75}
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
        self._ranker: bm25s.BM25 | None = None
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
        known = self.index_words().vocab_dict if self.sections else {}
        asked = [stem for stem in stems(question) if stem in known]
        return self._ranker.get_scores(asked) if asked else np.zeros(len(self), np.float32)

    def index_words(self) -> bm25s.BM25:
        """The words of the sections, indexed once, when this is first called."""
        if self._ranker is None:
            content = self._hash() if self._folder else ""
            self._ranker = (self._folder and self._kept(content)) or self._made(content)
        return self._ranker

    def _made(self, content: str) -> bm25s.BM25:
        known: dict[str, int] = {}
        ids = [
            np.array([known.setdefault(stem, len(known)) for stem in stems(each.text)], np.int32)
            for each in self.sections
        ]
        made = bm25s.BM25(**_WEIGHING)
        if not known:  # it divides by the number of words
            known, ids = {"": 0}, [np.zeros(1, np.int32), *ids[1:]]
        made.index((ids, known), create_empty_token=False, show_progress=False)
        if self._folder is not None:
            folder = self._folder / FOLDER
            try:
                made.save(folder, show_progress=False)
                about = {"content": content, "files": _checksums(folder)}
                (folder / "about").write_text(json.dumps(about))
            except OSError as error:  # where nobody may write, it is made each time
                logger.warning("%s cannot be written (%s): words are indexed again", folder, error)
        return made

    def _kept(self, content: str) -> bm25s.BM25 | None:
        """What an earlier run made of the same sections, if it is whole."""
        folder = self._folder / FOLDER
        try:
            about = read_json(folder / "about")
            if about["content"] != content:
                return None
            if about["files"] != _checksums(folder):
                raise ValueError("it has another checksum")
            return bm25s.BM25.load(folder)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError) as error:
            logger.warning("%s is damaged (%s): it is made anew", folder, error)
            return None

    def _hash(self) -> str:
        """Of the texts of sections, and of how their words are weighed."""
        found = hashlib.sha256(f"{bm25s.__version__} {_WEIGHING} {WORD.pattern} {STEM}".encode())
        for section in self.sections:
            text = section.text.encode(errors="surrogatepass")
            found.update(len(text).to_bytes(8) + text)
        return found.hexdigest()


def _checksums(folder: Path) -> dict[str, str]:
    files = sorted(folder.glob("*.index.*"))
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def stems(text: str) -> Iterator[str]:
    """The words of a text, cut to their stems; one with digits stays whole."""
    return (_stem(match[0]) for match in WORD.finditer(composed(visible(text), READ_FORM)))


@lru_cache(1 << 16)
def _stem(word: str) -> str:
    word = word.lower().replace(".", "") if word[:1].isalpha() else word.lower()
    return word if any(map(str.isdigit, word)) else word[:STEM]
