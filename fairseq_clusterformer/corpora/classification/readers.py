"""Readers: from the file formats of labelled data to examples.

Every reader yields the examples of a part's files. It refuses damaged data with file and line.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from fairseq_clusterformer.corpora.translation.pairs import read_lines
from fairseq_clusterformer.errors import UserError


class Example(NamedTuple):
    """A labelled text or pair; `label` is None where its annotators did not agree on one."""

    label: str | None
    texts: tuple[str, ...]
    where: str
    group: str | None = None


def at(path: Path, number: int) -> str:
    """Return a place in a file, for messages."""
    return f"{path}: line {number:,}"


def read_labelled_lines(files: Sequence[Path], encoding: str = "utf-8") -> Iterator[Example]:
    """Yield the examples of lines ``LABEL text``."""
    for path in files:
        for number, line in enumerate(read_lines(path, encoding), 1):
            label, blank, text = line.partition(" ")
            if not blank or not label:
                raise UserError(f"{at(path, number)}: {short(line)}; allowed: LABEL text")
            yield Example(label, (text,), at(path, number))


def read_class_files(files: Sequence[Path], encoding: str = "utf-8") -> Iterator[Example]:
    """Yield the examples of files with one text per line, a file for each class: "0", "1"..."""
    for label, path in enumerate(files):
        for number, line in enumerate(read_lines(path, encoding), 1):
            yield Example(str(label), (line,), at(path, number))


def read_columns(
    files: Sequence[Path],
    *,
    texts: Sequence[int],
    label: int,
    header: Sequence[str] = (),
    width: int = 0,
    group: int | None = None,
    quoted: bool = False,
) -> Iterator[Example]:
    """Yield the examples of lines whose columns are separated by tabs.

    Args:
        texts, label, group: columns, counted from 0.
        header: the first line's columns; none: there is no such line.
        width: the number of columns, where there is no header.
        quoted: see `read_rows`.
    """
    path, width = files[0], len(header) or width
    rows = read_rows(path, "\t", quoted=quoted)
    if header and (found := next(rows, (1, []))[1]) != list(header):
        raise UserError(f"{at(path, 1)}: {short(found)}; allowed: the header {' '.join(header)}")
    for number, row in rows:
        if len(row) != width:
            raise UserError(
                f"{at(path, number)}: {len(row)} columns, {short(row)}; allowed: {width} "
                "between tabs"
            )
        key = None if group is None else row[group]
        yield Example(row[label], tuple(row[i] for i in texts), at(path, number), key)


def read_rows(
    path: Path, delimiter: str, *, quoted: bool, encoding: str = "utf-8"
) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each line and its columns.

    Args:
        quoted: a column may stand in quotes, and then hold delimiters and line ends, as in CSV.
    """
    if not quoted:
        for number, line in enumerate(read_lines(path, encoding), 1):
            yield number, line.split(delimiter)
        return
    csv.field_size_limit(1 << 30)  # a column may be a whole document
    lines = (line + "\n" for line in read_lines(path, encoding))
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        name = {"\t": "tabs", ",": "commas"}[delimiter]
        raise UserError(
            f"{at(path, reader.line_num)}: {error}; allowed: columns between {name}, in quotes "
            "or not"
        ) from None


def read_json_lines(files: Sequence[Path]) -> Iterator[Example]:
    """Yield the examples of SNLI's JSON, one object per line; a gold label "-" is None."""
    keys = ("gold_label", "sentence1", "sentence2")
    for number, line in enumerate(read_lines(files[0]), 1):
        values = []
        with suppress(ValueError, KeyError, TypeError):
            record = json.loads(line)
            values = [record[key] for key in keys]
        if not values or not all(isinstance(value, str) for value in values):
            raise UserError(
                f"{at(files[0], number)}: {short(line)}; allowed: a JSON object with the strings "
                f"{', '.join(keys)}"
            )
        label, *texts = values
        yield Example(None if label == "-" else label, tuple(texts), at(files[0], number))


def read_aligned(files: Sequence[Path]) -> Iterator[Example]:
    """Yield the examples of four files with equally many lines: label, group and both texts."""
    rows = zip_longest(*map(read_lines, files))
    for number, row in enumerate(rows, 1):
        if None in row:
            ended = files[row.index(None)]
            longer = next(path for path, cell in zip(files, row, strict=True) if cell is not None)
            raise UserError(
                f"{ended} has {number - 1:,} lines, {longer} has more; allowed: the same number"
            )
        label, group, *texts = row
        yield Example(label, tuple(texts), at(files[0], number), group)


def short(value: object, most: int = 80) -> str:
    """Return a value as Python writes it, or the beginning of it."""
    text = repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."


def some(names: Iterable[str], most: int = 20) -> str:
    """Return names with commas between them, or the first of them."""
    names = list(names)
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
