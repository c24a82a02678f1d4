"""The answer scores of HotpotQA and 2WikiMultihopQA, whose answers may be "yes" or "no"."""

from collections.abc import Mapping, Sequence

from .answers import (
    exact_match,
    normalise,
    precision_recall_f1,
    require_answers,
)

_WHOLE = ("yes", "no", "noanswer")


def evaluate(
    gold: Mapping[str, str | Sequence[str]], predictions: Mapping[str, str]
) -> dict[str, float]:
    """Return ``em``, ``f1``, ``prec`` and ``recall``, means over all questions from 0 to 1.

    As in ``hotpot_evaluate_v1.py``: "yes", "no" and "noanswer" agree with themselves only, and a
    question without a prediction counts 0.

    Args:
        gold: the answer to each question's id, or several (aliases; the best by F1 counts).
        predictions: the answer to each.

    Raises:
        ValueError: if there is no question, or one has no gold answer.
    """
    require_answers(gold)
    sums = dict.fromkeys(("em", "f1", "prec", "recall"), 0.0)
    for id_, answers in gold.items():
        if id_ not in predictions:
            continue
        answers = [answers] if isinstance(answers, str) else answers
        sums["em"] += max(exact_match(predictions[id_], answer) for answer in answers)
        precision, recall, f1 = max(
            (score_words(predictions[id_], answer) for answer in answers), key=lambda s: s[2]
        )
        sums["f1"] += f1
        sums["prec"] += precision
        sums["recall"] += recall
    return {name: value / len(gold) for name, value in sums.items()}


def score_words(prediction: str, gold: str) -> tuple[float, float, float]:
    """Return precision, recall and F1 of an answer's words."""
    texts = normalise(prediction), normalise(gold)
    if texts[0] != texts[1] and any(text in _WHOLE for text in texts):
        return 0.0, 0.0, 0.0
    return precision_recall_f1(texts[0].split(), texts[1].split())
