"""Plain text: find the files of a corpus, read and check them, split them.

A *document* is a file, or the text between two separator lines: an iterator of lines. Splits are a
stream of ``(split, lines)``, so that memory holds one line of the corpus.
"""

import hashlib
import itertools
import lzma
import re
import zlib
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from fairseq_clusterformer.data.characters import sentences
from fairseq_clusterformer.errors import UserError, bad_option, no_file

from . import SPLITS
from .lines import PACKED, raw_lines, some, wrong

_SPLIT_NAME = re.compile(r"(train|valid|test)(?=[-._0-9]|$)")

Documents = Iterator[tuple[Path, Iterator[bytes]]]
SplitLines = Iterable[tuple[str, Iterable[bytes]]]


def find_texts(source: Path) -> tuple[list[Path], list[Path]]:
    """Return the text files below `source`, a folder or one file, in order of their paths, and the
    binary files; hidden ones, whose names start with a dot, are neither. Raises UserError if there
    is no text."""
    texts, binary = [], []
    for path in [source] if source.is_file() else sorted(source.rglob("*")):
        parts = path.relative_to(source).parts
        if path.is_file() and not any(part.startswith(".") for part in parts):
            (binary if _is_binary(path) else texts).append(path)
    if not texts:
        problem = "no file at all" if source.is_dir() else no_file(source)
        if binary:
            problem = f"no text file, only {some((path.name for path in binary), 3)}"
        allowed = "a folder of text, or one file, also as .xz, .gz or .bz2"
        raise bad_option("SOURCE", source, allowed, problem)
    return texts, binary


def _is_binary(path: Path) -> bool:
    """Whether a file begins as a PDF file, or with a NUL byte in its first 8 kB."""
    try:
        with PACKED.get(path.suffix, open)(path, "rb") as file:
            start = file.read(8192)
    except (OSError, EOFError, lzma.LZMAError, zlib.error):
        return False  # to be reported when it is read
    return start.startswith(b"%PDF-") or b"\0" in start


def documents(texts: Sequence[Path], separator: str | None = None) -> Documents:
    """Yield the documents that are not empty, each with its file. Read each before you take the
    next. Raises UserError if no text has the `separator`, the line that ends a document; without
    one, a file is a document."""
    seen = separator is None

    def ends(line: bytes) -> bool:
        return separator is not None and line.rstrip(b"\r\n") == separator.encode()

    for path in texts:
        for is_end, lines in itertools.groupby(_lines(path), ends):
            if is_end:
                seen = True
            else:
                yield path, lines
    if not seen:
        allowed = "a line that ends a document, in full"
        problem = f"no such line in {some((path.name for path in texts), 3)}"
        raise bad_option("--document-separator", separator, allowed, problem)


def _lines(path: Path) -> Iterator[bytes]:
    for number, line in enumerate(raw_lines(path)):
        if line := line if number else line.removeprefix(BOM_UTF8):
            yield line if line.endswith(b"\n") else line + b"\n"


def split_files(source: Path, texts: Sequence[Path]) -> dict[Path, str]:
    """Return the split of each file, if files or folders right in `source` are named so, as
    ``train-00.txt.xz`` and ``train/``. Raises UserError if there are some, but not of each."""
    files = {}
    for path in texts:
        if path != source and (name := _SPLIT_NAME.match(path.relative_to(source).parts[0])):
            files[path] = name[1]
    missing = [split for split in SPLITS if split not in files.values()]
    if files and missing:
        problem = f"no file is named {' or '.join(missing)}"
        allowed = "files of all three (as train-00.txt.xz, valid.txt, test.txt), or other names"
        raise bad_option("SOURCE", source, allowed, problem)
    return files


def by_document(read: Callable[[], Documents], fractions: dict[str, float]) -> SplitLines:
    """Yield every document that `read` yields, whole, with its split. They are ranked by the
    SHA-256 of their text. The first ones become valid and the next ones test, within their
    `fractions` of all bytes; where the first is too long, only the shortest document. All others
    become train."""
    sizes, digests = Counter(), []
    for _, document in read():
        digest, size = hashlib.sha256(), 0
        for line in document:
            digest.update(line)
            size += len(line)
        digests.append(digest.digest())
        sizes[digests[-1]] += size
    if len(sizes) < len(SPLITS):
        allowed = "3 different ones or more, or one file, which is cut at line ends"
        raise wrong("documents of SOURCE", len(sizes), allowed)
    ranked, split_of = sorted(sizes, reverse=True), {}
    for split, others in (("valid", 2), ("test", 1)):
        room = fractions[split] * sizes.total()
        if sizes[ranked[-1]] > room:
            ranked.append(ranked.pop(ranked.index(min(ranked, key=sizes.get))))
            room = sizes[ranked[-1]]
        while len(ranked) > others and sizes[ranked[-1]] <= room:
            room -= sizes[ranked[-1]]
            split_of[ranked.pop()] = split
    for digest, (_, document) in zip(digests, read(), strict=True):
        yield split_of.get(digest, "train"), document


def contiguous(read: Callable[[], Documents], fractions: dict[str, float]) -> SplitLines:
    """Yield the text in its order, cut at line ends: train, then valid, then test."""
    total = sum(len(line) for _, document in read() for line in document)
    position, train_end = 0, (1 - fractions["valid"] - fractions["test"]) * total

    def split_of(line: bytes) -> str:
        nonlocal position
        start, position = position, position + len(line)
        if start < train_end:
            return "train"
        return "valid" if start < train_end + fractions["valid"] * total else "test"

    for _, document in read():
        yield from itertools.groupby(document, split_of)


def by_sentence(parts: SplitLines) -> SplitLines:
    """Give each sentence a line, and each document an empty line behind it."""
    for split, lines in parts:
        texts = (line.decode().rstrip() for line in lines)
        found = (text[start:end] for text in texts for start, end in sentences(text))
        yield split, (f"{sentence}\n".encode() for sentence in itertools.chain(found, [""]))


def write_splits(parts: SplitLines, folder: Path) -> dict:
    """Write ``train.txt``, ``valid.txt`` and ``test.txt``; return how many documents, lines and
    bytes each has."""
    counts = {split: dict.fromkeys(("documents", "lines", "bytes"), 0) for split in SPLITS}
    with ExitStack() as stack:
        files = {s: stack.enter_context(open(folder / f"{s}.txt", "wb")) for s in SPLITS}
        for split, lines in parts:
            count, before = counts[split], counts[split]["lines"]
            for line in lines:
                files[split].write(line)
                count["lines"] += 1
                count["bytes"] += len(line)
            count["documents"] += count["lines"] > before
    for split, count in counts.items():
        if not count["bytes"]:
            larger = "" if split == "train" else f", or a larger --{split}-fraction"
            raise UserError(f"SOURCE has no text for {split}; allowed: more text{larger}")
    return counts
