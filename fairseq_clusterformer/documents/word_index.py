"""BM25 of sections by their words, made at once or taken from an index.

An index keeps that of the sections that were last asked, in one file. Its metadata has a hash of
their texts, in their order, and of how words are weighed: for others, the file is written anew. A
checksum tells what has been damaged or edited.
"""

import hashlib
import logging
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import bm25s
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fairseq_clusterformer.data.unicode import READ_FORM, composed
from fairseq_clusterformer.outputs import replaced

from .found import WORD
from .index import DAMAGE, reject
from .sections import Section

logger = logging.getLogger(__name__)
logging.getLogger("bm25s").setLevel(logging.WARNING)  # it tells each step

FILE = "words.safetensors"
STEM = 5  # letters that make two words one: "builds" and "building"
_WEIGHING = {"k1": 1.2, "b": 0.75}
_FORMAT = "1"  # of a file, and of what a word is: with another one, older files are not used
_ARRAYS = ("weights", "places", "starts", "words")


class WordIndex:
    """How relevant sections are to a question, by BM25 (Robertson and Zaragoza 2009).

    A word is its first letters; one with digits stays whole. Words that every section has weigh
    next to nothing, so there is no list of stop words.

    Args:
        sections: of documents, in the order in which scores are wanted.
        folder: an index that has this, or shall keep it; None: none does.
    """

    def __init__(self, sections: Sequence[Section], folder: Path | None = None) -> None:
        self._number = len(sections)
        self._words: dict[str, int] = {}
        # weights, places, starts: word i weighs weights[j] in section places[j], where j is from
        # starts[i] on and before starts[i + 1]
        self._matrix = [*np.zeros((3, 0))]
        if folder is None:
            self._make(sections)
            return
        file, content = folder / FILE, _hash(sections)
        if not self._load(file, content):
            self._make(sections)
            self._keep(file, content)

    def scores(self, question: str) -> np.ndarray:
        """Of each section, from 0, float32 [S]."""
        scores = np.zeros(self._number, dtype=np.float32)
        weights, places, starts = self._matrix
        for word in stems(question):
            if (i := self._words.get(word)) is not None:
                own = slice(*starts[i : i + 2])
                scores[places[own]] += weights[own]
        return scores

    def _make(self, sections: Sequence[Section]) -> None:
        # lists of strings would take twenty times the memory of the text
        known: dict[str, int] = {}
        ids = [
            array("i", (known.setdefault(stem, len(known)) for stem in stems(section.text)))
            for section in sections
        ]
        if known:
            made = bm25s.BM25(**_WEIGHING, csc_backend="auto")
            made.index((ids, known), create_empty_token=False, show_progress=False)
            self._words = known
            self._matrix = [made.scores[name] for name in ("data", "indices", "indptr")]

    def _load(self, file: Path, content: str) -> bool:
        """Take it from a file, if it is there and of this content."""
        try:
            with safe_open(file, "np") as tensors:
                about = tensors.metadata()
                if about["content"] != content:
                    return False
                arrays = {name: tensors.get_tensor(name) for name in _ARRAYS}
            if _checksum(arrays) != about["checksum"]:
                raise ValueError("it has another checksum")
        except FileNotFoundError:
            return False
        except (*DAMAGE, LookupError) as error:
            reject(file, error)
            return False
        *self._matrix, words = arrays.values()
        self._words = {word: i for i, word in enumerate(words.tobytes().decode().split())}
        return True

    def _keep(self, file: Path, content: str) -> None:
        """Write it whole or not at all. Where nobody may write, it is made again each time."""
        words = np.frombuffer("\n".join(self._words).encode(), dtype=np.uint8)
        arrays = dict(zip(_ARRAYS, (*self._matrix, words), strict=True))
        try:
            with replaced(file) as new:
                save_file(arrays, new, {"content": content, "checksum": _checksum(arrays)})
        except (OSError, SafetensorError) as error:
            logger.warning("%s cannot be written (%s): words are indexed again", file, error)


def _hash(sections: Iterable[Section]) -> str:
    """Of the texts of sections, and of how their words are weighed."""
    found = hashlib.sha256(f"{_FORMAT} {bm25s.__version__} {_WEIGHING} {STEM}".encode())
    for section in sections:
        text = section.text.encode(errors="surrogatepass")
        found.update(len(text).to_bytes(8))
        found.update(text)
    return found.hexdigest()


def _checksum(arrays: dict[str, np.ndarray]) -> str:
    found = 0
    for numbers in arrays.values():
        found = zlib.crc32(numbers, found)
    return str(found)


def stems(text: str) -> Iterator[str]:
    """The words of a text, cut to their stems."""
    return (_stem(match[0]) for match in WORD.finditer(composed(text, READ_FORM)))


@lru_cache(1 << 16)
def _stem(word: str) -> str:
    word = word.lower()
    return word if any(map(str.isdigit, word)) else word[:STEM]
