"""The lines of text files and the files of archives, plain or packed, one in memory at a time;
what a file's name says of it."""

import bz2
import gzip
import hashlib
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from fairseq_clusterformer.data.characters import composed
from fairseq_clusterformer.errors import UserError, no_file

#: what a damaged file raises; RuntimeError: a zip file with a password, or of an unknown method
DAMAGED = (OSError, EOFError, RuntimeError, lzma.LZMAError, zlib.error)
DAMAGED += (zipfile.BadZipFile, tarfile.TarError)
#: bytes of a line, or as many times those of its file: a small packed file may not fill the memory
LONGEST, TIMES = 1 << 26, 100


def wrong(place: object, problem: object, allowed: str) -> UserError:
    """The one form of an error in a file, as `bad_option` is of one in an option."""
    return UserError(f"{place}: {problem}; allowed: {allowed}")


PACKED = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}


def raw_lines(path: Path, encoding: str | None = "utf-8") -> Iterator[bytes]:
    """Yield the lines of a text file, plain or as .gz, .bz2 or .xz, with their ends. Raises
    UserError if it cannot be read, or has another encoding (None: any bytes)."""
    number = 0
    try:
        if not path.is_file():
            raise wrong(path, no_file(path), "a plain file, which can be read more than once")
        longest = max(LONGEST, TIMES * path.stat().st_size)
        with PACKED.get(path.suffix, open)(path, "rb") as file:
            while line := file.readline(longest + 1):
                number += 1
                if len(line) > longest:
                    problem = f"line {number:,} has more than {longest:,} bytes when unpacked"
                    raise wrong(path, problem, "shorter lines")
                if encoding is not None:
                    line.decode(encoding)
                yield line
    except UnicodeDecodeError as error:
        byte = f"line {number:,}: byte 0x{error.object[error.start]:02X}"
        allowed = "text in this encoding, as iconv -f latin1 -t utf-8 makes of Latin-1"
        raise wrong(path, f"{byte} cannot be read as {encoding.upper()}", allowed) from None
    except DAMAGED as error:
        raise UserError(f"{path}: cannot be read after line {number:,}: {error}") from None


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the same lines in NFC, without their ends and a byte order mark."""
    for line in raw_lines(path, encoding):
        yield composed(line.decode(encoding).removeprefix("\ufeff").rstrip("\r\n"))


def numbered_lines(path: Path, encoding: str = "utf-8") -> Iterator[tuple[str, str]]:
    """Yield the place of each line, for messages, and the line as `read_lines` has it."""
    for number, line in enumerate(read_lines(path, encoding), 1):
        yield f"{path}: line {number:,}", line


def aligned_lines(
    files: Sequence[Path], read: Callable[[Path], Iterator[str]] = read_lines
) -> Iterator[tuple[str, ...]]:
    """Yield the lines of several files side by side; raises UserError if one has more."""
    for number, row in enumerate(zip_longest(*map(read, files))):
        if None in row:
            longer = next(path for path, cell in zip(files, row, strict=True) if cell is not None)
            problem = f"has {number:,} lines, {longer} has more"
            allowed = "the same number, each line belonging to that of the other file"
            raise wrong(files[row.index(None)], problem, allowed)
        yield row


def members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield names, below `path`, and contents of the wanted files of a folder (in order), or of a
    .tar (packed or not) or .zip (as they lie in it). Raises UserError if it cannot be read to its
    end."""
    try:
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
    except DAMAGED as error:
        raise UserError(f"{path}: cannot be read: {error}") from None


_SPLIT = re.compile(r"(?<![a-z])(train|valid|validation|val|dev|test)(?![a-z])")


def split_of(path: Path) -> str | None:
    """Return the split that a file's name says, as a word: ``my.dev.tsv`` is of valid."""
    found = _SPLIT.findall(path.name.lower())
    return {"train": "train", "test": "test"}.get(found[-1], "valid") if found else None


def key_of(text: str) -> int:
    """Return 8 bytes that stand for a text: two of a billion texts hardly have the same."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8])


def some(names: Iterable[object], most: int = 20) -> str:
    """Return names with commas between them, or the first of them."""
    names = list(map(str, names))
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def visible(paths: Iterable[Path]) -> list[Path]:
    """Return the files among paths, in order, without hidden ones, whose names start by a dot."""
    return sorted(path for path in paths if path.is_file() and not path.name.startswith("."))
