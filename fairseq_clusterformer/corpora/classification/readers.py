"""Examples in: labels and raw texts from the file formats that the data sets come in.

Every reader yields the examples of a part's files and refuses what is damaged, with file and line.
"""

import csv
import json
from collections.abc import Iterator, Sequence
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
    """Return a place in a file, as messages tell it."""
    return f"{path}: line {number:,}"


def read_labelled_lines(files: Sequence[Path], encoding: str = "utf-8") -> Iterator[Example]:
    """Yield examples of lines ``LABEL text``."""
    for number, line in enumerate(read_lines(files[0], encoding), 1):
        label, blank, text = line.partition(" ")
        if not blank:
            raise UserError(f"{at(files[0], number)}: {_short(line)}; allowed: LABEL text")
        yield Example(label, (text,), at(files[0], number))


def read_class_files(files: Sequence[Path], encoding: str = "utf-8") -> Iterator[Example]:
    """Yield examples of one text a line, a file for each class: "0", "1"..."""
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
    """Yield examples of lines of columns between tabs.

    Args:
        texts, label, group: columns, counted from 0.
        header: the first line's columns; none: there is no such line.
        width: the number of columns, where there is no header.
        quoted: a column may stand in quotes and then hold ends of lines, as in CSV.
    """
    path, width = files[0], len(header) or width
    rows = _quoted_rows(path) if quoted else _plain_rows(path)
    if header and (found := next(rows, (1, []))[1]) != list(header):
        raise UserError(f"{at(path, 1)}: {_short(found)}; allowed: the header {' '.join(header)}")
    for number, row in rows:
        if len(row) != width:
            raise UserError(
                f"{at(path, number)}: {len(row)} columns, {_short(row)}; allowed: {width} "
                "between tabs"
            )
        key = None if group is None else row[group]
        yield Example(row[label], tuple(row[i] for i in texts), at(path, number), key)


def _plain_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(read_lines(path), 1):
        yield number, line.split("\t")


def _quoted_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((line + "\n" for line in read_lines(path)), delimiter="\t", strict=True)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise UserError(
            f"{at(path, reader.line_num)}: {error}; allowed: columns between tabs, in quotes or "
            "not"
        ) from None


def read_json_lines(files: Sequence[Path]) -> Iterator[Example]:
    """Yield examples of SNLI's JSON, one object a line; a gold label "-" is None."""
    keys = ("gold_label", "sentence1", "sentence2")
    for number, line in enumerate(read_lines(files[0]), 1):
        values = []
        with suppress(ValueError, KeyError, TypeError):
            record = json.loads(line)
            values = [record[key] for key in keys]
        if not values or not all(isinstance(value, str) for value in values):
            raise UserError(
                f"{at(files[0], number)}: {_short(line)}; allowed: a JSON object with the strings "
                f"{', '.join(keys)}"
            )
        label, *texts = values
        yield Example(None if label == "-" else label, tuple(texts), at(files[0], number))


def read_aligned(files: Sequence[Path]) -> Iterator[Example]:
    """Yield examples of four files of as many lines: label, group, first text, second text."""
    rows = zip_longest(*map(read_lines, files))
    for number, row in enumerate(rows, 1):
        if None in row:
            ended = files[row.index(None)]
            longer = next(path for path, cell in zip(files, row, strict=True) if cell is not None)
            raise UserError(
                f"{ended} has {number - 1:,} lines, {longer} has more; allowed is the same number"
            )
        label, group, *texts = row
        yield Example(label, tuple(texts), at(files[0], number), group)


def _short(value: object, most: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."
