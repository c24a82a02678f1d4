"""Answer texts compared: normalisation, exact match and F1 over words, several gold answers.

Quasar-T, SearchQA and SQuAD 1.1 are scored by :func:`evaluate`; SQuAD 2.0, where many questions
have no answer, by :func:`evaluate_v2`; and HotpotQA by :func:`evaluate_hotpotqa`. All do as the
data sets' scripts.
"""

import re
import string
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = dict.fromkeys(map(ord, string.punctuation))
_HOTPOTQA = ("em", "prec", "recall", "f1")
Gold = Mapping[str, Sequence[str]]  # the right answers to each question, by its id
Facts = Mapping[str, Collection[Hashable]]


def normalise(text: str) -> str:
    """A text as SQuAD's scripts compare it: lower case, no ASCII punctuation or articles; words on
    both sides of a punctuation mark are joined: ``U.S.`` is ``us``."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, gold: str) -> float:
    """1.0 if both are the same text when normalised, else 0.0."""
    return float(normalise(prediction) == normalise(gold))


def overlap(shared: int, found: int, gold: int) -> tuple[float, float, float]:
    """Precision, recall and F1 of two collections, from what they share and their sizes."""
    if not shared:
        return 0.0, 0.0, 0.0
    precision, recall = shared / found, shared / gold
    return precision, recall, 2 * precision * recall / (precision + recall)


def precision_recall_f1(prediction: str, gold: str) -> tuple[float, float, float]:
    """Precision, recall and F1 of the words that two normalised texts share; zeros if none."""
    found, right = prediction.split(), gold.split()
    return overlap((Counter(found) & Counter(right)).total(), len(found), len(right))


def f1(prediction: str, gold: str) -> float:
    """The F1 of the normalised words; 0.0 if either has none."""
    return precision_recall_f1(normalise(prediction), normalise(gold))[2]


def check_gold(gold: Mapping[object, Sequence[str]]) -> None:
    """Raise ValueError if there is nothing to score, or a question without an answer."""
    if without := [id_ for id_, answers in gold.items() if not answers]:
        raise ValueError(f"gold has no answer to {without[0]!r}; allowed: one or more to each")
    if not gold:
        raise ValueError("gold has 0 questions; allowed: 1 or more")


def evaluate(gold: Gold, predictions: Mapping[str, str]) -> dict[str, float]:
    """``exact_match`` and ``f1``, means over all questions in per cent, and ``total``.

    A question counts with the gold answer that its prediction agrees with best,
    and with 0 if it has no prediction, as in ``evaluate-v1.1``; predictions of other ids are
    passed over. Raises ValueError: see :func:`check_gold`.
    """
    check_gold(gold)
    result = {}
    for name, score in (("exact_match", exact_match), ("f1", f1)):
        best = (
            max(score(predictions[id_], text) for text in answers)
            for id_, answers in gold.items()
            if id_ in predictions
        )
        result[name] = 100 * sum(best) / len(gold)
    return result | {"total": len(gold)}


def score_v2(prediction: str, answers: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 as SQuAD 2.0 has them; no answers: none is right. Answers of nothing but
    articles and punctuation are none, and no words agree with no words."""
    found, right = normalise(prediction), [*filter(None, map(normalise, answers))] or [""]
    exact = float(found in right)
    return exact, max(exact, *(precision_recall_f1(found, text)[2] for text in right))


