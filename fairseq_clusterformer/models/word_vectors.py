"""Vectors of words from a text file, as GloVe, word2vec and fastText write them."""

import math
from collections.abc import Container
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor


def read_word_vectors(
    path: str, width: int, option: str, *, known: Container[str] = (), most: int | None = None
) -> tuple[list[str], Tensor]:
    """Words of a file, each once, and their vectors, float32 [n, width]; of those that are known,
    or all, in its first lines, or all.

    A line is a word and its numbers, separated by spaces. Of a word that comes twice the first
    counts. word2vec's first line, the numbers of words and of dimensions, is passed over. Raises
    ValueError: no such file; a line that is no vector of this width, which the option says; no
    word found; or numbers that are all the same.
    """

    def wrong(what: str, allowed: str) -> ValueError:
        return ValueError(f"--word-vectors is {path}: {what}; allowed: {allowed}")

    if not Path(path).is_file():
        resume = "to resume, leave the option out: the checkpoint has them"
        raise wrong("no such file", f"a text file of vectors; {resume}")
    found: dict[str, list[float]] = {}
    with open(path, "rb") as lines:
        for number, raw in enumerate(islice(lines, most), 1):
            try:
                line = raw.decode().rstrip()
                cells = line.split(" ")
                if number == 1 and len(cells) == 2 and all(map(str.isdigit, cells)):
                    continue
                # some words contain spaces; they are read only after a line that shows the width
                if len(cells) != width + 1 and (number <= 2 or len(cells) <= width):
                    raise ValueError(f"it has {len(cells) - 1} numbers")
                word, *values = line.rsplit(" ", width)
                if word not in found and (not known or word in known):
                    found[word] = [float(value) for value in values]
                    if not all(map(math.isfinite, found[word])):
                        raise ValueError("it has a number that is not finite")
            except ValueError as error:  # not UTF-8, no number
                shape = f"a word and {width} numbers ({option}), in UTF-8"
                raise wrong(f"line {number}: {error}", shape) from None
    if not found:
        problem = "none of the dictionary's words is in it" if known else "it is empty"
        raise wrong(problem, "a text file of vectors of the data's words")
    vectors = torch.tensor(list(found.values()))
    if vectors.min() == vectors.max():
        raise wrong(f"its numbers are all {vectors[0, 0]:g}", "vectors that differ")
    return list(found), vectors
