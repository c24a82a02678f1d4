"""The scores of HotpotQA and 2WikiMultihopQA: of answers, which may be "yes" or "no", of the
sentences that support them, and of both together."""

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence

from .answers import check_gold, exact_match, normalise, overlap, precision_recall_f1

_NAMES = ("em", "prec", "recall", "f1")
Facts = Mapping[str, Collection[Hashable]]


def evaluate(
    gold: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    gold_facts: Facts,
    facts: Facts,
) -> dict[str, float]:
    """``em``, ``f1``, ``prec`` and ``recall``, means over all questions from 0 to 1; and over
    those with gold facts ``sp_em`` and so on of these, and ``joint_em`` and so on of both.

    As in ``hotpot_evaluate_v1.py``: "yes", "no" and "noanswer" agree with themselves only, of
    aliases the best by F1 counts, and a question without a prediction counts 0. Facts are its
    supporting sentences, in any form that can be compared. Raises as :func:`.answers.check_gold`.
    """
    check_gold(gold)
    sums = Counter()
    for id_, answers in gold.items():
        scores = dict.fromkeys(_NAMES, 0.0)
        if id_ in predictions:
            scores = score_answer(predictions[id_], answers)
        sums.update(scores)
        if id_ in gold_facts:
            sums.update(score_facts(scores, facts.get(id_, ()), gold_facts[id_]))
    known = len(gold.keys() & gold_facts.keys())
    return {name: value / (known if "_" in name else len(gold)) for name, value in sums.items()}


def score_answer(prediction: str, answers: Sequence[str]) -> dict[str, float]:
    """The scores of an answer, by the gold answer that it agrees with best."""
    found, best = normalise(prediction), (0.0, 0.0, 0.0)
    for right in map(normalise, answers):
        if found == right or not {found, right} & {"yes", "no", "noanswer"}:
            best = max(best, precision_recall_f1(found, right), key=lambda scores: scores[2])
    exact = max(exact_match(prediction, answer) for answer in answers)
    return dict(zip(_NAMES, (exact, *best), strict=True))


def score_facts(
    answer: Mapping[str, float], found: Collection[Hashable], gold: Collection[Hashable]
) -> dict[str, float]:
    """The scores of supporting sentences, and those together with an answer of these scores:
    precision and recall of both are multiplied."""
    found, gold = set(found), set(gold)
    scores = (float(found == gold), *overlap(len(found & gold), len(found), len(gold)))
    facts = dict(zip(_NAMES, scores, strict=True))
    both = {name: answer[name] * facts[name] for name in _NAMES[:3]}
    precision, recall = both["prec"], both["recall"]
    both["f1"] = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    pairs = (("sp", facts), ("joint", both))
    return {f"{of}_{name}": of_name for of, each in pairs for name, of_name in each.items()}
