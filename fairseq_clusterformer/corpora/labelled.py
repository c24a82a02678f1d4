"""Labelled texts and pairs: one reader for every form of columns, and a user's own data sets."""

import csv
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fairseq_clusterformer.errors import bad_option, check_file

from . import SPLITS
from .files import PACKED, half_in, numbered_lines, read_lines, some, split_of, visible, wrong

_RESERVED = re.compile(r"<s>|<pad>|</s>|<unk>|madeupword\d{4,}")  # by fairseq's dictionaries


class LabelledText(NamedTuple):
    """A labelled text or pair; `label` is None where its annotators did not agree on one."""

    label: str | None
    texts: tuple[str, ...]
    where: str
    group: str | None = None


@dataclass(frozen=True)
class LabelledCorpus:
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


#: what is between columns, and whether they may be in quotes, as in CSV
_COLUMNS = {"tsv": ("\t", False), "csv": (",", True), "quoted tsv": ("\t", True)}
_COLUMNS["lines"] = (" ", False)  # the first blank parts the label and the text


def _read_rows(path: Path, kind: str, encoding: str) -> Iterator[tuple[str, list[str] | dict]]:
    """Yield the place of each line, and its columns or, of ``jsonl``, its fields."""
    if kind == "jsonl":
        for where, line in numbered_lines(path, encoding):
            try:
                cells = json.loads(line) if line.strip() else None
            except (ValueError, RecursionError):
                cells = line
            if isinstance(cells, dict):
                yield where, cells
            elif line.strip():
                raise wrong(where, f"{line!r:.80}", "a JSON object on each line")
        return
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
    """Yield the examples of files of a kind: ``jsonl``, or lines of columns with `names`; without,
    each file's first line has them. Label, texts and group are columns or fields of JSON. The
    label `unlabelled` stands for none. With `drops`, so does a wrong number of columns."""
    for path in files:
        columns = names
        for where, cells in _read_rows(path, kind, encoding):
            if isinstance(cells, list):
                if columns is None:
                    columns = [cell.strip() for cell in cells]
                    continue
                if len(cells) != len(columns):
                    if drops:
                        yield LabelledText(None, ("",) * len(texts), where)
                    elif any(cell.strip() for cell in cells):
                        between = f"with {_COLUMNS[kind][0]!r} between"
                        allowed = f"{len(columns)} columns ({some(columns)}) {between}"
                        raise wrong(where, f"{len(cells)} columns, {cells!r:.80}", allowed)
                    continue
                cells = dict(zip(columns, cells, strict=True))
            name, *found = (cells.get(name) for name in (label, *texts))
            if not isinstance(name, str | int) or not all(isinstance(text, str) for text in found):
                raise wrong(where, f"{cells!r:.80}", f"text in {some((label, *texts))}")
            name = json.dumps(name) if isinstance(name, bool) else str(name)
            if half := half_in("".join((name, *found))):
                raise wrong(where, half, "valid Unicode")
            name = None if name == unlabelled else name
            yield LabelledText(name, tuple(found), where, cells.get(group))


# A user's own data

_SUFFIXES = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl"}
_READ = (*_SUFFIXES, ".txt", ".label", ".labels", ".all")
# The names of texts that are looked for unless the user gives others.
_TEXTS = (("text", "text2"), ("text1", "text2"), ("text",))


def own_corpus(
    source: Path, *, label: str = "label", texts: tuple[str, ...] = (), tokenised: bool = False
) -> LabelledCorpus:
    """Return a user's own data set, as ``clusterformer prepare classification text --help`` says.
    Raises UserError if the labels make no sense, as where a text or a header is taken for one."""
    files = _find_parts(source)
    read = partial(_read_own, label=label, texts=texts)
    path, counts, first = files["train"][0], Counter(), None
    for example in read(files["train"]):
        counts[example.label] += 1
        first = first or example
    if len(counts) < 2:
        problem = f"{counts.total():,} examples, labels: {some(counts) or 'none'}"
        raise wrong(path, problem, "two labels or more")
    remedy = "is the label another column? See --label-field and --text-fields"
    if not path.is_dir() and len(counts) > max(2, counts.total() / 2):
        problem = f"{len(counts):,} labels in {counts.total():,} examples, such as "
        allowed = f"labels that come again, or a folder per label; {remedy}"
        raise wrong(path, f"{problem}{first.label!r:.80}", allowed)
    is_first = first.where.endswith(" line 1") and _kind(path) in ("tsv", "csv")
    if is_first and counts[first.label] == 1:
        problem = f"no other line has the label {first.label!r:.80}"
        raise wrong(first.where, problem, f"a label that comes again, or a header; {remedy}")
    names = sorted(counts, key=lambda name: (int(name), "") if name.isdecimal() else (0, name))
    how = {"inputs": len(first.texts), "tokenised": tokenised, "apart": True}
    how["settings"] = {"label": label, "texts": texts}
    return LabelledCorpus("text", {name: name for name in names}, files, read, **how)


def _find_parts(source: Path) -> dict[str, tuple[Path, ...]]:
    if not source.is_dir():
        check_file("SOURCE", source, "a file, or a folder per label")
        return {"train": (source,)}
    folders = tuple(sorted(path for path in source.glob("[!.]*") if path.is_dir()))
    files = tuple(path for path in visible(source.iterdir()) if _suffix(path) in _READ)
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
    return (path.with_suffix("") if path.suffix in PACKED else path).suffix


def _kind(path: Path) -> str:
    if found := _SUFFIXES.get(_suffix(path)):
        return found
    return "tsv" if "\t" in next(read_lines(path), "") else "lines"


def _read_own(files: Sequence[Path], label: str, texts: tuple[str, ...]) -> Iterator[LabelledText]:
    """Yield the examples of files, or of folders with a folder per label."""
    for path in files:
        found = _folder(path) if path.is_dir() else _file(path, label, texts)
        for example in found:
            name = " ".join(example.label.split())
            if not name or _RESERVED.fullmatch(name):
                allowed = "a label but <s>, <pad>, </s>, <unk> and madeupwordNNNN"
                raise wrong(example.where, f"the label is {name!r}", allowed)
            yield example._replace(label=name)


def _folder(path: Path) -> Iterator[LabelledText]:
    for file in visible(path.glob("[!.]*/**/*")):
        text = "\n".join(read_lines(file))
        yield LabelledText(file.relative_to(path).parts[0], (text,), str(file))


def _file(path: Path, label: str, texts: tuple[str, ...]) -> Iterator[LabelledText]:
    kind, names = _kind(path), None
    first = [cell.strip() for cell in next(_read_rows(path, kind, "utf-8"), ("", []))[1]]
    is_headless = kind != "jsonl" and label == "label" not in first and not texts
    if kind == "lines" or is_headless:
        first = names = ("label", "text", "text2")[: max(2, len(first))]
    texts = texts or next((each for each in _TEXTS if {*each} <= {*first}), ("text",))
    return read_labelled([path], kind, label=label, texts=texts, names=names)
