"""Plain text in: find the files of a corpus, read and check them, split them.

A *document* is a file or, with a document separator, what stands between two separator lines.
Documents are read as iterators of their lines and split as a stream of ``(split, lines)``
pairs, so no more than a line of the corpus is held in memory.
"""

import bz2
import fnmatch
import gzip
import hashlib
import itertools
import lzma
import math
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from fairseq_clusterformer.errors import UserError

SPLITS = ("train", "valid", "test")
TEXT_PATTERNS = ("*.txt", "*.text", "*.md", "*.tokens", "*.raw", "*.xml")

_OPENERS = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}
_SPLIT_NAME = re.compile(r"(train|valid|test)(?=[-._0-9]|$)")

Document = Iterator[bytes]
Pieces = Iterable[tuple[str, Iterable[bytes]]]


def find_texts(source: Path, patterns: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """Return the text files below `source` in order of their paths, and the files passed over.

    Args:
        source: a folder, searched recursively, or one file, taken whatever its name is.
        patterns: shell patterns for names; a .xz, .gz or .bz2 at a name's end may be left out.

    Raises:
        UserError: if `source` does not exist or holds no file of such a name.
    """
    if source.is_file():
        return [source], []
    if not source.is_dir():
        raise UserError(f"SOURCE {source}: no such file or folder")
    texts, others = [], []
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        if any(part.startswith(".") for part in path.relative_to(source).parts):
            continue
        names = (path.name, path.stem if path.suffix in _OPENERS else path.name)
        known = any(fnmatch.fnmatch(name, pattern) for name in names for pattern in patterns)
        (texts if known else others).append(path)
    if not texts:
        held = f"only {names_of(others)}" if others else "no file at all"
        raise UserError(
            f"SOURCE {source}: no text file, {held}; allowed are the names {' '.join(patterns)} "
            "(also .xz, .gz, .bz2), or give others with --pattern"
        )
    return texts, others


def names_of(paths: Sequence[Path], most: int = 3) -> str:
    """Return the first names of `paths`, and the number of the others, for a message."""
    names = ", ".join(path.name for path in paths[:most])
    return names if len(paths) <= most else f"{names} and {len(paths) - most} more"


def read_lines(path: Path, *, allow_binary: bool = False) -> Iterator[bytes]:
    """Yield a file's lines, unpacked; the last one is given its newline if it has none.

    Raises:
        UserError: if the file cannot be read or unpacked or, unless `allow_binary`, at the first
            NUL byte or byte that is not UTF-8.
    """
    offset = 0
    try:
        with _OPENERS.get(path.suffix, open)(path, "rb") as file:
            for line in file:
                if not allow_binary:
                    _check_text(line, path, offset)
                offset += len(line)
                yield line if line.endswith(b"\n") else line + b"\n"
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read after {offset:,} bytes: {error}") from None


def _check_text(line: bytes, path: Path, offset: int) -> None:
    try:
        line.decode("utf-8")
        position = line.find(0)
    except UnicodeDecodeError as error:
        position = error.start
    if position >= 0:
        raise UserError(
            f"{path}: byte 0x{line[position]:02X} at offset {offset + position:,} is not UTF-8 "
            "text; allowed is UTF-8 without NUL bytes, or any bytes with --bytes --allow-binary"
        )


@dataclass
class Reader:
    """Reads the documents of files.

    Args:
        separator: the line that ends a document (default: a file is a document).
        allow_binary: see `read_lines`.
    """

    separator: bytes | None = None
    allow_binary: bool = False
    separators_seen: int = field(default=0, init=False)

    def documents(self, texts: Iterable[Path]) -> Iterator[Document]:
        """Yield the documents that are not empty; each is to be read before the next."""
        for path in texts:
            lines = read_lines(path, allow_binary=self.allow_binary)
            for number, document in itertools.groupby(lines, self._document_number):
                if number is not None:
                    yield document

    def _document_number(self, line: bytes) -> int | None:
        if self.separator is not None and line.rstrip(b"\r\n") == self.separator:
            self.separators_seen += 1
            return None
        return self.separators_seen


def split_files(source: Path, texts: Sequence[Path]) -> dict[str, list[Path]]:
    """Return the files of each split if files or folders right in `source` are named for it.

    ``train.txt``, ``train-00.txt.xz`` and all below ``train/`` belong to train. Empty if no
    name is a split's.

    Raises:
        UserError: if there are files for one split but not for another.
    """
    files = defaultdict(list)
    for path in texts:
        if path != source and (name := _SPLIT_NAME.match(path.relative_to(source).parts[0])):
            files[name[1]].append(path)
    present = [split for split in SPLITS if split in files]
    missing = [split for split in SPLITS if split not in files]
    if present and missing:
        raise UserError(
            f"SOURCE {source}: files for {' and '.join(present)} but none for "
            f"{' and '.join(missing)}; allowed are all three (as train-00.txt.xz, valid.txt, "
            "test.txt), or give --split documents or --split contiguous to split it anew"
        )
    return dict(files)


def by_file(files: dict[str, list[Path]], reader: Reader) -> Pieces:
    """Yield every document with the split its file is named for."""
    for split in SPLITS:
        for document in reader.documents(files[split]):
            yield split, document


def by_document(texts: Sequence[Path], reader: Reader, fractions: dict[str, float]) -> Pieces:
    """Yield every document with a split drawn from its text alone: whole, and always the same.

    Documents are ranked by the SHA-256 of their text. The first ones are valid, the next ones
    test, each as long as they are within its fraction of the bytes, and one at least; the others
    are train. Equal documents come to the same split.

    Args:
        fractions: of all bytes, for "valid" and for "test".
    """
    sizes, digests = Counter(), []
    for document in reader.documents(texts):
        digest, size = hashlib.sha256(), 0
        for line in document:
            digest.update(line)
            size += len(line)
        digests.append(digest.digest())
        sizes[digests[-1]] += size
    if len(sizes) < len(SPLITS):
        raise UserError(
            f"--split documents: {len(sizes)} different document(s), 3 or more are needed; give "
            "a --document-separator that occurs, or --split contiguous to cut at line ends"
        )
    ranked, split_of = sorted(sizes, reverse=True), {}
    for split, others in (("valid", 2), ("test", 1)):
        room, first = fractions[split] * sizes.total(), True
        while len(ranked) > others and (first or sizes[ranked[-1]] <= room):
            room, first = room - sizes[ranked[-1]], False
            split_of[ranked.pop()] = split
    for digest, document in zip(digests, reader.documents(texts), strict=True):
        yield split_of.get(digest, "train"), document


def contiguous(texts: Sequence[Path], reader: Reader, fractions: dict[str, float]) -> Pieces:
    """Yield the text in its order: train first, then valid, then test, cut at line ends."""
    total = sum(map(len, itertools.chain.from_iterable(reader.documents(texts))))
    position, train_end = 0, (1 - fractions["valid"] - fractions["test"]) * total

    def split_of(line: bytes) -> str:
        nonlocal position
        start, position = position, position + len(line)
        if start < train_end:
            return "train"
        return "valid" if start < train_end + fractions["valid"] * total else "test"

    for document in reader.documents(texts):
        yield from itertools.groupby(document, split_of)


def write_splits(pieces: Pieces, folder: Path, *, train_bytes: int | None = None) -> dict:
    """Write ``train.txt``, ``valid.txt`` and ``test.txt``, documents in order, nothing between.

    Args:
        train_bytes: keep only the first lines of train, at most this many bytes.

    Returns:
        for each split, the number of documents (also of those it has a part of), lines and bytes.

    Raises:
        UserError: if a split comes out empty.
    """
    counts = {split: dict.fromkeys(("documents", "lines", "bytes"), 0) for split in SPLITS}
    room = {"train": train_bytes or math.inf, "valid": math.inf, "test": math.inf}
    with ExitStack() as stack:
        files = {s: stack.enter_context(open(folder / f"{s}.txt", "wb")) for s in SPLITS}
        for split, lines in pieces:
            count, before = counts[split], counts[split]["lines"]
            for line in lines:
                room[split] -= len(line)
                if room[split] < 0:
                    break
                files[split].write(line)
                count["lines"] += 1
                count["bytes"] += len(line)
            count["documents"] += count["lines"] > before
    for split, count in counts.items():
        if not count["bytes"]:
            if split == "train" and room["train"] < 0:
                raise UserError(f"--train-bytes {train_bytes}: the first line alone is longer")
            raise UserError(f"SOURCE: no text for {split}; allowed is one byte or more a split")
    return counts


def cut(path: Path, folder: Path, sizes: Sequence[int]) -> dict:
    """Write a file's first bytes as ``train.txt``, the next as ``valid.txt`` and ``test.txt``."""
    with open(path, "rb") as source:
        for split, size in zip(SPLITS, sizes, strict=True):
            with open(folder / f"{split}.txt", "wb") as target:
                while size and (block := source.read(min(size, 1 << 20))):
                    size -= target.write(block)
    return {split: {"bytes": (folder / f"{split}.txt").stat().st_size} for split in SPLITS}
