"""The files of a corpus: lines and archives, plain or packed, one in memory at a time; what a name
says of them; and downloads, which can be resumed, with their checksums."""

import bz2
import gzip
import hashlib
import lzma
import re
import shutil
import sys
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from fairseq_clusterformer.data.characters import composed
from fairseq_clusterformer.errors import UserError, bad_option, no_file, wrong
from fairseq_clusterformer.outputs import checksum, digest

#: what a damaged file raises; RuntimeError: a zip file with a password, or of an unknown method
DAMAGED = (OSError, EOFError, RuntimeError, lzma.LZMAError, zlib.error)
DAMAGED += (zipfile.BadZipFile, tarfile.TarError)
#: bytes of a line, or as many times those of its file: a small packed file may not fill the memory
LONGEST, TIMES = 1 << 26, 100
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
    """Yield names and contents of the wanted files of a .zip or .tar, as they lie in it. Raises
    UserError if it cannot be read to its end."""
    try:
        if zipfile.is_zipfile(path):
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


def half_in(text: str) -> str:
    """A problem that names the first lone surrogate, which JSON can escape; empty: none."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"{error.object[error.start]!r} is half a character"
    return ""


def some(names: Iterable[object], most: int = 20) -> str:
    """Return names with commas between them, or the first of them."""
    names = list(map(str, names))
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def visible(paths: Iterable[Path]) -> list[Path]:
    """Return the files among paths, in order, without hidden ones, whose names start by a dot."""
    return sorted(path for path in paths if path.is_file() and not path.name.startswith("."))


class Archive(NamedTuple):
    """A file that a corpus comes in. Checksums are ``algorithm:hex``; None: none is published."""

    url: str  # of a zip or tar file, or of a single file that needs no unpacking
    checksum: str | None
    members: dict[str, str | None]  # files wanted from it (or its own name), with checksums

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]


def checksums(paths: Iterable[Path]) -> dict[str, str]:
    """Return the checksums of sources, by folder and name; where these are equal, numbered."""
    found, times = {}, Counter()
    for path in map(Path.resolve, paths):
        times[name := f"{path.parent.name}/{path.name}"] += 1
        found[f"{name} ({times[name]})" if times[name] > 1 else name] = checksum(path)
    return found


def found_in(folder: Path, pattern: str) -> list[Path]:
    """Return the files of a pattern in a folder; if there are none, those one folder below."""
    return sorted(folder.glob(pattern)) or sorted(folder.glob(f"*/{pattern}"))


def obtain(archives: Sequence[Archive], source: Path | None, work: Path) -> dict[str, Path]:
    """Return the archives' members by their names, as files whose checksums are right, from the
    folder `source` (None: download), unpacked in `work`. Raises UserError if one is missing."""
    paths = {}
    for archive in archives:
        packed = download(archive, work / "download") if source is None else source / archive.name
        for name, published in archive.members.items():
            places = found_in(source, name) if source else []
            if not places and not packed.is_file():
                problem = f"holds no {name}" if source.is_dir() else "no such folder"
                names = dict.fromkeys((", ".join(archive.members), archive.name))
                allowed = f"a folder that holds {' or '.join(names)}"
                raise bad_option("--source", source, allowed, problem)
            paths[name] = places[0] if places else packed
            if paths[name].name != name:
                found = members(packed, lambda found, name=name: Path(found).name == name)
                if (content := next(found, (name, None))[1]) is None:
                    raise UserError(f"{packed} holds no {name}")
                paths[name] = work / name
                paths[name].write_bytes(content)
            _verify(paths[name], published)
    return paths


def _verify(path: Path, published: str | None) -> None:
    algorithm, _, expected = (published or "").partition(":")
    if published and (found := digest(path, algorithm)) != expected:
        what = f"has {path.stat().st_size:,} bytes with {algorithm} {found}"
        raise wrong(path, what, f"{algorithm} {expected}")


def download(archive: Archive, folder: Path) -> Path:
    """Download the archive into `folder`, or go on where that was interrupted; warn if nobody
    publishes a checksum. Raises UserError if that fails, or the checksum is wrong."""
    from http.client import HTTPException  # these would slow down each --help
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    from tqdm import tqdm

    path, part = folder / archive.name, folder / f"{archive.name}.part"
    if path.exists():
        return path
    folder.mkdir(exist_ok=True)
    start = part.stat().st_size if part.exists() else 0
    # some hosts refuse Python's own user agent
    headers = {"User-Agent": "Mozilla/5.0 (fairseq_clusterformer)", "Range": f"bytes={start}-"}
    try:
        response = urlopen(Request(archive.url, headers=headers), timeout=60)
        start *= response.status == 206  # else it begins anew
        size = start + int(response.headers.get("Content-Length", 0))
        shown = tqdm.wrapattr(response, "read", size, initial=start, desc=path.name, disable=None)
        with response, shown as body, open(part, "ab" if start else "wb") as file:
            shutil.copyfileobj(body, file, 1 << 20)
        if part.stat().st_size < size:
            raise OSError(f"broken off after {part.stat().st_size:,} of {size:,} bytes")
        _verify(part, archive.checksum)
    except (OSError, HTTPException, UserError) as error:
        if isinstance(error, HTTPError | UserError):  # what is there is of no use
            part.unlink(missing_ok=True)
        remedy = "run again to go on, or get it elsewhere and pass --source DIR"
        raise UserError(f"could not download {archive.url}: {error}; {remedy}") from None
    if archive.checksum is None:
        why = f"warning: {archive.url} could not be verified, because nobody publishes a checksum "
        kept = f"of it; prepared.json keeps the sha256 of this download, {digest(part)}"
        print(why + kept, file=sys.stderr)
    return part.rename(path)
