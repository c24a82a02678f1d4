"""From the logits of a page's n-grams to its keyphrases."""

from collections.abc import Sequence

import torch
from torch import Tensor


def best_keyphrases(
    logits: Tensor, words: Sequence[str], most: int = 5
) -> list[tuple[str, float]]:
    """The best distinct phrases in lower case, each with the largest of its logits.

    Args:
        logits: of n-grams, [n, W]: row i has those of i + 1 words, by their first word; -inf
            where there is none.
        words: of the page; as many as W, or more.
        most: phrases.
    """
    found: dict[str, float] = {}
    scores, order = logits.flatten().sort(descending=True, stable=True)
    for score, place in zip(scores.tolist(), order.tolist(), strict=True):
        if len(found) == most or score == -torch.inf:
            break
        length, first = divmod(place, logits.size(1))
        found.setdefault(" ".join(words[first : first + length + 1]).lower(), score)
    return list(found.items())
