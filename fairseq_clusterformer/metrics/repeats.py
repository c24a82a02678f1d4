"""Far repeats: tokens that a model can only know from text that lies far back.

On bytes, the letters of an identifier that stood before, once no other identifier of the text so
far begins alike; on pieces and words, the second token of a pair that stood before (Arora et al.,
Zoology, 2023, section 3). What training text holds often is left out: a model knows it by heart.
"""

import re
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

_IDENTIFIER = re.compile(rb"[A-Za-z_][A-Za-z0-9_]{3,}")  # or a word, of at least 4 letters


def count_pairs(items: Iterable[Sequence[int]]) -> Counter:
    """How often each pair of neighbouring tokens stands in the items of a training set."""
    counts: Counter = Counter()
    for tokens in items:
        counts.update(pairwise(tokens))
    return counts


def count_identifiers(items: Iterable[bytes]) -> Counter:
    """How often each identifier stands in the items of a training set."""
    counts: Counter = Counter()
    for text in items:
        counts.update(_IDENTIFIER.findall(text))
    return counts


def repeated_pairs(
    tokens: Sequence[int], known: Mapping[tuple[int, int], int], most: int
) -> list[int]:
    """Distances from each token to the last time that it stood after the same token; 0: it is new,
    or the pair is known.

    A pair is known if it stands in training text more than ``most`` times.
    """
    last: dict[tuple[int, int], int] = {}
    found = [0] * len(tokens)
    for i, pair in enumerate(pairwise(tokens), start=1):
        if pair in last and known.get(pair, 0) <= most:
            found[i] = i - last[pair]
        last[pair] = i
    return found


def repeated_identifiers(text: bytes, known: Mapping[bytes, int], most: int) -> list[int]:
    """Distances from each byte to the same byte of the identifier that it belongs to, the last
    time; 0: it belongs to none, to a new or a known one, or more than one identifier of the text
    so far begins as this one does.

    An identifier is known if it stands in training text more than ``most`` times.
    """
    last: dict[bytes, int] = {}
    ordered: list[bytes] = []  # those of the text so far
    found = [0] * len(text)
    for match in _IDENTIFIER.finditer(text):
        word, begin = match.group(), match.start()
        if word not in last:
            insort(ordered, word)
        elif known.get(word, 0) <= most:
            at = bisect_left(ordered, word)
            neighbours = (*ordered[max(0, at - 1) : at], *ordered[at + 1 : at + 2])
            unique = max((_alike(word, other) for other in neighbours), default=0) + 1
            for i in range(begin + unique, match.end()):
                found[i] = begin - last[word]
        last[word] = begin
    return found


def _alike(word: bytes, other: bytes) -> int:
    """How many first letters two words share."""
    shared = min(len(word), len(other))
    return next((i for i in range(shared) if word[i] != other[i]), shared)
