"""From the logits of a page's n-grams to its keyphrases, and OpenKP's scores of them."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

DEPTHS = (1, 3, 5)


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


def folded(phrase: str) -> str:
    """A phrase in lower case, with single blanks."""
    return " ".join(phrase.lower().split())


def keyphrase_scores(found: Sequence[str], gold: Collection[str]) -> dict[str, float]:
    """Return ``precision_at_K``, ``recall_at_K`` and ``f1_at_K`` of one page, from 0 to 1, for K
    of :data:`DEPTHS`.

    Phrases are equal if they are so in lower case; repeated ones count once. Precision at K is
    over K phrases even where fewer are found.

    Args:
        found: the most likely phrase first.
        gold: all that are right.

    Raises:
        ValueError: if no phrase is right.
    """
    right = {folded(phrase) for phrase in gold} - {""}
    if not right:
        raise ValueError("no gold keyphrase; allowed: one or more")
    distinct = list(dict.fromkeys(map(folded, found)))
    scores = {}
    for depth in DEPTHS:
        hits = sum(phrase in right for phrase in distinct[:depth])
        precision, recall = hits / depth, hits / len(right)
        scores[f"precision_at_{depth}"] = precision
        scores[f"recall_at_{depth}"] = recall
        scores[f"f1_at_{depth}"] = 2 * precision * recall / (precision + recall) if hits else 0.0
    return scores
