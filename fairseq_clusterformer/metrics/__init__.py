"""Scores of answers and, here, of rankings, as the data sets' and the field's own tools compute
them; no fairseq."""

import math
from collections import defaultdict

import numpy as np
from numpy.typing import ArrayLike


def ranking_scores(
    questions: ArrayLike,
    scores: ArrayLike,
    relevant: ArrayLike,
    candidates: ArrayLike,
) -> dict[str, float]:
    """``map`` and ``mrr``, equal to trec_eval's ``map`` and ``recip_rank``: means over questions
    with a right answer, from 0 to 1; nan over none. Others are left out, as in papers on WikiQA. A
    question's average precision is the mean of the precisions at its right answers' ranks, its
    reciprocal rank that of the first right answer.

    As there, scores are compared in float32, and of equal ones the candidate whose name is later
    as a string comes first, so that the order of the data cannot help. Raises ValueError: arrays
    of different lengths, or a score that is NaN.

    Args:
        questions: the question that each candidate answers, [n], of any type that has a hash.
        scores, relevant: higher is better, and whether it is right, bool or 0 and 1, both [n].
        candidates: names, different within a question, [n].
    """
    scores = np.asarray(scores, dtype=np.float32)
    if np.isnan(scores).any():
        raise ValueError(f"score {int(np.isnan(scores).argmax())} is NaN; allowed: numbers")
    of_question, precisions, reciprocals = defaultdict(list), [], []
    rows = zip(questions, scores.tolist(), map(str, candidates), relevant, strict=True)
    for question, *row in rows:
        of_question[question].append(row)
    for rows in of_question.values():
        rows.sort(reverse=True)
        ranks = [rank for rank, (*_, right) in enumerate(rows, 1) if right]
        if ranks:
            found = [count / rank for count, rank in enumerate(ranks, 1)]
            precisions.append(sum(found) / len(found))
            reciprocals.append(1 / ranks[0])
    found = {"map": precisions, "mrr": reciprocals}
    return {name: math.fsum(x) / len(x) if x else math.nan for name, x in found.items()}
