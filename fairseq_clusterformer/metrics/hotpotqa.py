"""The scores of HotpotQA and 2WikiMultihopQA: of answers, which may be "yes" or "no", of the
sentences that support them, and of both together."""

from collections.abc import Collection, Hashable, Mapping, Sequence

from .answers import exact_match, normalise, overlap, precision_recall_f1, require_answers

_NAMES = ("em", "prec", "recall", "f1")
Facts = Mapping[str, Collection[Hashable]]


def evaluate(
    gold: Mapping[str, str | Sequence[str]],
    predictions: Mapping[str, str],
    gold_facts: Facts | None = None,
    facts: Facts | None = None,
) -> dict[str, float]:
    """``em``, ``f1``, ``prec`` and ``recall``, means over all questions from 0 to 1.

    With supporting facts, also ``sp_em`` and so on of these, and ``joint_em`` and so on: precision
    and recall of both are multiplied, question by question.

    As in ``hotpot_evaluate_v1.py``: "yes", "no" and "noanswer" agree with themselves only, and a
    question without a prediction counts 0.

    Args:
        gold: the answer to each question's id, or several (aliases; the best by F1 counts).
        predictions: the answer to each.
        gold_facts: the supporting sentences of each question, in any form that can be compared;
            questions that are not in it count for the answer alone.
        facts: those that were predicted; a question without any counts 0.

    Raises:
        ValueError: if there is no question, or one has no gold answer.
    """
    require_answers(gold)
    gold_facts, facts = gold_facts or {}, facts or {}
    sums: dict[str, float] = {}
    for id_, answers in gold.items():
        answers = [answers] if isinstance(answers, str) else answers
        scores = {"": dict.fromkeys(_NAMES, 0.0)}
        if id_ in predictions:
            scores[""] = score_answer(predictions[id_], answers)
        if id_ in gold_facts:
            scores["sp_"] = score_facts(facts.get(id_, ()), gold_facts[id_])
            scores["joint_"] = score_jointly(scores[""], scores["sp_"])
        for prefix, found in scores.items():
            for name, value in found.items():
                sums[prefix + name] = sums.get(prefix + name, 0.0) + value
    known = len(gold.keys() & gold_facts.keys())
    return {name: value / (known if "_" in name else len(gold)) for name, value in sums.items()}


def score_answer(prediction: str, answers: Sequence[str]) -> dict[str, float]:
    """The scores of an answer, by the gold answer that it agrees with best."""
    exact = max(exact_match(prediction, answer) for answer in answers)
    best = max((_words(prediction, answer) for answer in answers), key=lambda scores: scores[2])
    return dict(zip(_NAMES, (exact, *best), strict=True))


def score_facts(found: Collection[Hashable], gold: Collection[Hashable]) -> dict[str, float]:
    """The scores of supporting sentences."""
    found, gold = set(found), set(gold)
    scores = overlap(len(found & gold), len(found), len(gold))
    return dict(zip(_NAMES, (float(found == gold), *scores), strict=True))


def score_jointly(answer: Mapping[str, float], facts: Mapping[str, float]) -> dict[str, float]:
    """The scores of an answer together with its supporting sentences."""
    scores = {name: answer[name] * facts[name] for name in _NAMES[:3]}
    total = scores["prec"] + scores["recall"]
    return scores | {"f1": 2 * scores["prec"] * scores["recall"] / total if total else 0.0}


def _words(prediction: str, gold: str) -> tuple[float, float, float]:
    texts = normalise(prediction), normalise(gold)
    if texts[0] != texts[1] and any(text in ("yes", "no", "noanswer") for text in texts):
        return 0.0, 0.0, 0.0
    return precision_recall_f1(texts[0].split(), texts[1].split())
