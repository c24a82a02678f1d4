"""Vectors of words from a text file, as GloVe, word2vec and fastText write them."""

import math
from collections.abc import Callable, Container, Iterator
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor


def read_word_vectors(
    path: str, width: int, option: str, *, known: Container[str] = (), most: int | None = None
) -> tuple[list[str], Tensor]:
    """Words of a file, each once, and their vectors, float32 [n, width].

    A line is a word and its numbers, separated by spaces. Of a word that comes twice the first
    counts. word2vec's first line, the numbers of words and of dimensions, is passed over. Raises
    ValueError: no such file; a line that is no vector of this width; no word found; or numbers
    that are all the same.

    Args:
        option: the one that says the width, for messages.
        known: the words to look for; without any, all are.
        most: lines to read, the first ones; None: all.
    """
    found: dict[str, list[float]] = {}
    for word, numbers in islice(_lines(path, width, option), most):
        if word not in found and (not known or word in known):
            found[word] = numbers()
    if not found:
        problem = "none of the dictionary's words is in it" if known else "it is empty"
        raise _wrong(path, problem, "a text file of vectors of the data's words")
    vectors = torch.tensor(list(found.values()))
    if vectors.min() == vectors.max():
        raise _wrong(path, f"its numbers are all {vectors[0, 0]:g}", "vectors that differ")
    return list(found), vectors


def _lines(path: str, width: int, named: str) -> Iterator[tuple[str, Callable[[], list[float]]]]:
    """Yield each word, and what reads its numbers; ``named`` is the option of their width."""
    if not Path(path).is_file():
        resume = "to resume, leave the option out: the checkpoint has them"
        raise _wrong(path, "no such file", f"a text file of vectors; {resume}")
    shape = f"a word and {width} numbers ({named})"

    def numbers() -> list[float]:
        try:
            read = [float(value) for value in values]
        except ValueError as error:
            raise _wrong(path, f"line {number}: {error}", shape) from None
        if not all(map(math.isfinite, read)):
            raise _wrong(path, f"line {number} has a number that is not finite", shape)
        return read

    with open(path, "rb") as lines:
        for number, raw in enumerate(lines, 1):
            try:
                line = raw.decode().rstrip()
            except UnicodeDecodeError:
                raise _wrong(path, f"line {number} is not UTF-8", "text in UTF-8") from None
            fields = line.split(" ")
            if number == 1 and len(fields) == 2 and all(field.isdigit() for field in fields):
                continue
            # some words contain spaces; they are read only after a line that shows the width
            if len(fields) != width + 1 and (number <= 2 or len(fields) <= width):
                raise _wrong(path, f"line {number} has {len(fields) - 1} numbers", shape)
            word, *values = line.rsplit(" ", width)
            yield word, numbers


def _wrong(path: str, what: str, allowed: str) -> ValueError:
    return ValueError(f"--word-vectors is {path}: {what}; allowed: {allowed}")
