"""Labelled texts and pairs: one reader for every form of columns, and a user's own data sets."""

import csv
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from fairseq_clusterformer.errors import bad_option

from . import SPLITS
from .lines import OPENERS, numbered_lines, read_lines, some, visible, wrong
from .splits import split_of


class LabelledText(NamedTuple):
    """A labelled text or pair; `label` is None where its annotators did not agree on one."""

    label: str | None
    texts: tuple[str, ...]
    where: str
    group: str | None = None


@dataclass(frozen=True)
class LabelledCorpus:
    """A data set to prepare."""

    name: str  # as in the command
    labels: dict[str, str]  # the class of each label in its files, in order; none: numbers
    files: dict[str, tuple[Path, ...]]  # of "train", "valid" and "test", some of these, or "all"
    read: Callable[..., Iterator[LabelledText]]  # yields the examples of a part's files
    inputs: int = 1  # texts of an example, 1 or 2
    folds: int | None = None  # that "all" makes; None: it makes train, valid and test
    tokenised: bool = False  # words stand between blanks already
    grouped: bool = False  # examples have a group, and are ranked within it
    max_length: int | None = None  # the most tokens of an input; None: any number
    apart: bool = False  # where splits are drawn, equal texts come to the same one
    settings: dict = field(default_factory=dict)  # more for the record

    @property
    def classes(self) -> list[str]:
        """The classes, each once, in the order of their indices; none: labels are numbers."""
        return list(dict.fromkeys(self.labels.values()))


def short(value: object, most: int = 80) -> str:
    """Return a value as Python writes it, or the beginning of it."""
    text = repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."


# One reader for each form

#: what is between columns, and whether they may be in quotes, as in CSV
_COLUMNS = {"tsv": ("\t", False), "csv": (",", True), "quoted tsv": ("\t", True)}
_COLUMNS["lines"] = (" ", False)  # the first blank parts the label and the text
FORMATS = ("tsv", "csv", "jsonl", "lines")


def read_rows(path: Path, kind: str, encoding: str = "utf-8") -> Iterator[tuple[str, list[str]]]:
    """Yield the place of each line and its columns, of a kind other than ``jsonl``."""
    delimiter, quoted = _COLUMNS[kind]
    if not quoted:
        for where, line in numbered_lines(path, encoding):
            yield where, line.split(delimiter, 1 if kind == "lines" else -1)
        return
    csv.field_size_limit(1 << 30)  # a column may be a whole document
    lines = (line + "\n" for line in read_lines(path, encoding))
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        for row in reader:
            yield f"{path}: line {reader.line_num:,}", row
    except csv.Error as error:
        raise wrong(f"{path}: line {reader.line_num:,}", error, "columns, quoted or not") from None


def read_labelled(
    files: Sequence[Path],
    kind: str,
    *,
    label: str = "label",
    texts: Sequence[str] = ("text",),
    names: Sequence[str] | None = None,
    group: str | None = None,
    unlabelled: str | None = None,
    drops: bool = False,
    encoding: str = "utf-8",
) -> Iterator[LabelledText]:
    """Yield the examples of files of a kind: ``jsonl``, or lines of columns.

    Args:
        label, texts, group: the names of the columns, or of the fields of JSON, that hold these.
        names: of all columns in order; None: the first line of each file has them.
        unlabelled: the label that stands for none.
        drops: a line with another number of columns is one without a label, and not refused.
    """
    for path in files:
        for where, cells in _records(path, kind, names, drops, encoding):
            if cells is None:
                yield LabelledText(None, ("",) * len(texts), where)
                continue
            name, *found = (cells.get(name) for name in (label, *texts))
            if not isinstance(name, str | int) or not all(isinstance(text, str) for text in found):
                raise wrong(where, short(cells), f"text in {some((label, *texts))}")
            name = json.dumps(name) if isinstance(name, bool) else str(name)
            try:
                "".join((name, *found)).encode()
            except UnicodeEncodeError as error:  # JSON can escape half of a surrogate pair
                half = f"{error.object[error.start]!r} is half a character"
                raise wrong(where, half, "valid Unicode") from None
            name = None if name == unlabelled else name
            yield LabelledText(name, tuple(found), where, cells.get(group))


