"""Plain text, your own, enwik8 or WikiText-103: found, split and prepared for fairseq.

A *document* is a file, or the text between two separator lines: an iterator of lines. Splits are a
stream of ``(split, lines)``, so that memory holds one line of the corpus.
"""

import hashlib
import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import NamedTuple

from fairseq_clusterformer.data import TOKENIZER
from fairseq_clusterformer.data.characters import FORM, byte_symbols, sentences
from fairseq_clusterformer.errors import UserError, bad_option, no_file
from fairseq_clusterformer.outputs import make_folder

from . import SPLITS
from .files import DAMAGED, PACKED, Archive, checksum, obtain, raw_lines, some, wrong
from .vocabulary import Vocabulary

_SPLIT_NAME = re.compile(r"(train|valid|test)(?=[-._0-9]|$)")

Documents = Iterator[tuple[Path, Iterator[bytes]]]
SplitLines = Iterable[tuple[str, Iterable[bytes]]]


def find_texts(source: Path) -> tuple[list[Path], list[Path]]:
    """Return the text files below `source`, a folder or one file, in order of their paths, and the
    binary files; hidden ones are neither. Raises UserError if there is no text."""
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
    except DAMAGED:
        return False  # to be reported when it is read
    return start.startswith(b"%PDF-") or b"\0" in start


def documents(texts: Sequence[Path], separator: str | None = None) -> Documents:
    """Yield the documents that are not empty, with their files; read each before the next. Raises
    UserError if no text has the `separator`, the line that ends one (None: a file is one)."""
    end = None if separator is None else separator.encode()
    seen = end is None
    for path in texts:
        for is_end, lines in groupby(_lines(path), lambda line: line.rstrip(b"\r\n") == end):
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
    """Yield every document that `read` yields, whole, with its split. By the SHA-256 of their text
    the first ones become valid and the next ones test, within their `fractions` of all bytes;
    where the first is too long, only the shortest document. All others become train."""
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
        yield from groupby(document, split_of)


def by_sentence(parts: SplitLines) -> SplitLines:
    """Give each sentence a line, and each document an empty line behind it."""
    for split, lines in parts:
        texts = (line.decode().rstrip() for line in lines)
        found = (text[start:end] for text in texts for start, end in sentences(text))
        yield split, (f"{sentence}\n".encode() for sentence in chain(found, [""]))


def write_splits(parts: SplitLines, folder: Path) -> dict:
    """Write ``SPLIT.txt``; return how many documents, lines and bytes each split has."""
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


class KnownText(NamedTuple):
    """A corpus whose files are used as they are."""

    name: str
    about: str  # for the command's help
    archive: Archive  # whose members are train, valid and test
    sizes: tuple[int, ...] = ()  # of a single member: the bytes of train and valid; others: test
    words: bool = False  # as tokens, split at blanks; else bytes


KNOWN = {
    "enwik8": KnownText(
        "enwik8",
        "100 MB of Wikipedia, by bytes",
        Archive(
            "http://mattmahoney.net/dc/enwik8.zip",
            "sha256:547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
            {"enwik8": "sha1:57b8363b814821dc9d47aa4d41f58733519076b2"},
        ),
        (90_000_000, 5_000_000),
    ),
    "wikitext103": KnownText(
        "wikitext-103",
        "103 million words of Wikipedia",
        Archive(
            "https://wikitext.smerity.com/wikitext-103-v1.zip",
            "sha256:242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
            {
                "wiki.train.tokens": "sha1:b7497e2dfe77e72cfef5e3dbc61b7b53712ac211",
                "wiki.valid.tokens": "sha1:c326ac59dc587676d58c422eb8a03e119582f92b",
                "wiki.test.tokens": "sha1:8a5befc548865cec54ed4273cf87dbbad60d1e47",
            },
        ),
        words=True,
    ),
}


def prepare_known(
    dest: Path, known: KnownText, source: Path | None = None, *, workers: int | None = None
) -> dict | None:
    """Prepare a known corpus, from the folder `source` or downloaded, as `make_folder` does."""
    form = "none"  # the published numbers are of its text as it is

    def build(work: Path, out: Path) -> dict:
        texts = dict(zip(SPLITS, obtain([known.archive], source, work).values(), strict=False))
        if known.sizes:
            with open(texts["train"], "rb") as whole:
                for split, size in zip(SPLITS, (*known.sizes, -1), strict=True):
                    texts[split] = work / f"{split}.txt"
                    texts[split].write_bytes(whole.read(size))
        return {"splits": _binarize(texts, out, words=known.words, form=form, workers=workers)}

    recipe = {"corpus": known.name, "members": known.archive.members, "sizes": known.sizes}
    return make_folder(dest, recipe | {"unicode": form}, build)


