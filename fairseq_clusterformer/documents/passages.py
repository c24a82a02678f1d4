"""Which passages of documents a reader reads for a question, by their words and their meaning.

The vectors of a pre-trained encoder are kept for the questions to come, in an index: one database
by keys. A key is a hash of the tokens that an encoder reads and of the encoder itself. So what has
changed is encoded anew, for another encoder all is, and nothing is written twice.
"""

import hashlib
import logging
import sqlite3
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import bm25s
import numpy as np
import regex
import torch
from fairseq.data import Dictionary
from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from fairseq_clusterformer.corpora.question_answering.encode import Pieces
from fairseq_clusterformer.data.characters import READ_FORM, composed
from fairseq_clusterformer.data.questions import framed
from fairseq_clusterformer.data.subwords import TOKENIZER, Subwords
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.models.clusterformer_masked_lm import ClusterformerMaskedLM
from fairseq_clusterformer.models.encoder import masked_mean
from fairseq_clusterformer.models.pretrained import load_pretrained, read_config

from .sections import Section, Splitter, together
from .sources import Source
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
FILE = "clusterformer-index.sqlite"
LONGEST = 254  # tokens of a part, as all-MiniLM-L6-v2 was trained
_IN_A_BATCH = 4096  # tokens
_AT_ONCE = 256  # sections that are encoded, and written, together


