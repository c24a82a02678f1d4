"""Mean average precision and mean reciprocal rank of ranked candidate answers."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class RankingScores(NamedTuple):
    """Means over ``num_questions`` questions, from 0 to 1; nan over none. A question's average
    precision is the mean of the precisions at its right answers' ranks, its reciprocal rank that
    of the first right answer."""

    mean_average_precision: float
    mean_reciprocal_rank: float
    num_questions: int


def ranking_scores(
    questions: ArrayLike,
    scores: ArrayLike,
    relevant: ArrayLike,
    candidates: ArrayLike | None = None,
    *,
    without_answer: str = "skip",
) -> RankingScores:
    """MAP and MRR by question, equal to trec_eval's ``map`` and ``recip_rank``.

    As there, scores are compared in float32, and of equal ones the candidate whose name is later
    as a string comes first, so that the order of the data cannot help.

    Args:
        questions: the question that each candidate answers, [n], of any type that sorts.
        scores: higher is better, [n].
        relevant: whether it is a right answer, bool or 0 and 1, [n].
        candidates: names, different within a question, [n]; default: their numbers.
        without_answer: of questions without a right answer: "skip" leaves them out, as papers on
            WikiQA do; "zero" counts them as 0, as trec_eval does.

    Raises:
        ValueError: arrays of different lengths, a score that is NaN, or another value of
            ``without_answer``.
    """
    if without_answer not in ("skip", "zero"):
        raise ValueError(f"without_answer is {without_answer!r}; allowed: skip, zero")
    questions, relevant = np.asarray(questions), np.asarray(relevant, dtype=bool)
    scores = np.asarray(scores, dtype=np.float32)
    names = np.arange(len(scores)) if candidates is None else np.asarray(candidates)
    lengths = [len(questions), len(scores), len(relevant), len(names)]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"questions, scores, relevant and candidates have lengths {lengths}; allowed: one"
        )
    if np.isnan(scores).any():
        raise ValueError(f"score {int(np.isnan(scores).argmax())} is NaN; allowed: numbers")

    _, question = np.unique(questions, return_inverse=True)
    _, name = np.unique(names.astype(str), return_inverse=True)
    order = np.lexsort((-name, -scores, question))  # by question, the best first
    question, right = question[order], relevant[order]

    candidates_of = np.bincount(question)
    first = candidates_of.cumsum() - candidates_of
    rank = np.arange(len(order)) - first[question] + 1
    answers_of = np.bincount(question, right, minlength=len(first)).astype(int)
    # Right answers up to a rank: the running count, less that of the questions before.
    found_before = answers_of.cumsum() - answers_of
    precision = np.where(right, (right.cumsum() - found_before[question]) / rank, 0.0)
    average = np.bincount(question, precision, len(first)) / np.maximum(answers_of, 1)
    reciprocal = np.zeros(len(first))
    np.maximum.at(reciprocal, question, right / rank)

    counted = answers_of > 0 if without_answer == "skip" else np.full(len(first), True)
    if not counted.any():
        return RankingScores(float("nan"), float("nan"), 0)
    return RankingScores(
        float(average[counted].mean()), float(reciprocal[counted].mean()), int(counted.sum())
    )