def _records(
    path: Path, kind: str, names: Sequence[str] | None, drops: bool, encoding: str
) -> Iterator[tuple[str, dict | None]]:
    """Yield the place and the named columns of each example; None for one that is dropped."""
    if kind == "jsonl":
        for where, line in numbered_lines(path, encoding):
            if line.strip():
                cells = _parsed(line)
                if not isinstance(cells, dict):
                    raise wrong(where, short(line), "a JSON object on each line")
                yield where, cells
        return
    for where, row in read_rows(path, kind, encoding):
        if names is None:
            names = [cell.strip() for cell in row]
        elif len(row) == len(names):
            yield where, dict(zip(names, row, strict=True))
        elif drops:
            yield where, None
        elif any(cell.strip() for cell in row):
            allowed = f"{len(names)} columns ({some(names)}) with {_COLUMNS[kind][0]!r} between"
            raise wrong(where, f"{len(row)} columns, {short(row)}", allowed)


def _parsed(line: str) -> object:
    with suppress(ValueError, RecursionError):
        return json.loads(line)
    return None


# A user's own data

_SUFFIXES = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl"}
_READ = (*_SUFFIXES, ".txt", ".label", ".labels", ".all")
_RESERVED = re.compile(r"<s>|<pad>|</s>|<unk>|madeupword\d{4,}")
# The names of texts that are looked for unless the user gives others.
_TEXTS = (("text", "text2"), ("text1", "text2"), ("text",))


@dataclass(frozen=True)
class FileFormat:
    """How a user's files are to be read."""

    format: str | None = None  # one of `FORMATS`; None: what the file's name says
    label: str = "label"  # the name of the label's column or JSON field
    texts: tuple[str, ...] = ()  # the same of the one or two texts; none: one of `_TEXTS`
    labels: tuple[str, ...] = ()  # read these labels alone; none: all labels
    encoding: str = "utf-8"
    tokenised: bool = False  # words stand between blanks already

    def of(self, path: Path) -> str:
        """Return the format of a file."""
        if found := self.format or _SUFFIXES.get(_suffix(path)):
            return found
        return "tsv" if "\t" in next(read_lines(path, self.encoding), "") else "lines"

    def examples(self, path: Path) -> Iterator[LabelledText]:
        """Yield the examples of a file, or of a folder with a folder per label."""
        if path.is_dir():
            for folder in sorted(path.iterdir()):
                if folder.is_dir() and not folder.name.startswith("."):
                    for file in visible(folder.rglob("*")) if self.takes(folder.name) else ():
                        text = "\n".join(read_lines(file, self.encoding))
                        yield LabelledText(folder.name, (text,), str(file))
            return
        kind, names, texts = self.of(path), None, self.texts
        if kind == "lines":
            names, first = ("label", "text"), ()
        elif kind == "jsonl":
            first = _parsed(next(read_lines(path, self.encoding), ""))
            first = first if isinstance(first, dict) else ()
        else:
            rows = read_rows(path, kind, self.encoding)
            first = [cell.strip() for cell in next(rows, ("", []))[1]]
            if self.label not in first and not texts and self.label == "label":  # no header
                first = names = ("label", "text", "text2")[: max(2, len(first))]
        texts = texts or next((each for each in _TEXTS if {*each} <= {*first}), ("text",))
        how = {"label": self.label, "texts": texts, "names": names, "encoding": self.encoding}
        yield from read_labelled([path], kind, **how)

    def takes(self, label: str) -> bool:
        """Whether examples of a label are to be read."""
        return not self.labels or label in self.labels

    def read(self, files: Sequence[Path]) -> Iterator[LabelledText]:
        """Yield the examples of files, with labels on one line each."""
        for example in chain.from_iterable(map(self.examples, files)):
            label = " ".join(example.label.split())
            if not label:
                raise wrong(example.where, "the label is empty", "a label")
            if self.takes(label):
                yield example._replace(label=label)


