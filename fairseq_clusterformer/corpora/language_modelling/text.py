"""Plain text: find the files of a corpus, read and check them, split them.

A *document* is a file, or the text between two separator lines: an iterator of lines. Splits are a
stream of ``(split, lines)``, so that memory holds one line of the corpus.
"""

import fnmatch
import hashlib
import itertools
import lzma
import re
import zlib
from codecs import BOM_UTF8
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from fairseq_clusterformer.data.words import sentences
from fairseq_clusterformer.errors import UserError, bad_option

from .. import SPLITS
from ..lines import PACKED, raw_lines

_SPLIT_NAME = re.compile(r"(train|valid|test)(?=[-._0-9]|$)")

Lines = Iterator[bytes]
SplitLines = Iterable[tuple[str, Iterable[bytes]]]


def find_texts(
    source: Path, patterns: Sequence[str] | None = None
) -> tuple[list[Path], list[Path]]:
    """Return the text files below `source` in order of their paths, and the files passed over;
    hidden ones, whose names start with a dot, are neither. Raises UserError if there is none.

    Args:
        source: a folder, searched recursively, or one text file, whatever its name is.
        patterns: shell patterns for names; a .xz, .gz or .bz2 at a name's end may be left out.
            None: every file whose first bytes are text.
    """
    if source.is_file():
        if _is_binary(source):
            allowed = "text, plain or as .xz, .gz or .bz2"
            raise bad_option("SOURCE", source, allowed, "not a text file")
        return [source], []
    if not source.is_dir():
        problem = "it is no plain file" if source.exists() else "does not exist"
        raise bad_option("SOURCE", source, "a folder of text, or one file", problem)
    texts, others = [], []
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        if any(part.startswith(".") for part in path.relative_to(source).parts):
            continue
        if patterns:
            names = (path.name, path.stem if path.suffix in PACKED else path.name)
            wanted = any(fnmatch.fnmatch(name, pattern) for name in names for pattern in patterns)
        else:
            wanted = not _is_binary(path)
        (texts if wanted else others).append(path)
    if not texts:
        held = f"no text file, only {names_of(others)}" if others else "no file at all"
        allowed = "a folder of text files, also as .xz, .gz or .bz2; --pattern chooses by name"
        raise bad_option("SOURCE", source, allowed, held)
    return texts, others


def _is_binary(path: Path) -> bool:
    """Whether a file begins as a PDF file, or with a NUL byte in its first 8 kB."""
    try:
        with PACKED.get(path.suffix, open)(path, "rb") as file:
            start = file.read(8192)
    except (OSError, EOFError, lzma.LZMAError, zlib.error):
        return False  # to be reported when it is read
    return start.startswith(b"%PDF-") or b"\0" in start


def names_of(paths: Sequence[Path], most: int = 3) -> str:
    """Return the first names of `paths` and how many more there are, for a message."""
    names = ", ".join(path.name for path in paths[:most])
    return names if len(paths) <= most else f"{names} and {len(paths) - most} more"


@dataclass
class TextReader:
    """Reads the documents of files, in UTF-8."""

    separator: str | None = None  # the line that ends a document; None: a file is a document
    encoding: str = "utf-8"  # of the files
    _seen: int = field(default=0, init=False)  # separators

    def documents(self, texts: Iterable[Path]) -> Iterator[Lines]:
        """Yield the documents that are not empty. Read each before you take the next."""
        from tqdm import tqdm

        texts = list(texts)
        how = {"unit": "B", "unit_scale": True, "disable": None, "leave": False}
        total = sum(path.stat().st_size for path in texts)
        with tqdm(desc="reading", total=total, **how) as bar:
            for path in texts:
                raw = raw_lines(path, self.encoding, bar.update)
                if self.encoding != "utf-8":
                    raw = (line.decode(self.encoding).encode() for line in raw)
                first = (line.removeprefix(BOM_UTF8) for line in itertools.islice(raw, 1))
                raw = itertools.chain(first, raw)
                lines = (line if line.endswith(b"\n") else line + b"\n" for line in raw)
                for number, document in itertools.groupby(lines, self._document_number):
                    if number is not None:
                        yield document

    def _document_number(self, line: bytes) -> int | None:
        if self.separator is not None and line.rstrip(b"\r\n") == self.separator.encode():
            self._seen += 1
            return None
        return self._seen

    def check_separator(self, place: object) -> None:
        """Raise UserError if the separator was not in the text, which was read at a place."""
        if self.separator is not None and not self._seen:
            allowed = "a line that ends a document, in full"
            problem = f"no such line in {place}"
            raise bad_option("--document-separator", self.separator, allowed, problem)