def evaluate_v2(
    gold: Gold, predictions: Mapping[str, str], no_answer: Mapping[str, float], *, threshold: float
) -> dict[str, float]:
    """The scores of SQuAD 2.0 in per cent: the numbers of ``evaluate-v2.0.py``.

    A question may have no gold answer, and "" as its prediction. A prediction counts as "" if its
    ``no_answer``, of any scale, is above the threshold. Returns ``exact``, ``f1``, ``total``; the
    same as ``HasAns_*`` and ``NoAns_*`` where there are such questions; and what the best
    threshold would give, ``best_exact`` and ``best_f1``, with it as ``best_exact_thresh`` and
    ``best_f1_thresh``: 0 for "none answered".
    """
    raw = {id_: score_v2(predictions[id_], answers) for id_, answers in gold.items()}
    groups = {"": [*gold], "HasAns_": [], "NoAns_": []}
    for id_, answers in gold.items():
        groups["HasAns_" if answers else "NoAns_"].append(id_)
    nothing, result = len(groups["NoAns_"]), {}
    for prefix, ids in groups.items():
        for place, name in enumerate(("exact", "f1") if ids else ()):
            of_each = (
                not gold[id_] if no_answer[id_] > threshold else raw[id_][place] for id_ in ids
            )
            result[prefix + name] = 100 * sum(of_each) / len(ids)
            result[f"{prefix}total"] = len(ids)
    for place, name in enumerate(("exact", "f1")):
        # one question after the other is answered, the least likely unanswerable first
        best, score, at = nothing, nothing, 0.0
        for id_ in sorted(gold, key=no_answer.__getitem__):
            score += raw[id_][place] if gold[id_] else -bool(predictions[id_])
            if score > best:
                best, at = score, no_answer[id_]
        result |= {f"best_{name}": 100 * best / len(gold), f"best_{name}_thresh": at}
    return result


def evaluate_hotpotqa(
    gold: Gold, predictions: Mapping[str, str], gold_facts: Facts, facts: Facts
) -> dict[str, float]:
    """The scores of HotpotQA and 2WikiMultihopQA: ``em``, ``f1``, ``prec`` and ``recall``, means
    over all questions from 0 to 1; and over those with gold facts ``sp_em`` and so on of these,
    and ``joint_em`` and so on of both.

    As in ``hotpot_evaluate_v1.py``: "yes", "no" and "noanswer" agree with themselves only, of
    aliases the best by F1 counts, and a question without a prediction counts 0. Facts are its
    supporting sentences, in any form that can be compared. Raises as :func:`check_gold`.
    """
    check_gold(gold)
    sums = Counter()
    for id_, answers in gold.items():
        scores = dict.fromkeys(_HOTPOTQA, 0.0)
        if id_ in predictions:
            scores = score_hotpotqa(predictions[id_], answers)
        sums.update(scores)
        if id_ in gold_facts:
            sums.update(score_facts(scores, facts.get(id_, ()), gold_facts[id_]))
    known = len(gold.keys() & gold_facts.keys())
    return {name: value / (known if "_" in name else len(gold)) for name, value in sums.items()}


def score_hotpotqa(prediction: str, answers: Sequence[str]) -> dict[str, float]:
    """The scores of an answer, by the gold answer that it agrees with best."""
    found, best = normalise(prediction), (0.0, 0.0, 0.0)
    for right in map(normalise, answers):
        if found == right or not {found, right} & {"yes", "no", "noanswer"}:
            best = max(best, precision_recall_f1(found, right), key=lambda scores: scores[2])
    exact = max(exact_match(prediction, answer) for answer in answers)
    return dict(zip(_HOTPOTQA, (exact, *best), strict=True))


def score_facts(
    answer: Mapping[str, float], found: Collection[Hashable], gold: Collection[Hashable]
) -> dict[str, float]:
    """The scores of supporting sentences, and those together with an answer of these scores:
    precision and recall of both are multiplied."""
    found, gold = set(found), set(gold)
    scores = (float(found == gold), *overlap(len(found & gold), len(found), len(gold)))
    facts = dict(zip(_HOTPOTQA, scores, strict=True))
    both = {name: answer[name] * facts[name] for name in _HOTPOTQA[:3]}
    precision, recall = both["prec"], both["recall"]
    both["f1"] = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    pairs = (("sp", facts), ("joint", both))
    return {f"{of}_{name}": of_name for of, each in pairs for name, of_name in each.items()}
