"""Where a language model is right: by position, and on what the text has said before.

A far repeat is a token that a model can only know from text that lies far back. On bytes, these
are the letters of an identifier that stood before, once no other identifier of the text so far
begins alike; on pieces and words, the second token of a pair that stood before (Arora et al.,
Zoology, 2023, section 3). What training text holds often is left out: a model knows it by heart.
"""

import math
import os
import re
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from torch import Tensor

from fairseq_clusterformer.data.coding import TextCoding

#: buckets are powers of two: below it, from it to twice it, and so on
FIRST = 64
RARE = 20  # what training holds more often is no repeat
POSITION, REPEATS = "bits by position", "bits on repeats by distance"
_IDENTIFIER = re.compile(rb"[A-Za-z_][A-Za-z0-9_]{3,}")  # or a word, of at least 4 letters


class Breakdown:
    """Bits per token by position in the block, and on repeats by distance.

    Args:
        coding: of the tokens. Bytes repeat in identifiers, pieces and words in pairs.
        training: items of the training set, int64 [N] each, by which it is known what is rare;
            none: everything is.
    """

    def __init__(self, coding: TextCoding, training: Iterable[Tensor] = ()):
        self.coding, self.of_bytes = coding, coding.unit == "byte"
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
        if self.of_bytes:
            distances = np.array(self.repeated_identifiers(self._text(target)))
        else:
            tokens = [int(source[-len(target)]), *target.tolist()]
            distances = np.array(self.repeated_pairs(tokens)[1:])
        nats, far = -log_probs.double().cpu().numpy(), distances > 0
        tables = (POSITION, np.arange(len(nats)), nats), (REPEATS, distances[far], nats[far])
        for title, places, of_places in tables:
            buckets = np.frexp(places // FIRST)[1]  # 0 below FIRST, 1 below twice it, and so on
            for bucket in np.unique(buckets).tolist():
                self._nats[title][bucket] += float(of_places[buckets == bucket].sum())
                self._count[title][bucket] += int((buckets == bucket).sum())

    def result(self) -> dict[str, list[dict]]:
        """`POSITION` and `REPEATS`: for each bucket, where it begins and ends (not included), how
        many tokens it has, and the bits of one."""
        return {
            title: [
                {
                    "from": FIRST << (bucket - 1) if bucket else 0,
                    "to": FIRST << bucket,
                    "tokens": count,
                    "bits": self._nats[title][bucket] / count / math.log(2),
                }
                for bucket, count in sorted(counts.items())
            ]
            for title, counts in self._count.items()
        }

    def _text(self, tokens: Tensor) -> bytes:
        """One byte a token; a blank for what is none."""
        chunks = self.coding.chunks(tokens.tolist())
        return b"".join(chunk if len(chunk) == 1 else b" " for chunk in chunks)

    def repeated_pairs(self, tokens: Sequence[int]) -> list[int]:
        """Distances from each token to the last time that it stood after the same token; 0: it is
        new, or the pair is no rare one."""
        last: dict[tuple[int, int], int] = {}
        found = [0] * len(tokens)
        for i, pair in enumerate(pairwise(tokens), start=1):
            if pair in last and self.known[pair] <= RARE:
                found[i] = i - last[pair]
            last[pair] = i
        return found

    def repeated_identifiers(self, text: bytes) -> list[int]:
        """Distances from each byte to the same byte of the identifier that it belongs to, the last
        time; 0: it belongs to none, to a new one or one that is not rare, or more than one
        identifier of the text so far begins as this one does."""
        last: dict[bytes, int] = {}
        ordered: list[bytes] = []  # those of the text so far
        found = [0] * len(text)
        for match in _IDENTIFIER.finditer(text):
            word, begin = match.group(), match.start()
            if word not in last:
                insort(ordered, word)
            elif self.known[word] <= RARE:
                at = bisect_left(ordered, word)
                neighbours = (*ordered[max(0, at - 1) : at], *ordered[at + 1 : at + 2])
                alike = (len(os.path.commonprefix((word, other))) for other in neighbours)
                for i in range(begin + max(alike, default=0) + 1, match.end()):
                    found[i] = begin - last[word]
            last[word] = begin
        return found
