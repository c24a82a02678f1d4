"""Where a language model is right: by position, and on what the text has said before."""

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np
from torch import Tensor

from fairseq_clusterformer.data.coding import TextCoding
from fairseq_clusterformer.metrics import repeats

#: buckets are powers of two: below it, from it to twice it, and so on
FIRST = 64
POSITION, REPEATS = "bits by position", "bits on repeats by distance"


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
        if self.of_bytes:
            self.known = repeats.count_identifiers(map(self._text, training))
        else:
            self.known = repeats.count_pairs(tokens.tolist() for tokens in training)
        # by the title of a table: nats and tokens of each bucket
        self._nats = {POSITION: Counter(), REPEATS: Counter()}
        self._count = {POSITION: Counter(), REPEATS: Counter()}

    def add(self, source: Tensor, target: Tensor, log_probs: Tensor) -> None:
        """Count a block: inputs int64 [M], the last targets int64 [N], their log-probabilities."""
        nats = -log_probs.double().cpu().numpy()
        self._tally(POSITION, np.arange(len(nats)), nats)
        if self.of_bytes:
            found = repeats.repeated_identifiers(self._text(target), self.known, self.rare)
        else:
            tokens = [int(source[-len(target)]), *target.tolist()]
            found = repeats.repeated_pairs(tokens, self.known, self.rare)[1:]
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
