"""The lines of text files, plain or packed, one in memory at a time; which texts came before."""

import bz2
import gzip
import hashlib
import lzma
import zipfile
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import IO

from fairseq_clusterformer.data.unicode import composed
from fairseq_clusterformer.errors import UserError


class WrongEncoding(UserError):
    """A file of text that has another encoding."""


@contextmanager
def _open_zip(path: Path, _mode: str) -> Iterator[IO[bytes]]:
    with zipfile.ZipFile(path) as archive:
        names = [
            name
            for name in archive.namelist()
            if not name.endswith("/") and not name.startswith("_")  # Tatoeba's _about.txt
        ]
        if len(names) != 1:
            held = ", ".join(names) or "nothing"
            raise UserError(f"{path} holds {held}; allowed: one text file")
        with archive.open(names[0]) as file:
            yield file


PACKED = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
OPENERS = {**PACKED, ".zip": _open_zip}
#: bytes of a line, or as many times those of its file: a small packed file may not fill the memory
LONGEST, TIMES = 1 << 26, 100


def raw_lines(path: Path, encoding: str | None = "utf-8") -> Iterator[bytes]:
    """Yield the lines of a text file, or of the one in a .gz, .bz2, .xz or .zip, with their ends.

    Raises:
        UserError: if it cannot be read or unpacked, or has another encoding (None: any bytes).
    """
    number = 0
    try:
        longest = max(LONGEST, TIMES * path.stat().st_size)
        with OPENERS.get(path.suffix, open)(path, "rb") as file:
            while line := file.readline(longest + 1):
                number += 1
                if len(line) > longest:
                    raise UserError(
                        f"{path}: line {number:,} has more than {longest:,} bytes when it is "
                        "unpacked; allowed: shorter lines"
                    )
                if encoding is not None:
                    line.decode(encoding)
                yield line
    except UnicodeDecodeError as error:
        raise WrongEncoding(
            f"{path}: line {number:,}: byte 0x{error.object[error.start]:02X} cannot be read as "
            f"{encoding.upper()}; allowed: text in this encoding"
        ) from None
    # RuntimeError: a zip file with a password, or of a method that Python does not know
    except (
        *(OSError, EOFError, RuntimeError, lzma.LZMAError, zlib.error, zipfile.BadZipFile),
    ) as error:
        raise UserError(f"{path}: cannot be read after line {number:,}: {error}") from None


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the lines of a text file in NFC, without their ends and a byte order mark.

    Raises:
        UserError: as `raw_lines` does.
    """
    for line in raw_lines(path, encoding):
        yield composed(line.decode(encoding).removeprefix("\ufeff").rstrip("\r\n"))


def aligned_lines(
    files: Sequence[Path], read: Callable[[Path], Iterator[str]] = read_lines
) -> Iterator[tuple[str, ...]]:
    """Yield the lines that `read` yields of several files, side by side.

    Raises:
        UserError: if they do not have as many lines.
    """
    for number, row in enumerate(zip_longest(*map(read, files))):
        if None in row:
            ended = files[row.index(None)]
            longer = next(path for path, cell in zip(files, row, strict=True) if cell is not None)
            raise UserError(
                f"{ended} has {number:,} lines, {longer} has more; allowed: the same number, each "
                "line belonging to that of the other file"
            )
        yield row


def key_of(text: str) -> int:
    """Return 8 bytes that stand for a text: of a billion texts, two of a key are unlikely."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8])


class SeenTexts:
    """A set of texts that takes 11 to 22 bytes for each: a hash table of their 8-byte keys."""

    def __init__(self) -> None:
        self._keys = array("Q", bytes(8 << 10))  # 0: a free slot
        self._count = 0

    def __contains__(self, text: str) -> bool:
        return self._keys[self._slot(key_of(text))] != 0

    def add(self, text: str) -> bool:
        """Add a text; returns whether it is new."""
        key = key_of(text)
        slot = self._slot(key)
        if self._keys[slot]:
            return False
        self._keys[slot] = key
        self._count += 1
        if 4 * self._count > 3 * len(self._keys):
            old, self._keys = self._keys, array("Q", bytes(16 * len(self._keys)))
            for key in filter(None, old):
                self._keys[self._slot(key)] = key
        return True

    def _slot(self, key: int) -> int:
        """The slot of a key, or the free one where it belongs: linear probing."""
        mask = len(self._keys) - 1  # their number is a power of 2
        slot = key & mask
        while self._keys[slot] not in (0, key):
            slot = (slot + 1) & mask
        return slot