def prepare_text(
    dest: Path,
    source: Path,
    *,
    vocabulary: Vocabulary | None = None,
    words: bool = False,
    sentences: bool = False,
    document_separator: str | None = None,
    valid_fraction: float = 0.05,
    test_fraction: float = 0.05,
    workers: int | None = None,
) -> dict | None:
    """Prepare the text files in `source`, and print which were taken. The options are those of
    ``clusterformer prepare lm text``; without a `vocabulary` or `words`, bytes are tokens."""
    source, dest = source.resolve(), dest.resolve()
    by_bytes = not (words or vocabulary)
    fractions = {"valid": valid_fraction, "test": test_fraction}
    if dest.is_relative_to(source):
        problem = "lies in SOURCE, where the next run would read it as text"
        raise bad_option("DEST", dest, "a folder outside SOURCE", problem)
    if valid_fraction + test_fraction >= 1:
        allowed = "a sum with --valid-fraction below 1"
        raise bad_option("--test-fraction", test_fraction, allowed, f"with {valid_fraction}")
    if sentences and by_bytes:
        raise bad_option("--sentences", "given", "together with subwords or --words")
    texts, skipped = find_texts(source)
    split_of = split_files(source, texts)
    # of fewer files, whole ones would be more than a split's fraction
    few = len(texts) * min(fractions.values()) < 1 and document_separator is None
    split = "files" if split_of else "contiguous" if few else "documents"
    if split_of:
        skipped += [path for path in texts if path not in split_of]
        texts = list(split_of)

    def build(work: Path, out: Path) -> dict:
        passed = f"; skipped: {some(path.name for path in skipped)}" if skipped else ""
        print(f"taken: {len(texts)} files, split by {split}{passed}")
        read = partial(documents, texts, document_separator)
        if split_of:
            parts = ((split_of[path], lines) for path, lines in read())
        else:
            parts = (by_document if split == "documents" else contiguous)(read, fractions)
        counts = write_splits(by_sentence(parts) if sentences else parts, work)
        paths = {name: work / f"{name}.txt" for name in SPLITS}
        found = _binarize(paths, out, vocabulary, words=words, lines=sentences, workers=workers)
        return {"splits": {name: counts[name] | found[name] for name in SPLITS}}

    def recipe() -> dict:
        return {
            "corpus": "text",
            "unicode": "none" if by_bytes else FORM,
            "words": words,
            **(vocabulary.recipe() if vocabulary else {}),
            "sentences": sentences,
            "document_separator": document_separator,
            "split": split,
            "fractions": None if split_of else fractions,
            "files": {p.relative_to(source.parent).as_posix(): checksum(p) for p in texts},
        }

    return make_folder(dest, recipe, build)


def _binarize(
    texts: dict[str, Path],
    out: Path,
    vocabulary: Vocabulary | None = None,
    *,
    words: bool = False,
    form: str = FORM,
    lines: bool = False,
    workers: int | None = None,
) -> dict:
    """Return the bytes, tokens and items of each split. `lines`: each is an item, in any unit."""
    from fairseq_clusterformer.data.coding import TextCoding
    from fairseq_clusterformer.data.tokenizer_json import make

    from . import binarize  # with fairseq it takes seconds; mistakes are to show at once

    if vocabulary:
        vocabulary.write(out, texts["train"])
    else:
        dictionary = binarize.symbol_dictionary(byte_symbols())
        if words:
            counts = binarize.count_words([texts["train"]], form, workers)
            dictionary = binarize.word_dictionary(counts)
        dictionary.save(str(out / "dict.txt"))
        made = make(out, dictionary, unicode=form if words else "none")
        (out / TOKENIZER).write_text(made.to_str(pretty=True), encoding="utf-8")
    coding = TextCoding.from_folder(out)
    coding.form = form
    items = coding.line_items if lines else coding.items
    found = binarize.write_dataset(texts, out, coding.dictionary, items, workers)
    return {split: {"bytes": texts[split].stat().st_size} | found[split] for split in found}
