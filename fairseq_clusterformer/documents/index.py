"""What is made of documents before a question is asked, kept for the questions to come.

An index is a folder with one database of tensors by keys. A key is a hash of what a model reads of
a section, and of the model itself. So what has changed is encoded anew, for another model all is,
and nothing is written twice. Each value has a checksum: what has been damaged or edited is made
anew as well. What `passages` makes of the words of all documents is kept likewise.
"""

import hashlib
import logging
import os
import sqlite3
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from fairseq_clusterformer.errors import UserError, bad_option

from ..answers import text_mask
from .sections import Section

logger = logging.getLogger(__name__)

MARK, FILE = ".clusterformer-index", "kept.sqlite"
MOST_KEPT = 300_000  # words whose encodings stay in memory
MOST_ENCODED = 1024  # sections that are encoded before a question is asked, without an index
_AT_ONCE = 256  # sections that are encoded, and written, together
_ALLOWED = "a new or empty folder, or one that clusterformer has made as an index"


class Index:
    """Tensors by keys in a folder, which is made if need be. Raises UserError: a folder that holds
    something else, or cannot be made; and all methods, if it cannot be written."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._file = folder, folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / MARK).is_file():
                if there := min((path.name for path in folder.iterdir()), default=""):
                    raise self._unusable(f"holds {there}, and is no index")
                (folder / MARK).touch()
        except OSError as error:
            problem = "is a file" if folder.is_file() else f"cannot be made ({error.strerror})"
            raise self._unusable(problem) from None

    def owners(self) -> dict[bytes, bytes]:
        """By each key, what its value belongs to."""
        return dict(self._run(lambda index: [*index.execute("SELECT key, owner FROM kept")]))

    def get(self, keys: Iterable[bytes]) -> dict[bytes, dict[str, Tensor]]:
        """The values of those keys that are there and whole."""
        query = "SELECT key, crc, value FROM kept WHERE key = ?"
        found = {}
        for own, crc, value in self._run(
            lambda index: [row for key in keys for row in index.execute(query, (key,))]
        ):
            if zlib.crc32(value) == crc:
                found[own] = load(value)
            else:
                logger.warning("%s is damaged: a part of it is made anew", self._file)
        return found

    def put(self, values: Iterable[tuple[bytes, bytes, dict[str, Tensor]]]) -> None:
        """Keep values, each with its key and its owner."""
        packed = ((key, owner, save(value)) for key, owner, value in values)
        rows = [(key, owner, zlib.crc32(data), data) for key, owner, data in packed]
        self._run(lambda index: index.executemany("REPLACE INTO kept VALUES (?, ?, ?, ?)", rows))

    def remove(self, keys: Iterable[bytes]) -> None:
        rows = [(key,) for key in keys]
        self._run(lambda index: index.executemany("DELETE FROM kept WHERE key = ?", rows))

    def replace(self, owner: bytes, key: bytes, value: dict[str, Tensor]) -> None:
        """Keep a value as the only one of its owner."""
        self.remove([old for old, own in self.owners().items() if own == owner])
        self.put([(key, owner, value)])

    def _run(self, use: Callable):
        """Use the database, which is made anew if it is damaged."""
        for is_last in (False, True):
            try:
                with closing(sqlite3.connect(self._file, timeout=60)) as index, index:
                    form = "key BLOB PRIMARY KEY, owner BLOB, crc INTEGER, value BLOB"
                    index.execute(f"CREATE TABLE IF NOT EXISTS kept ({form})")
                    return use(index)
            except sqlite3.DatabaseError as error:
                if is_last or isinstance(error, sqlite3.OperationalError):
                    raise self._unusable(f"cannot be written ({error})") from None
                logger.warning("%s is damaged (%s): it is made anew", self._file, error)
                self._file.unlink(missing_ok=True)

    def _unusable(self, problem: str) -> UserError:
        return bad_option("--index", self.folder, _ALLOWED, problem)


class Encodings:
    """Encodings of sections: the latest in memory, all in an index if there is one.

    Args:
        model: what encodes; its parameters are part of the keys.
        encode: makes states [W, D] of the words of each of some sections.
        index: None: memory alone.
    """

    def __init__(
        self,
        model: nn.Module,
        encode: Callable[[Sequence[Section]], list[Tensor]],
        index: Index | None = None,
    ) -> None:
        self._encode, self._index = encode, index
        self._kept: OrderedDict[Section, Tensor] = OrderedDict()
        self._model = _hash_of_model(model) if index else b""

    def prepare(self, sections: Sequence[Section]) -> None:
        """Encode sections before they are asked for: into the index, or else into memory, unless
        they are too many for that. Raises UserError: an index that cannot be written.

        What was written before an end in between is kept; what documents had before they changed
        goes.
        """
        if self._index is None:
            if len(sections) <= MOST_ENCODED:
                self.of(sections)
            return
        keys = {self._key(section): section for section in sections}
        documents = {_hash_of_name(section) for section in sections}
        there = self._index.owners()
        absent = [section for key, section in keys.items() if key not in there]
        for first in range(0, len(absent), _AT_ONCE):
            self._make(absent[first : first + _AT_ONCE])
        gone = (key for key, own in there.items() if own in documents and key not in keys)
        self._index.remove(key for key in gone if key.startswith(self._model))

    def of(self, sections: Sequence[Section]) -> list[Tensor]:
        """States of the sections' words, float16 [W, D] on the CPU."""
        absent = [section for section in sections if section not in self._kept]
        if absent and self._index is not None:
            keys = {section: self._key(section) for section in absent}
            there = self._index.get({*keys.values()})
            self._kept |= {
                section: there[key]["states"] for section, key in keys.items() if key in there
            }
            absent = [section for section in absent if section not in self._kept]
        if absent:
            self._make(absent)
        found = [self._kept[section] for section in sections]
        words = sum(map(len, self._kept.values()))
        while words > MOST_KEPT and self._kept:
            words -= len(self._kept.popitem(last=False)[1])
        return found

    def _make(self, sections: Sequence[Section]) -> None:
        states = [x.to("cpu", torch.float16).contiguous() for x in self._encode(sections)]
        made = dict(zip(sections, states, strict=True))
        self._kept |= made
        if self._index is not None:
            own = ((self._key(x), _hash_of_name(x), {"states": made[x]}) for x in sections)
            self._index.put(own)

    def _key(self, section: Section) -> bytes:
        tokens, document = section.encode(section)
        content = hashlib.sha256(len(tokens).to_bytes(8) + tokens.numpy().tobytes())
        content.update(text_mask(document.characters).numpy().tobytes())
        return self._model + content.digest()[:24]


def _hash_of_name(section: Section) -> bytes:
    name = os.path.abspath(section.source.name)
    return hashlib.sha256(name.encode(errors="surrogatepass")).digest()[:16]


def _hash_of_model(model: nn.Module) -> bytes:
    """Of a model's form, its parameters and its buffers; 8 bytes."""
    found = hashlib.sha256(str(model).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if isinstance(tensor, Tensor):
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            found.update(data.numpy().tobytes())
    return found.digest()[:8]