def own_corpus(
    source: Path, form: FileFormat, *, valid: Path | None = None, test: Path | None = None
) -> LabelledCorpus:
    """Return a user's own data set, as ``clusterformer prepare classification text --help`` says.
    Raises UserError if nothing is found there, or if the labels make no sense."""
    given = {"SOURCE": source, "--valid": valid, "--test": test}
    for option, path in given.items():
        if path is not None and not path.exists():
            problem = "no such file or folder"
            raise bad_option(option, path, "a file, or a folder per label", problem)
    files = _find_parts(source)
    files |= {part: (path,) for part, path in (("valid", valid), ("test", test)) if path}
    counts, first = Counter(), None
    for example in form.read(files["train"]):
        counts[example.label] += 1
        first = first or example
    _check_labels(files["train"][0], form, counts, first)
    names = sorted(counts, key=lambda name: (int(name), "") if name.isdecimal() else (0, name))
    how = {"inputs": len(first.texts), "tokenised": form.tokenised, "apart": True}
    return LabelledCorpus("text", {name: name for name in names}, files, form.read, **how)


def _check_labels(
    path: Path, form: FileFormat, counts: Counter[str], first: LabelledText | None
) -> None:
    """Refuse labels that make no sense, as where a text or a header is taken for one."""
    fields = "is the label another column? See --labels, --label-field and --text-fields"
    if missing := [name for name in form.labels if name not in counts]:
        problem = f"no example has the label {missing[0]}"
        raise bad_option("--labels", ",".join(form.labels), f"some of {some(counts)}", problem)
    if len(counts) < 2:
        problem = f"{counts.total():,} examples, labels: {some(counts) or 'none'}"
        raise wrong(path, problem, "two labels or more")
    if reserved := [name for name in counts if _RESERVED.fullmatch(name)]:
        allowed = "labels other than <s>, <pad>, </s>, <unk> and madeupwordNNNN"
        raise wrong(path, f"a label is {reserved[0]}, a special symbol of fairseq's", allowed)
    if form.labels or path.is_dir():
        return
    if len(counts) > max(2, counts.total() / 2):
        problem = f"{len(counts):,} labels in {counts.total():,} examples, such as "
        allowed = f"labels that come again, or a folder per label; {fields}"
        raise wrong(path, problem + short(first.label), allowed)
    is_table = form.of(path) in ("tsv", "csv")
    if is_table and first.where.endswith(" line 1") and counts[first.label] == 1:
        problem = f"no other line has the label {short(first.label)}"
        raise wrong(first.where, problem, f"a label that comes again, or a header; {fields}")


def _find_parts(source: Path) -> dict[str, tuple[Path, ...]]:
    if not source.is_dir():
        return {"train": (source,)}
    entries = [path for path in sorted(source.iterdir()) if not path.name.startswith(".")]
    folders = tuple(path for path in entries if path.is_dir())
    files = tuple(path for path in entries if path.is_file() and _suffix(path) in _READ)
    for of_kind in (folders, files):
        parts = {part: tuple(p for p in of_kind if split_of(p) == part) for part in SPLITS}
        if parts["train"]:
            if unused := [path.name for path in of_kind if not split_of(path)]:
                print(f"{source}: passed over, in no split: {some(unused)}", file=sys.stderr)
            return {part: found for part, found in parts.items() if found}
    if len(folders) > 1 or (files and not folders):
        return {"train": (source,) if folders else files}
    allowed = f"files named train, valid and test ({' '.join(_READ)}), folders of these names, "
    problem = f"{len(folders)} folder and {len(files)} files that could be data"
    raise bad_option("SOURCE", source, f"{allowed}or a folder per label", problem)


def _suffix(path: Path) -> str:
    """Without what says that a file is packed."""
    return (path.with_suffix("") if path.suffix in OPENERS else path).suffix