def split_files(source: Path, texts: Sequence[Path]) -> dict[str, list[Path]]:
    """Return the files of each split, if files or folders right in `source` are named so, as
    ``train-00.txt.xz`` and ``train/``. Raises UserError if there are some, but not of each."""
    files = defaultdict(list)
    for path in texts:
        if path != source and (name := _SPLIT_NAME.match(path.relative_to(source).parts[0])):
            files[name[1]].append(path)
    present = [split for split in SPLITS if split in files]
    missing = [split for split in SPLITS if split not in files]
    if present and missing:
        problem = f"files for {' and '.join(present)} but none for {' and '.join(missing)}"
        allowed = "all three (as train-00.txt.xz, valid.txt, test.txt), or --split documents or "
        raise bad_option("SOURCE", source, allowed + "--split contiguous", problem)
    return dict(files)


def by_document(
    texts: Sequence[Path], reader: TextReader, fractions: dict[str, float]
) -> SplitLines:
    """Yield every document, whole, with its split. They are ranked by the SHA-256 of their text.
    The first ones become valid and the next ones test, within their `fractions` of all bytes;
    where the first is too long, only the shortest document. All others become train."""
    sizes, digests = Counter(), []
    for document in reader.documents(texts):
        digest, size = hashlib.sha256(), 0
        for line in document:
            digest.update(line)
            size += len(line)
        digests.append(digest.digest())
        sizes[digests[-1]] += size
    if len(sizes) < len(SPLITS):
        allowed = "3 different documents or more; or give a --document-separator that occurs, or "
        allowed += "--split contiguous to cut at line ends"
        raise bad_option("--split", "documents", allowed, f"SOURCE has {len(sizes)}")
    ranked, split_of = sorted(sizes, reverse=True), {}
    for split, others in (("valid", 2), ("test", 1)):
        room = fractions[split] * sizes.total()
        if sizes[ranked[-1]] > room:
            ranked.append(ranked.pop(ranked.index(min(ranked, key=sizes.get))))
            room = sizes[ranked[-1]]
        while len(ranked) > others and sizes[ranked[-1]] <= room:
            room -= sizes[ranked[-1]]
            split_of[ranked.pop()] = split
    for digest, document in zip(digests, reader.documents(texts), strict=True):
        yield split_of.get(digest, "train"), document


def contiguous(
    texts: Sequence[Path], reader: TextReader, fractions: dict[str, float]
) -> SplitLines:
    """Yield the text in its order, cut at line ends: train, then valid, then test."""
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


def by_sentence(parts: SplitLines) -> SplitLines:
    """Give each sentence a line, and each document an empty line behind it."""
    for split, lines in parts:
        yield split, itertools.chain(_sentences(lines), [b"\n"])


def _sentences(lines: Iterable[bytes]) -> Lines:
    for line in lines:
        text = line.decode()
        for start, end in sentences(text.rstrip()):
            yield text[start:end].encode() + b"\n"


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
            allowed = "a line or more for each of train, valid and test"
            if split != "train":
                allowed += f", by more text or a larger --{split}-fraction"
            raise UserError(f"SOURCE has no text for {split}; allowed: {allowed}")
    return counts


def cut(path: Path, folder: Path, sizes: Sequence[int]) -> dict:
    """Write a file's first bytes as ``train.txt``, the next as ``valid.txt`` and ``test.txt``."""
    with open(path, "rb") as source:
        for split, size in zip(SPLITS, sizes, strict=True):
            with open(folder / f"{split}.txt", "wb") as target:
                while size and (block := source.read(min(size, 1 << 20))):
                    size -= target.write(block)
    return {split: {"bytes": (folder / f"{split}.txt").stat().st_size} for split in SPLITS}
