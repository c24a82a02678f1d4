"""One reader for each format of labelled data: it yields the examples of a part's files, and
refuses damaged data with file and line."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..lines import read_lines, wrong

_NAMES = {"\t": "tabs", ",": "commas"}


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
    published: dict[str, int] | None = None  # the number of examples in each part
    max_length: int | None = None  # the most tokens of an input; None: any number
    apart: bool = False  # where splits are drawn, equal texts come to the same one
    settings: dict = field(default_factory=dict)  # more for the record

    @property
    def classes(self) -> list[str]:
        """The classes, each once, in the order of their indices; none: labels are numbers."""
        return list(dict.fromkeys(self.labels.values()))


def at(path: Path, number: int) -> str:
    """Return a place in a file, for messages."""
    return f"{path}: line {number:,}"


def lines_of(files: Sequence[Path], encoding: str) -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each line."""
    for path in files:
        for number, line in enumerate(read_lines(path, encoding), 1):
            yield at(path, number), line


def read_labelled_lines(files: Sequence[Path], encoding: str = "utf-8") -> Iterator[LabelledText]:
    """Yield the examples of lines ``LABEL text``."""
    for where, line in lines_of(files, encoding):
        label, blank, text = line.partition(" ")
        if not blank or not label:
            raise wrong(where, short(line), "LABEL text")
        yield LabelledText(label, (text,), where)


def read_table(
    files: Sequence[Path],
    *,
    label: str,
    texts: Sequence[str],
    names: Sequence[str] | None = None,
    group: str | None = None,
    delimiter: str = "\t",
    quoted: bool = False,
    encoding: str = "utf-8",
    drops: bool = False,
) -> Iterator[LabelledText]:
    """Yield the examples of lines of columns, given the names of those that hold label, texts and
    group, and of all columns in order (None: the first line of each file has them). A line with
    another number of columns `drops` out as one without a label, or is refused."""
    for path in files:
        columns = names
        for where, row in read_rows(path, delimiter, quoted=quoted, encoding=encoding):
            if columns is None:
                columns = [cell.strip() for cell in row]
                if not {label, *texts} <= set(columns):
                    wanted = some((label, *texts))
                    raise wrong(at(path, 1), short(row), f"a header with {wanted}")
            elif len(row) == len(columns):
                cells = dict(zip(columns, row, strict=True))
                found = tuple(cells[name] for name in texts)
                yield LabelledText(cells[label], found, where, cells.get(group))
            elif drops:
                yield LabelledText(None, ("",) * len(texts), where)
            elif any(cell.strip() for cell in row):
                allowed = f"{len(columns)} columns ({some(columns)}) between {_NAMES[delimiter]}"
                raise wrong(where, f"{len(row)} columns, {short(row)}", allowed)


def read_rows(
    path: Path, delimiter: str, *, quoted: bool, encoding: str = "utf-8"
) -> Iterator[tuple[str, list[str]]]:
    """Yield the place of each line and its columns, which may be `quoted` and then hold
    delimiters and line ends, as in CSV."""
    if not quoted:
        for where, line in lines_of([path], encoding):
            yield where, line.split(delimiter)
        return
    csv.field_size_limit(1 << 30)  # a column may be a whole document
    lines = (line + "\n" for line in read_lines(path, encoding))
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        for row in reader:
            yield at(path, reader.line_num), row
    except csv.Error as error:
        allowed = f"columns between {_NAMES[delimiter]}, in quotes or not"
        raise wrong(at(path, reader.line_num), error, allowed) from None


def read_objects(
    files: Sequence[Path],
    *,
    label: str,
    texts: Sequence[str],
    unlabelled: str | None = None,
    encoding: str = "utf-8",
) -> Iterator[LabelledText]:
    """Yield the examples of JSON objects, one per line, given the names of their fields. A label
    may also be a whole number or a boolean; `unlabelled` stands for none."""
    fields = (label, *texts)
    for where, line in lines_of(files, encoding):
        if not line.strip():
            continue
        name, found = None, []
        with suppress(ValueError, LookupError, TypeError, RecursionError):
            record = json.loads(line)
            name, *found = (record[field] for field in fields)
        if not isinstance(name, str | int) or not all(isinstance(text, str) for text in found):
            raise wrong(where, short(line), f"a JSON object with the fields {some(fields)}")
        name = json.dumps(name) if isinstance(name, bool) else str(name)
        try:
            "".join((name, *found)).encode()
        except UnicodeEncodeError as error:  # JSON can escape half of a surrogate pair
            problem = f"{error.object[error.start]!r} is half a character"
            raise wrong(where, problem, "valid Unicode") from None
        yield LabelledText(None if name == unlabelled else name, tuple(found), where)


def short(value: object, most: int = 80) -> str:
    """Return a value as Python writes it, or the beginning of it."""
    text = repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."


def some(names: Iterable[str], most: int = 20) -> str:
    """Return names with commas between them, or the first of them."""
    names = list(names)
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
