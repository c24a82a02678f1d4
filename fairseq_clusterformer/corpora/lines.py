"""The lines of text files and the files of archives, plain or packed, one in memory at a time."""

import bz2
import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import zip_longest
from pathlib import Path
from typing import IO

from fairseq_clusterformer.data.unicode import composed
from fairseq_clusterformer.errors import UserError

#: what a damaged file raises; RuntimeError: a zip file with a password, or of an unknown method
_DAMAGED = (OSError, EOFError, RuntimeError, lzma.LZMAError, zlib.error)
_DAMAGED += (zipfile.BadZipFile, tarfile.TarError)
_REMEDY = "as iconv -f latin1 -t utf-8 makes of Latin-1"


def wrong(place: object, problem: object, allowed: str) -> UserError:
    """The one form of an error in a file, as `bad_option` is of one in an option."""
    return UserError(f"{place}: {problem}; allowed: {allowed}")


class WrongEncoding(UserError):
    """A file of text that has another encoding."""


@contextmanager
def _open_zip(file: IO[bytes], _mode: str) -> Iterator[IO[bytes]]:
    with zipfile.ZipFile(file) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        names = [name for name in names if not name.startswith("_")]  # Tatoeba's _about.txt
        if len(names) != 1:
            held = ", ".join(names) or "nothing"
            raise UserError(f"{file.name} holds {held}; allowed: one text file")
        with archive.open(names[0]) as member:
            yield member


PACKED = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
OPENERS = {**PACKED, ".zip": _open_zip}  # of files that are open
#: bytes of a line, or as many times those of its file: a small packed file may not fill the memory
LONGEST, TIMES = 1 << 26, 100


def raw_lines(
    path: Path, encoding: str | None = "utf-8", progress: Callable[[int], object] | None = None
) -> Iterator[bytes]:
    """Yield the lines of a text file, or of the one in a .gz, .bz2, .xz or .zip, with their ends.
    Raises UserError if it cannot be read, or has another encoding (None: any bytes). `progress`
    is given the bytes of the file that were read since it was called before."""
    number = place = 0
    try:
        if path.exists() and not path.is_file():
            raise wrong(path, "it is no plain file", "a file that can be read more than once")
        longest = max(LONGEST, TIMES * path.stat().st_size)
        unpacked = OPENERS.get(path.suffix, lambda file, _mode: nullcontext(file))
        with open(path, "rb") as packed, unpacked(packed, "rb") as file:
            while line := file.readline(longest + 1):
                number += 1
                if progress and not number % 1000:
                    progress(packed.tell() - place)
                    place = packed.tell()
                if len(line) > longest:
                    problem = f"line {number:,} has more than {longest:,} bytes when unpacked"
                    raise wrong(path, problem, "shorter lines")
                if encoding is not None:
                    line.decode(encoding)
                yield line
    except UnicodeDecodeError as error:
        raise WrongEncoding(
            f"{path}: line {number:,}: byte 0x{error.object[error.start]:02X} cannot be read as "
            f"{encoding.upper()}; allowed: text in this encoding, {_REMEDY}"
        ) from None
    except _DAMAGED as error:
        raise UserError(f"{path}: cannot be read after line {number:,}: {error}") from None


def count_lines(path: Path) -> int:
    """Return how many lines a file has; raises UserError as `raw_lines` does."""
    return sum(1 for _ in raw_lines(path, None))


@contextmanager
def naming_all(
    files: Iterable[Path], encoding: str = "utf-8", remedy: str = _REMEDY
) -> Iterator[None]:
    """Where a file has another encoding than is read, say so of all the files, and what helps."""
    try:
        yield
    except WrongEncoding:
        wrong = []
        for path in files:
            try:
                deque(raw_lines(path, encoding), maxlen=0)
            except WrongEncoding as error:
                wrong.append(str(error).partition("; allowed: ")[0])
            except UserError:
                pass  # damaged in another way: named when this is mended
        if not wrong:
            raise
        raise UserError(f"{', '.join(wrong)}; allowed: text in this encoding, {remedy}") from None


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the lines of a text file in NFC, without their ends and a byte order mark; raises
    UserError as `raw_lines` does."""
    for line in raw_lines(path, encoding):
        yield composed(line.decode(encoding).removeprefix("\ufeff").rstrip("\r\n"))


def aligned_lines(
    files: Sequence[Path], read: Callable[[Path], Iterator[str]] = read_lines
) -> Iterator[tuple[str, ...]]:
    """Yield the lines that `read` yields of several files, side by side; raises UserError if one
    has more of them."""
    for number, row in enumerate(zip_longest(*map(read, files))):
        if None in row:
            ended = files[row.index(None)]
            longer = next(path for path, cell in zip(files, row, strict=True) if cell is not None)
            allowed = "the same number, each line belonging to that of the other file"
            raise UserError(f"{ended} has {number:,} lines, {longer} has more; allowed: {allowed}")
        yield row


def members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield names, below `path`, and contents of the wanted files of a folder (in order), or of a
    .tar (packed or not) or .zip (as they lie in it). Raises UserError if it cannot be read to its
    end."""
    number = 0
    try:
        for found in _members(path, wanted):
            number += 1
            yield found
    except _DAMAGED as error:
        raise UserError(f"{path}: cannot be read after {number:,} files: {error}") from None


def _members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            name = file.relative_to(path).as_posix()
            if wanted(name) and file.is_file():
                yield name, file.read_bytes()
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in filter(wanted, archive.namelist()):
                yield name, archive.read(name)
    else:
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                if member.isfile() and wanted(member.name):
                    yield member.name, archive.extractfile(member).read()
