"""Vectors of words from a text file, as GloVe, word2vec and fastText write them."""

import math
from pathlib import Path

import torch
from fairseq.data import Dictionary
from torch import Tensor


def read_word_vectors(path: str, dictionary: Dictionary, width: int) -> tuple[Tensor, Tensor]:
    """The vectors of a dictionary's words, spelt as they are there.

    A line is a word and its numbers, separated by spaces. Of a word that comes twice the first
    counts. word2vec's first line, the numbers of words and of dimensions, is passed over.

    Args:
        path: of the file, in UTF-8.
        dictionary: whose words are looked for.
        width: numbers of a vector.

    Returns:
        Places in the dictionary, int64 [n], and vectors, float32 [n, width].

    Raises:
        ValueError: no such file; a line that is no vector of this width; none of the words; or
            numbers that are all the same.
    """

    def wrong(what: str, allowed: str) -> ValueError:
        return ValueError(f"--word-vectors is {path}: {what}; allowed: {allowed}")

    if not Path(path).is_file():
        resume = "to resume, leave the option out: the checkpoint has them"
        raise wrong("no such file", f"a text file of vectors; {resume}")
    shape = f"a word and {width} numbers (--encoder-embed-dim)"
    found: dict[int, list[float]] = {}
    with open(path, "rb") as lines:
        for number, raw in enumerate(lines, 1):
            try:
                line = raw.decode().rstrip()
            except UnicodeDecodeError:
                raise wrong(f"line {number} is not UTF-8", "text in UTF-8") from None
            fields = line.split(" ")
            if number == 1 and len(fields) == 2 and all(field.isdigit() for field in fields):
                continue
            # some words contain spaces; they are read only after a line that shows the width
            if len(fields) != width + 1 and (number <= 2 or len(fields) <= width):
                raise wrong(f"line {number} has {len(fields) - 1} numbers", shape)
            word, *values = line.rsplit(" ", width)
            place = dictionary.indices.get(word)
            if place in (None, dictionary.pad()) or place in found:
                continue
            try:
                found[place] = [float(value) for value in values]
            except ValueError as error:
                raise wrong(f"line {number}: {error}", shape) from None
            if not all(map(math.isfinite, found[place])):
                raise wrong(f"line {number} has a number that is not finite", shape)
    if not found:
        raise wrong("none of the dictionary's words is in it", "a file of the data's words")
    vectors = torch.tensor(list(found.values()))
    if vectors.min() == vectors.max():
        raise wrong(f"its numbers are all {vectors[0, 0]:g}", "vectors that differ")
    return torch.tensor(list(found)), vectors
