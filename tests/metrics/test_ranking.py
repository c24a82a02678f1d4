"""MAP and MRR: by hand, and as trec_eval gives them."""

import math

import numpy as np
import pytest

from fairseq_clusterformer.metrics import ranking_scores

# question, score, right, candidate
# 12 questions with scores of one decimal, so that many are equal; those with a star are right
_DRAWN = """
0.6* 0.9 0.6 0.9
0.2 0.5 0.5 0.2 0.9 0.7 0.1 0.6 0.0
0.6 0.4 0.4 0.6 0.1 0.0 0.3 0.8
0.5 0.4 0.6 0.7 0.9 0.7* 0.9
0.7* 0.8
0.1 0.6 0.3* 0.9* 0.4
0.0 0.0
0.6 0.3* 0.0* 0.1 0.9 0.3*
1.0
1.0 0.4 0.5 0.6 0.6 0.5
0.9 0.3 0.3 1.0
0.6 0.1 0.5 0.4 0.7* 0.1 1.0*
"""
DRAWN = [
    (line, float(each.strip("*")), each.endswith("*"))
    for line in _DRAWN.strip().splitlines()
    for each in line.split()
]
DRAWN = [(*row, number) for number, row in enumerate(DRAWN, 1)]


def score(rows):
    found = ranking_scores(*zip(*rows, strict=True))
    return found["map"], found["mrr"]


def test_trec_eval():
    """The numbers of trec_eval (by pytrec_eval-terrier 0.5.11) over the questions with a right
    answer."""
    answered = (0.5462962962962963, 0.5694444444444444)
    assert score(DRAWN) == pytest.approx(answered, abs=1e-12)
    shuffled = [DRAWN[i] for i in np.random.permutation(len(DRAWN))]
    assert score(shuffled) == pytest.approx(answered, abs=1e-12)


def test_equal_scores_are_ordered_by_name_as_trec_eval_does():
    """Of 8, 9 and 10 the string "9" is the last, and comes first; then "8", then "10"."""
    assert score([("q", 0.3, 1, 8), ("q", 0.3, 0, 9), ("q", 0.3, 0, 10)]) == (0.5, 0.5)
    numbers = range(11)  # as the criterion has them
    assert ranking_scores("q" * 11, [0.3] * 11, [*[0] * 10, 1], numbers)["mrr"] == 1 / 9
    # equal in float32
    assert score([("q", 1 + 1e-9, 1, 8), ("q", 1.0, 0, 9)]) == (0.5, 0.5)


def test_no_question():
    for rows in ([("q", 0.3, 0, 1)], []):
        found = ranking_scores(*([row[i] for row in rows] for i in range(4)))
        assert all(map(math.isnan, found.values()))


def test_bad_input():
    with pytest.raises(ValueError, match="score 1 is NaN; allowed: numbers"):
        ranking_scores([0, 0], [1.0, math.nan], [0, 1], [1, 2])
