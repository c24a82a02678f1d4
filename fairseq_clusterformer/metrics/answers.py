"""Answer texts compared: normalisation, exact match and F1 over words, several gold answers.

Quasar-T, SearchQA and SQuAD 1.1 are scored by :func:`evaluate` as it is, TriviaQA with
``normalise=normalise_triviaqa``; both as the data sets' own scripts have it.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = dict.fromkeys(map(ord, string.punctuation))
_BLANK_PUNCTUATION = dict.fromkeys(map(ord, string.punctuation + "‘’´`"), " ")

Normalise = Callable[[str], str]


def normalise(text: str) -> str:
    """A text as SQuAD's scripts compare it: lower case, no ASCII punctuation or articles; words on
    both sides of a punctuation mark are joined: ``U.S.`` is ``us``."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def normalise_triviaqa(text: str) -> str:
    """The same as TriviaQA's script does: punctuation, also typographic, is a blank."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_BLANK_PUNCTUATION)).split())


def exact_match(prediction: str, gold: str, normalise: Normalise = normalise) -> float:
    """1.0 if both are the same text when normalised, else 0.0."""
    return float(normalise(prediction) == normalise(gold))


def overlap(shared: int, found: int, gold: int) -> tuple[float, float, float]:
    """Precision, recall and F1 of two collections, from what they share and their sizes."""
    if not shared:
        return 0.0, 0.0, 0.0
    precision, recall = shared / found, shared / gold
    return precision, recall, 2 * precision * recall / (precision + recall)


def precision_recall_f1(
    prediction: Sequence[str], gold: Sequence[str]
) -> tuple[float, float, float]:
    """Precision, recall and F1 of the words that two answers share; zeros if none."""
    shared = (Counter(prediction) & Counter(gold)).total()
    return overlap(shared, len(prediction), len(gold))


def f1(prediction: str, gold: str, normalise: Normalise = normalise) -> float:
    """The F1 of the normalised words; 0.0 if either has none."""
    return precision_recall_f1(normalise(prediction).split(), normalise(gold).split())[2]


def evaluate(
    gold: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    *,
    normalise: Normalise = normalise,
) -> dict[str, float]:
    """``exact_match`` and ``f1``, means over all questions in per cent, and ``total``.

    A question counts with the gold answer that its prediction agrees with best, and with 0 if it
    has no prediction, as in ``evaluate-v1.1``.

    Args:
        gold: the accepted answers of each question's id, one or more (TriviaQA: the aliases).
        predictions: the answer to each; ids that are not in `gold` are passed over.

    Raises:
        ValueError: if there is no question, or one has no gold answer.
    """
    require_answers(gold)
    result = {}
    for name, score in (("exact_match", exact_match), ("f1", f1)):
        best = (
            max(score(predictions[id_], text, normalise) for text in answers)
            for id_, answers in gold.items()
            if id_ in predictions
        )
        result[name] = 100 * sum(best) / len(gold)
    return result | {"total": len(gold)}


def require_questions(gold: Mapping) -> None:
    """Raise ValueError if there is nothing to score."""
    if not gold:
        raise ValueError("gold has 0 questions; allowed: 1 or more")


def require_answers(gold: Mapping[object, Sequence[str]]) -> None:
    """Raise ValueError if there is nothing to score, or a question without an answer."""
    require_questions(gold)
    if without := [id_ for id_, answers in gold.items() if not answers]:
        raise ValueError(
            f"gold has no answer to {some(without)}; allowed: one or more per question"
        )


def some(ids: Iterable[object], most: int = 3) -> str:
    """The first of many ids, for an error message."""
    ids = list(ids)
    more = f" and {len(ids) - most:,} more" if len(ids) > most else ""
    return ", ".join(map(repr, ids[:most])) + more
