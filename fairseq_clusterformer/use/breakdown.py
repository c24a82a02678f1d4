"""Where a language model is right: by position, and on what the text has said before.

A far repeat is a token that a model can only know from text that lies far back. On bytes, these
are the letters of an identifier that stood before, once no other identifier of the text so far
begins alike; on pieces and words, the second token of a pair that stood before (Arora et al.,
Zoology, 2023, section 3). What training text holds often is left out: a model knows it by heart.
"""

import math
import re
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np
from torch import Tensor

from fairseq_clusterformer.data.coding import TextCoding

#: buckets are powers of two: below it, from it to twice it, and so on
FIRST = 64
POSITION, REPEATS = "bits by position", "bits on repeats by distance"
_IDENTIFIER = re.compile(rb"[A-Za-z_][A-Za-z0-9_]{3,}")  # or a word, of at least 4 letters


class Breakdown:
    """Bits per token by position in the block, and on repeats by distance.

    Args:
        coding: of the tokens. Bytes repeat in identifiers, pieces and words in pairs.
        training: items of the training set, int64 [N] each, by which it is known what is rare;
            none: everything is.
        rare: what training holds more often than that is no repeat.
    """

    def __init__(self, coding: TextCoding, training: Iterable[Tensor] = (), rare: int = 20):
        self.coding, self.rare = coding, rare
        self.of_bytes = coding.unit == "byte"
        self.known: Counter = Counter()  # how often each identifier, or pair, stands in training
        for tokens in training:
            if self.of_bytes:
                self.known.update(_IDENTIFIER.findall(self._text(tokens)))
            else:
                self.known.update(pairwise(tokens.tolist()))
        # by the title of a table: nats and tokens of each bucket
        self._nats = {POSITION: Counter(), REPEATS: Counter()}
        self._count = {POSITION: Counter(), REPEATS: Counter()}

    def add(self, source: Tensor, target: Tensor, log_probs: Tensor) -> None:
        """Count a block: inputs int64 [M], the last targets int64 [N], their log-probabilities."""
        nats = -log_probs.double().cpu().numpy()
        self._tally(POSITION, np.arange(len(nats)), nats)
        if self.of_bytes:
            found = repeated_identifiers(self._text(target), self.known, self.rare)
        else:
            tokens = [int(source[-len(target)]), *target.tolist()]
            found = repeated_pairs(tokens, self.known, self.rare)[1:]
        distances = np.array(found)
        self._tally(REPEATS, distances[distances > 0], nats[distances > 0])

    def result(self) -> dict[str, list[dict]]:
        """`POSITION` and `REPEATS`: for each bucket, where it begins and ends (not included), how
        many tokens it has, and the bits of one."""
        return {
            title: [
                {
                    "from": 0 if bucket == 0 else FIRST << (bucket - 1),
                    "to": FIRST << bucket,
                    "tokens": count,
                    "bits": self._nats[title][bucket] / count / math.log(2),
                }
                for bucket, count in sorted(counts.items())
            ]
            for title, counts in self._count.items()
        }

    def _tally(self, title: str, places: np.ndarray, nats: np.ndarray) -> None:
        buckets = np.frexp(places // FIRST)[1]  # 0 below FIRST, 1 below twice it, and so on
        for bucket in np.unique(buckets).tolist():
            chosen = buckets == bucket
            self._nats[title][bucket] += float(nats[chosen].sum())
            self._count[title][bucket] += int(chosen.sum())

    def _text(self, tokens: Tensor) -> bytes:
        """One byte a token; a blank for what is none."""
        chunks = self.coding.chunks(tokens.tolist())
        return b"".join(chunk if len(chunk) == 1 else b" " for chunk in chunks)


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
