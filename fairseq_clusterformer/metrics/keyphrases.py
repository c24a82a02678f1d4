"""The scores of keyphrases, as OpenKP's ``evaluate.py`` counts them."""

from collections.abc import Collection, Sequence

DEPTHS = (1, 3, 5)


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
