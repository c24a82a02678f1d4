"""What is made of documents before a question is asked, kept for the questions to come.

An index is one database of tensors by keys. A key is a hash of what a model reads of a section,
and of the model itself. So what has changed is encoded anew, for another model all is, and nothing
is written twice.
"""

import hashlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from fairseq_clusterformer.errors import UserError, bad_option

from ..answers import text_mask
from .sections import Section

FILE = "clusterformer-index.sqlite"
MOST_ENCODED = 1024  # sections that are encoded before a question is asked, without an index
_AT_ONCE = 256  # sections that are encoded, and written, together
_ALLOWED = "a new or empty folder, or one that clusterformer has made as an index"


class Index:
    """Tensors by keys in a folder, which is made if need be; None: in a file that ends with it.
    Raises UserError: a folder that holds something else, or cannot be made; and all methods, if it
    cannot be read or written."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
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

    def keys(self) -> set[bytes]:
        with self._used():
            return {key for (key,) in self._database.execute("SELECT key FROM kept")}

    def get(self, keys: Iterable[bytes]) -> dict[bytes, Tensor]:
        """The values of those keys that are there."""
        query = "SELECT key, value FROM kept WHERE key = ?"
        with self._used():
            found = (row for key in keys for row in self._database.execute(query, (key,)))
            return {key: load(value)["value"] for key, value in found}

    def put(self, values: Iterable[tuple[bytes, Tensor]]) -> None:
        """Keep values by their keys."""
        rows = [(key, save({"value": value})) for key, value in values]
        with self._used(), self._database as database:
            database.executemany("REPLACE INTO kept VALUES (?, ?)", rows)

    @contextmanager
    def _used(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, SafetensorError) as error:
            raise self._unusable(f"cannot be used ({error})") from None

    def _unusable(self, problem: str) -> UserError:
        return bad_option("--index", self.folder, _ALLOWED, problem)


class Encodings:
    """Encodings of sections, in an index.

    Args:
        model: what encodes; its parameters are part of the keys.
        encode: makes states [W, D] of the words of each of some sections.
    """

    def __init__(
        self, model: nn.Module, encode: Callable[[Sequence[Section]], list[Tensor]], index: Index
    ) -> None:
        self._encode, self._index = encode, index
        self._model = _hash_of_model(model) if index.folder else id(model).to_bytes(8)
        self._keys: WeakKeyDictionary[Section, bytes] = WeakKeyDictionary()

    def prepare(self, sections: Sequence[Section]) -> None:
        """Encode sections before they are asked for, unless they are many and nothing is kept.
        Raises UserError: an index that cannot be written.

        What was written before an end in between is kept.
        """
        if self._index.folder or len(sections) <= MOST_ENCODED:
            there = self._index.keys()
            keys = {self._key(section): section for section in sections}
            self._make({key: section for key, section in keys.items() if key not in there})

    def of(self, sections: Sequence[Section]) -> list[Tensor]:
        """States of the sections' words, float16 [W, D] on the CPU."""
        keys = [self._key(section) for section in sections]
        found = self._index.get({*keys})
        pairs = zip(keys, sections, strict=True)
        absent = {key: section for key, section in pairs if key not in found}
        self._make(absent)
        found |= self._index.get(absent)
        return [found[key] for key in keys]

    def _make(self, absent: dict[bytes, Section]) -> None:
        for first in range(0, len(absent), _AT_ONCE):
            some = list(absent.items())[first : first + _AT_ONCE]
            states = self._encode([section for _, section in some])
            pairs = zip(some, states, strict=True)
            self._index.put(
                (key, x.to("cpu", torch.float16).contiguous()) for (key, _), x in pairs
            )

    def _key(self, section: Section) -> bytes:
        if section not in self._keys:
            tokens, document = section.encode(section)
            content = hashlib.sha256(len(tokens).to_bytes(8) + tokens.numpy().tobytes())
            content.update(text_mask(document.characters).numpy().tobytes())
            self._keys[section] = self._model + content.digest()[:24]
        return self._keys[section]


def _hash_of_model(model: nn.Module) -> bytes:
    """Of a model's form, its parameters and its buffers; 8 bytes."""
    found = hashlib.sha256(str(model).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if isinstance(tensor, Tensor):
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            found.update(data.numpy().tobytes())
    return found.digest()[:8]
