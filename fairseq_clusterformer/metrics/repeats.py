"""Far repeats: tokens that a model can only know from text that lies far back.

What a text has said before is what far attention is for. On bytes, the letters of an identifier
that stood before, once no other identifier of the text so far begins alike; on pieces and words,
the second token of a pair that stood before. How far back the last time was is the distance.
Those that training text holds often are left out: a model knows them by heart.

Arora et al. (Zoology, 2023, section 3) count the pairs of words.
"""

import re
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

#: an identifier of a programming language, or a word: at least 4 letters
_IDENTIFIER = re.compile(rb"[A-Za-z_][A-Za-z0-9_]{3,}")


def count_pairs(items: Iterable[Sequence[int]]) -> Counter:
    """How often each pair of neighbouring tokens stands in the items of a training set."""
    counts: Counter = Counter()
    for tokens in items:
        counts.update(zip(tokens, tokens[1:], strict=False))
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

    Args:
        tokens: of one text.
        known: how often pairs stand in training text.
        most: pairs that stand there more often are left out.
    """
    last: dict[tuple[int, int], int] = {}
    found = [0] * len(tokens)
    for i, pair in enumerate(zip(tokens, tokens[1:], strict=False), start=1):
        if pair in last and known.get(pair, 0) <= most:
            found[i] = i - last[pair]
        last[pair] = i
    return found


def repeated_identifiers(text: bytes, known: Mapping[bytes, int], most: int) -> list[int]:
    """Distances from each byte to the same byte of the identifier that it belongs to, the last
    time; 0: it belongs to none, to a new or a known one, or more than one identifier of the text
    so far begins as this one does.

    Args:
        text: one text.
        known: how often identifiers stand in training text.
        most: identifiers that stand there more often are left out.
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
