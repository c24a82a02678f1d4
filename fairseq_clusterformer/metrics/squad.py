"""The scores of SQuAD 2.0, where many questions have no answer: the numbers of
``evaluate-v2.0.py``. Those of SQuAD 1.1 are :func:`.answers.evaluate`'s."""

from collections.abc import Iterable, Mapping, Sequence

from .answers import exact_match, f1, normalise, require_questions, some


def evaluate_v2(
    gold: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    no_answer: Mapping[str, float] | None = None,
    *,
    threshold: float = 1.0,
) -> dict[str, float]:
    """The scores of SQuAD 2.0 in per cent, also of questions with and without answer apart.

    Args:
        gold: the accepted answers of each question's id; empty: it has none.
        predictions: the answer to each question, "" for none.
        no_answer: how likely each question has no answer (any scale); None: 0 for all.
        threshold: a prediction whose `no_answer` is above it counts as "".

    Returns:
        ``exact``, ``f1``, ``total``; the same as ``HasAns_*`` and ``NoAns_*`` where there are
        such questions; and, if `no_answer` is given, ``best_exact`` and ``best_f1``, what the
        best threshold would give, with ``best_exact_thresh`` and ``best_f1_thresh``.

    Raises:
        ValueError: if there is no question, or one without a prediction or a `no_answer`.
    """
    require_questions(gold)
    given = {"predictions": predictions} | ({} if no_answer is None else {"no_answer": no_answer})
    for name, values in given.items():
        if missing := [id_ for id_ in gold if id_ not in values]:
            raise ValueError(f"{name} lacks {some(missing)}; allowed: one for each question")
    likely = no_answer or dict.fromkeys(gold, 0.0)
    raw: dict[str, dict[str, float]] = {"exact": {}, "f1": {}}
    scores: dict[str, dict[str, float]] = {"exact": {}, "f1": {}}
    for id_, answers in gold.items():
        # Answers of nothing but articles and punctuation are none, but leave the question HasAns.
        texts = [text for text in answers if normalise(text)] or [""]
        for name, score in (("exact", exact_match), ("f1", _f1)):
            raw[name][id_] = max(score(predictions[id_], text) for text in texts)
            unanswered = likely[id_] > threshold
            scores[name][id_] = float(not answers) if unanswered else raw[name][id_]
    result = _means(scores, gold)
    for prefix, wanted in (("HasAns", True), ("NoAns", False)):
        if ids := [id_ for id_, answers in gold.items() if bool(answers) is wanted]:
            result |= {f"{prefix}_{k}": value for k, value in _means(scores, ids).items()}
    if no_answer is not None:
        for name, found in raw.items():
            best, at = _best_threshold(found, predictions, no_answer, gold)
            result |= {f"best_{name}": best, f"best_{name}_thresh": at}
    return result


def _f1(prediction: str, gold: str) -> float:
    """F1 where no words agree with no words, which version 1.1 counts as 0."""
    if not normalise(prediction) or not normalise(gold):
        return exact_match(prediction, gold)
    return f1(prediction, gold)


def _means(scores: Mapping[str, Mapping[str, float]], ids: Iterable[str]) -> dict[str, float]:
    ids = list(ids)
    means = {name: 100 * sum(of[id_] for id_ in ids) / len(ids) for name, of in scores.items()}
    return means | {"total": len(ids)}


def _best_threshold(
    scores: Mapping[str, float],
    predictions: Mapping[str, str],
    no_answer: Mapping[str, float],
    gold: Mapping[str, Sequence[str]],
) -> tuple[float, float]:
    """The best mean in per cent, and the threshold that gives it, 0 for "none answered".

    One question after the other is answered, the least likely unanswerable first.
    """
    best = score = sum(not answers for answers in gold.values())
    at = 0.0
    for id_ in sorted((id_ for id_ in no_answer if id_ in scores), key=no_answer.get):
        if gold[id_]:
            score += scores[id_]
        elif predictions[id_]:
            score -= 1
        if score > best:
            best, at = score, no_answer[id_]
    return 100 * best / len(scores), at
