"""Parallel text in: pairs of lines from files, from two columns, from the TED talks' markup.

Every reader yields lines without their ends and refuses what is not UTF-8, with file and line;
no more than a line is held in memory.
"""

import bz2
import gzip
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import IO

from fairseq_clusterformer.errors import UserError

LANGUAGES = ("de", "en")

Pair = tuple[str, str]
Pairs = Iterator[Pair]


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the lines of a text file, or of the one in a .gz, .bz2, .xz or .zip.

    Raises:
        UserError: if it cannot be read or unpacked, or is not UTF-8.
    """
    number = 0
    first = "utf-8-sig" if encoding == "utf-8" else encoding
    try:
        with _OPENERS.get(path.suffix, open)(path, "rb") as file:
            for number, line in enumerate(file, 1):
                yield line.decode(first if number == 1 else encoding).rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: line {number:,}: byte 0x{error.object[error.start]:02X} is not UTF-8; "
            "allowed is UTF-8 text"
        ) from None
    except (OSError, EOFError, lzma.LZMAError, zlib.error, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: cannot be read after line {number:,}: {error}") from None


@contextmanager
def _open_zip(path: Path, _mode: str) -> Iterator[IO[bytes]]:
    with zipfile.ZipFile(path) as archive:
        texts = [
            name
            for name in archive.namelist()
            if Path(name).suffix in (".tsv", ".txt") and not Path(name).name.startswith("_")
        ]
        if len(texts) != 1:
            raise UserError(f"{path}: holds {texts or 'no text'}; allowed is one .tsv or .txt")
        with archive.open(texts[0]) as file:
            yield file


_OPENERS = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open, ".zip": _open_zip}


def read_pairs(files: Sequence[Path], read: Callable[[Path], Iterator[str]] = read_lines) -> Pairs:
    """Yield the pairs of lines that `read` yields of two files.

    Raises:
        UserError: if they do not have as many lines.
    """
    readers = [read(path) for path in files]
    for number, pair in enumerate(zip_longest(*readers)):
        if None in pair:
            lines = [number, number]
            longer = 1 - pair.index(None)
            lines[longer] += 1 + sum(1 for _ in readers[longer])
            raise UserError(
                f"{files[0]} has {lines[0]:,} lines and {files[1]} has {lines[1]:,}; "
                "allowed is the same number, line by line each other's translation"
            )
        yield pair


def read_columns(path: Path) -> Pairs:
    """Yield (German, English) of lines ``English<TAB>German``; more columns are passed over."""
    for number, line in enumerate(read_lines(path), 1):
        columns = line.split("\t")
        if len(columns) < 2:
            raise UserError(f"{path}: line {number:,}: {line!r}; allowed is English<TAB>German")
        yield columns[1], columns[0]


def extra_files(given: Path) -> list[Path]:
    """Return the one or two files that ``--extra-train GIVEN`` stands for.

    Raises:
        UserError: if there are none.
    """
    if given.is_file() and {".tsv", ".txt", ".zip"} & set(given.suffixes[-2:]):
        return [given]
    places = [[Path(f"{given}.{lang}{end}") for end in ("", ".gz")] for lang in LANGUAGES]
    files = [path for two in places for path in two if path.is_file()]
    if [path.name.removesuffix(".gz")[-2:] for path in files] != list(LANGUAGES):
        raise UserError(
            f"--extra-train {given}: found {' '.join(map(str, files)) or 'nothing'}; allowed is "
            "a PREFIX with PREFIX.de and PREFIX.en (or .de.gz, .en.gz), or a .tsv, .txt or .zip "
            "of lines English<TAB>German"
        )
    return files


def extra_pairs(files: Sequence[Path]) -> Pairs:
    """Yield the pairs of what `extra_files` returned."""
    return read_columns(files[0]) if len(files) == 1 else read_pairs(files)


# Markup of the TED talks (IWSLT14) and of WMT's test sets

_PASSED_OVER = ("<url>", "<talkid>", "<keywords>")
_TITLE_TAGS = re.compile(r"</?(title|description)>")
_SEGMENT = re.compile(r"<seg [^>]*>\s*(.*?)\s*</seg>")


def read_talks(path: Path) -> Iterator[str]:
    """Yield the lines of ``train.tags.*``, titles and descriptions too, other headers not."""
    for line in read_lines(path):
        if not any(tag in line for tag in _PASSED_OVER):
            yield _TITLE_TAGS.sub("", line).strip()


def read_segments(path: Path) -> Iterator[str]:
    """Yield the segments of an .xml or .sgm file."""
    for line in read_lines(path):
        if found := _SEGMENT.search(line):
            yield found[1]