class Index:
    """Vectors by keys in a folder, which is made if need be; None: in a file that ends with it.
    Raises UserError: a folder that holds something else, or cannot be made; and both methods, if
    it cannot be read or written."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        try:
            if folder:
                folder.mkdir(parents=True, exist_ok=True)
                others = sorted(path.name for path in folder.iterdir())
                if others and FILE not in others:
                    raise self._unusable(f"holds {others[0]}, and is no index")
        except OSError as error:
            problem = "is a file" if folder.is_file() else f"cannot be made ({error.strerror})"
            raise self._unusable(problem) from None
        with self._used():
            place = folder / FILE if folder else ""
            self._database = sqlite3.connect(place, timeout=60, check_same_thread=False)
            form = "key BLOB PRIMARY KEY, value BLOB"
            self._database.execute(f"CREATE TABLE IF NOT EXISTS kept ({form})")

    def get(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """The values of those keys that are there."""
        query = "SELECT key, value FROM kept WHERE key = ?"
        with self._used():
            return dict(row for key in keys for row in self._database.execute(query, (key,)))

    def put(self, values: Iterable[tuple[bytes, bytes]]) -> None:
        """Keep values by their keys."""
        with self._used(), self._database as database:
            database.executemany("REPLACE INTO kept VALUES (?, ?)", values)

    @contextmanager
    def _used(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._unusable(f"cannot be used ({error})") from None

    def _unusable(self, problem: str) -> UserError:
        allowed = "a new or empty folder, or one that clusterformer has made as an index"
        return bad_option("--index", self._folder, allowed, problem)


class SentenceEncoder:
    """The mean of an encoder's states over the tokens of a text, scaled to length 1 (Reimers and
    Gurevych 2019); those of sections are kept in an index. The encoder is a folder of BERT's form
    with its ``tokenizer.json``, such as all-MiniLM-L6-v2. Raises UserError: a folder of another
    form, or with something missing; of sections, an index that cannot be used."""

    def __init__(
        self,
        folder: Path,
        index: Index,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._dictionary, self._index, self._device = Dictionary(), index, device
        try:
            _, sizes = read_config(folder, "--encoder")
            pieces = Subwords(folder / TOKENIZER)
            for symbol in pieces.symbols:
                self._dictionary.add_symbol(symbol)
            args = Namespace(**sizes, encoder_attention="full")
            most = sizes["window_positions"]
            words = {"source_dictionary": self._dictionary, "max_positions": lambda: most}
            model = ClusterformerMaskedLM.build_model(args, SimpleNamespace(**words))
            load_pretrained(model, str(folder), "--encoder")
        except (TypeError, ValueError) as error:
            raise UserError(str(error)) from None
        self._model = model.encoder.eval().to(device, dtype)
        hashed = hashlib.sha256(str(self._model).encode())
        for name, tensor in sorted(self._model.state_dict().items()):
            hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            hashed.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy())
        self._name, self._width = hashed.digest(), sizes["encoder_embed_dim"]
        self._longest = min(LONGEST, most - 3)
        self._pieces = Pieces(pieces, self._dictionary)

    def sections(self, source: Source) -> list[Section]:
        """A document in passages, each of one part; see `Splitter`."""
        return Splitter(self._pieces).sections(source, self._longest)

    def of_sections(self, sections: Sequence[Section]) -> list[np.ndarray]:
        """Vectors of each section, float32 [parts, D]: a long one has several parts."""
        keys = [
            hashlib.sha256(self._name + self._pieces.symbols(each.text).numpy().tobytes()).digest()
            for each in sections
        ]
        found = self._index.get(keys)
        pairs = zip(keys, sections, strict=True)
        absent = [*{key: section for key, section in pairs if key not in found}.items()]
        for first in range(0, len(absent), _AT_ONCE):
            some = absent[first : first + _AT_ONCE]
            parts = [self._parts(section.text) for _, section in some]
            made = self._vectors([*chain(*parts)]).split([*map(len, parts)])
            new = {key: x.numpy().tobytes() for (key, _), x in zip(some, made, strict=True)}
            self._index.put(new.items())
            found |= new
        return [np.frombuffer(found[key], np.float32).reshape(-1, self._width) for key in keys]

    def of_question(self, text: str) -> np.ndarray:
        """The vector [D] of a text, of which the beginning counts if it is long."""
        return self._vectors(self._parts(text)[:1])[0].numpy()

    def _parts(self, text: str) -> list[Tensor]:
        """The tokens of a text in parts of equal lengths."""
        tokens = self._pieces.symbols(text)
        return [*tokens.tensor_split(max(1, -(-len(tokens) // self._longest)))]

    @torch.no_grad()
    def _vectors(self, parts: Sequence[Tensor]) -> Tensor:
        """Of each part, float32 [parts, D] on the CPU."""

        def read(rows: list[Tensor]) -> Tensor:
            tokens = pad_sequence(rows, True, self._dictionary.pad()).to(self._device)
            states = self._model(tokens)["encoder_out"][0].transpose(0, 1)
            return normalize(masked_mean(states, tokens != self._dictionary.pad()).float()).cpu()

        rows = [framed(part, self._dictionary, self._longest + 2) for part in parts]
        return torch.stack(together(rows, _IN_A_BATCH, read))


class Passages:
    """Sections of documents, those of one together and in their order, and how relevant each is to
    a question: by words, by BM25 (Robertson and Zaragoza 2009), in which words that every section
    has weigh next to nothing; by meaning, by the cosine of an encoder's vectors (None: by words
    alone)."""

    def __init__(self, sections: list[Section], encoder: SentenceEncoder | None = None) -> None:
        self.sections, self._encoder = [*sections], encoder if sections else None
        if self._encoder:
            vectors = encoder.of_sections(sections)
            self._vectors = np.concatenate(vectors)
            self._first = np.cumsum([0, *map(len, vectors[:-1])])

    def __len__(self) -> int:
        return len(self.sections)

    def likeness(self, text: str) -> np.ndarray:
        """The cosine of each section, by its most similar part, with a text, float32 [S]."""
        return np.maximum.reduceat(self._vectors @ self._encoder.of_question(text), self._first)

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
        known, index = self._words
        found = [known[stem] for stem in stems(question) if stem in known]
        return index.get_scores_from_ids(found) if found else np.zeros(len(self), np.float32)

    @cached_property
    def _words(self) -> tuple[dict[str, int], bm25s.BM25]:
        """The numbers of words, and how they weigh."""
        known: dict[str, int] = {}
        ids = [
            np.array([known.setdefault(stem, len(known)) for stem in stems(each.text)], np.int32)
            for each in self.sections
        ]
        index = bm25s.BM25(k1=1.2, b=0.75)
        if known:  # it divides by the number of words
            index.index((ids, known), create_empty_token=False, show_progress=False)
        return known, index


def stems(text: str) -> Iterator[str]:
    """The words of a text, cut to their stems; one with digits stays whole."""
    return (_stem(match[0]) for match in WORD.finditer(composed(visible(text), READ_FORM)))


@lru_cache(1 << 16)
def _stem(word: str) -> str:
    word = word.lower().replace(".", "") if word[:1].isalpha() else word.lower()
    return word if any(map(str.isdigit, word)) else word[:STEM]
