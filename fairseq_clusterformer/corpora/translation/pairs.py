"""Parallel text: pairs of lines from two files, from two columns, from the TED talks' markup."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path

from fairseq_clusterformer.errors import bad_option

from ..lines import OPENERS, aligned_lines, read_lines, wrong
from ..splits import draw, key_of

Pair = tuple[str, str]
Pairs = Iterator[Pair]


def pair_files(given: Path, languages: Sequence[str], option: str) -> list[Path]:
    """Return the file of two columns, or the two files ``GIVEN.LANGUAGE`` of lines, that an
    option means."""
    if given.is_file():
        return [given]
    ends = product(languages, ("", *OPENERS))
    files = [path for way in ends if (path := Path(f"{given}.{''.join(way)}")).is_file()]
    names = " and ".join(f"PREFIX.{language}" for language in languages)
    if [path.name.removeprefix(f"{given.name}.").split(".")[0] for path in files] != [*languages]:
        found = " and ".join(path.name for path in files)
        allowed = f"a PREFIX with {names} (or as .gz, .xz, .bz2, .zip), or a file of two columns"
        raise bad_option(option, given, allowed, f"found {found or 'nothing'}")
    return files


def pairs_of(files: Sequence[Path], languages: Sequence[str], columns: Sequence[str]) -> Pairs:
    """Yield the pairs of what `pair_files` returned, in the order of `languages`; one file has
    `columns` of languages. Raises UserError if lines or columns are missing."""
    if len(files) == 2:
        yield from aligned_lines(files)
        return
    order = [columns.index(language) for language in languages]
    for number, line in enumerate(read_lines(files[0]), 1):
        fields = line.split("\t")
        if len(fields) < 2:
            allowed = f"{'<TAB>'.join(columns)}, the two languages' sentences with a tab between "
            raise wrong(files[0], f"line {number:,} is {line!r}", f"{allowed}them")
        yield fields[order[0]], fields[order[1]]


def draw_pairs(read: Callable[[], Pairs], shares: dict[str, float | None]) -> dict[str, Pairs]:
    """Draw splits by a checksum of the pairs' text, so that equal pairs come to the same split.

    Args:
        read: reads all pairs anew at each call.
        shares: for each split its share of the different pairs; None: 5 %, 2,000 at most.
    """
    import numpy as np  # takes too long for --help

    keys = np.unique(np.fromiter(map(_key, read()), np.uint64))  # 8 bytes a pair, not 200
    usual = min(0.05, 2000 / max(1, len(keys)))
    given = {split: share or usual for split, share in shares.items()}
    # each split takes the next keys, up to its share; one more for each split, and one for train
    most = sum(math.ceil(share * len(keys)) for share in given.values()) + len(given) + 1
    some = keys[:most].tolist()
    name = "different pairs of --train"
    drawn = draw(dict.fromkeys(some, 1), given, some, name, total=len(keys))

    def pairs_of_split(split: str) -> Pairs:
        return (pair for pair in read() if drawn.get(_key(pair), "train") == split)

    return {split: pairs_of_split(split) for split in (*shares, "train")}


def _key(pair: Pair) -> int:
    return key_of("\t".join(pair))


# Markup of the TED talks (IWSLT14) and of WMT's test sets

_PASSED_OVER = ("<url>", "<talkid>", "<keywords>")
_TITLE_TAGS = re.compile(r"</?(title|description)>")
_SEGMENT = re.compile(r"<seg [^>]*>\s*(.*?)\s*</seg>")


def read_talks(path: Path) -> Iterator[str]:
    """Yield the lines of ``train.tags.*``, with titles and descriptions, without other headers."""
    for line in read_lines(path):
        if not any(tag in line for tag in _PASSED_OVER):
            yield _TITLE_TAGS.sub("", line).strip()


def read_segments(path: Path) -> Iterator[str]:
    """Yield the segments of an .xml or .sgm file."""
    for line in read_lines(path):
        if found := _SEGMENT.search(line):
            yield found[1]


def read_plain_segments(path: Path) -> Iterator[str]:
    """Yield the segments with plain apostrophes, as fairseq's recipe of IWSLT14."""
    return (line.replace("’", "'") for line in read_segments(path))
