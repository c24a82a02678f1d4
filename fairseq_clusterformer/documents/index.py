"""What models make of documents before they see a question, kept for the questions to come.

An index is a folder with one database. A key is a hash of what a model reads of a section, and of
the model itself. So what has changed is encoded anew, for another model all is, and nothing is
written twice. Each value has a checksum: what has been damaged or edited is encoded anew as well.
The words of all documents are next to it, see `passages`.
"""

import hashlib
import logging
import os
import sqlite3
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fairseq_clusterformer.errors import UserError, bad_option

from ..answers import text_mask
from .sections import Section

logger = logging.getLogger(__name__)

MARK, FILE = ".clusterformer-index", "encodings.sqlite"
MOST_KEPT = 300_000  # words whose encodings stay in memory
MOST_ENCODED = 1024  # sections that are encoded before a question is asked, without an index
_AT_ONCE = 256  # sections that are encoded, and written, together
_ALLOWED = "a new or empty folder, or one that clusterformer has made as an index"


class Encodings:
    """Encodings of sections: the latest in memory, all in an index if there is one. Raises
    UserError: a folder that holds something else, or cannot be made.

    Args:
        model: what encodes; its parameters are part of the keys.
        encode: makes states [W, D] of the words of each of some sections.
        folder: an index, which is made if need be; None: memory alone.
    """

    def __init__(
        self,
        model: nn.Module,
        encode: Callable[[Sequence[Section]], list[Tensor]],
        folder: Path | None = None,
    ) -> None:
        self._encode, self.folder = encode, folder
        self._kept: OrderedDict[Section, Tensor] = OrderedDict()
        if folder is not None:
            claim(folder)
            self._model = _hash_of_model(model)

    def prepare(self, sections: Sequence[Section]) -> None:
        """Encode sections before they are asked for: into the index, or else into memory, unless
        they are too many for that. Raises UserError: an index that cannot be written.

        What was written before an end in between is kept; what documents had before they changed
        goes.
        """
        if self.folder is not None:
            self._safely(self._prepare, sections)
        elif len(sections) <= MOST_ENCODED:
            self.of(sections)

    def of(self, sections: Sequence[Section]) -> list[Tensor]:
        """States of the sections' words, float16 [W, D] on the CPU."""
        absent = [section for section in sections if section not in self._kept]
        if absent and self.folder is not None:
            self._safely(self._load, absent)
        elif absent:
            self._encoded(absent)
        found = [self._kept[section] for section in sections]
        words = sum(map(len, self._kept.values()))
        while words > MOST_KEPT and self._kept:
            words -= len(self._kept.popitem(last=False)[1])
        return found

    def _safely(self, use: Callable, sections: Sequence[Section]) -> None:
        """Use the index, which is made anew if it is damaged."""
        file = self.folder / FILE
        for is_last in (False, True):
            try:
                with closing(sqlite3.connect(file, timeout=60)) as index:
                    form = "key BLOB PRIMARY KEY, document BLOB, crc INTEGER, width INTEGER"
                    index.execute(f"CREATE TABLE IF NOT EXISTS states ({form}, states BLOB)")
                    return use(index, sections)
            except sqlite3.DatabaseError as error:
                if is_last or isinstance(error, sqlite3.OperationalError):
                    raise _unusable(self.folder, f"cannot be written ({error})") from None
                logger.warning("%s is damaged (%s): it is made anew", file, error)
                file.unlink(missing_ok=True)

    def _prepare(self, index: sqlite3.Connection, sections: Sequence[Section]) -> None:
        keys = {self._key(section): section for section in sections}
        documents = {_hash_of_name(section) for section in sections}
        there = dict(index.execute("SELECT key, document FROM states"))
        absent = [section for key, section in keys.items() if key not in there]
        for first in range(0, len(absent), _AT_ONCE):
            self._write(index, absent[first : first + _AT_ONCE])
        gone = [(key,) for key, own in there.items() if own in documents and key not in keys]
        with index:
            own = self._model[:8]
            index.executemany(
                "DELETE FROM states WHERE key = ?", (k for k in gone if k[0][:8] == own)
            )

    def _load(self, index: sqlite3.Connection, sections: Sequence[Section]) -> None:
        """Take states of sections, if they are there and whole; else make them."""
        query = "SELECT crc, width, states FROM states WHERE key = ?"
        for section in sections:
            found = index.execute(query, (self._key(section),)).fetchone()
            if found and zlib.crc32(found[2]) == found[0]:
                states = np.frombuffer(bytearray(found[2]), np.float16).reshape(-1, found[1])
                self._kept[section] = torch.from_numpy(states)
            elif found:
                name = section.source.name
                logger.warning("%s is damaged (%s): it is made anew", self.folder / FILE, name)
        if absent := [section for section in sections if section not in self._kept]:
            self._write(index, absent)

    def _write(self, index: sqlite3.Connection, sections: Sequence[Section]) -> None:
        rows = []
        for section, states in zip(sections, self._encoded(sections), strict=True):
            data = states.contiguous().numpy().tobytes()
            about = _hash_of_name(section), zlib.crc32(data), states.size(-1)
            rows.append((self._key(section), *about, data))
        with index:
            index.executemany("REPLACE INTO states VALUES (?, ?, ?, ?, ?)", rows)

    def _encoded(self, sections: Sequence[Section]) -> list[Tensor]:
        """States of sections, which are kept."""
        found = [states.to("cpu", torch.float16) for states in self._encode(sections)]
        self._kept.update(zip(sections, found, strict=True))
        return found

    def _key(self, section: Section) -> bytes:
        tokens, document = section.encode(section)
        content = hashlib.sha256(len(tokens).to_bytes(8) + tokens.numpy().tobytes())
        content.update(text_mask(document.characters).numpy().tobytes())
        return self._model[:8] + content.digest()[:24]


def _hash_of_name(section: Section) -> bytes:
    name = os.path.abspath(section.source.name)
    return hashlib.sha256(name.encode(errors="surrogatepass")).digest()[:16]


def claim(folder: Path) -> None:
    """Make the folder of an index, and mark it. Raises UserError: a folder of somebody else."""
    mark = folder / MARK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if mark.is_file():
            return
        if there := min((path.name for path in folder.iterdir()), default=""):
            raise _unusable(folder, f"holds {there}, and is no index")
        mark.touch()
    except OSError as error:
        problem = "is a file" if folder.is_file() else f"cannot be made ({error.strerror})"
        raise _unusable(folder, problem) from None


def _unusable(folder: Path, problem: str) -> UserError:
    return bad_option("--index", folder, _ALLOWED, problem)


def _hash_of_model(model: nn.Module) -> bytes:
    """Of a model's form, its parameters and its buffers."""
    found = hashlib.sha256(str(model).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if isinstance(tensor, Tensor):
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            found.update(data.numpy().tobytes())
    return found.digest()
