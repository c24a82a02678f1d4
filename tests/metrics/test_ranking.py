"""MAP and MRR: by hand, and as trec_eval gives them."""

import math

import numpy as np
import pytest

from fairseq_clusterformer.metrics import ranking_scores

# question, score, right, candidate
BY_HAND = [
    # right ones at ranks 2 and 4: AP (1/2 + 2/4) / 2 = 1/2, RR 1/2
    *(("q1", 0.9, 0, 1), ("q1", 0.8, 1, 2), ("q1", 0.7, 0, 3), ("q1", 0.1, 1, 4)),
    # no right answer
    *(("q2", 1.0, 0, 6), ("q2", 0.2, 0, 7)),
    # ranks 2 and 3: AP (1/2 + 2/3) / 2 = 7/12, RR 1/2
    *(("q3", -1.0, 0, 11), ("q3", -3.0, 1, 12), ("q3", -2.0, 1, 13)),
    # rank 1: AP 1, RR 1
    *(("q4", 0.0, 1, 14), ("q4", -0.5, 0, 15)),
]
# 12 questions, 6 of them with a right answer; scores of one decimal, so that many are equal
DRAWN = [
    *(("a", 0.6, 1, 1), ("a", 0.9, 0, 2), ("a", 0.6, 0, 3), ("a", 0.9, 0, 4), ("b", 0.2, 0, 5)),
    *(("b", 0.5, 0, 6), ("b", 0.5, 0, 7), ("b", 0.2, 0, 8), ("b", 0.9, 0, 9), ("b", 0.7, 0, 10)),
    *(("b", 0.1, 0, 11), ("b", 0.6, 0, 12), ("b", 0.0, 0, 13), ("c", 0.6, 0, 14)),
    *(("c", 0.4, 0, 15), ("c", 0.4, 0, 16), ("c", 0.6, 0, 17), ("c", 0.1, 0, 18)),
    *(("c", 0.0, 0, 19), ("c", 0.3, 0, 20), ("c", 0.8, 0, 21), ("d", 0.5, 0, 22)),
    *(("d", 0.4, 0, 23), ("d", 0.6, 0, 24), ("d", 0.7, 0, 25), ("d", 0.9, 0, 26)),
    *(("d", 0.7, 1, 27), ("d", 0.9, 0, 28), ("e", 0.7, 1, 29), ("e", 0.8, 0, 30)),
    *(("f", 0.1, 0, 31), ("f", 0.6, 0, 32), ("f", 0.3, 1, 33), ("f", 0.9, 1, 34)),
    *(("f", 0.4, 0, 35), ("g", 0.0, 0, 36), ("g", 0.0, 0, 37), ("h", 0.6, 0, 38)),
    *(("h", 0.3, 1, 39), ("h", 0.0, 1, 40), ("h", 0.1, 0, 41), ("h", 0.9, 0, 42)),
    *(("h", 0.3, 1, 43), ("i", 1.0, 0, 44), ("j", 1.0, 0, 45), ("j", 0.4, 0, 46)),
    *(("j", 0.5, 0, 47), ("j", 0.6, 0, 48), ("j", 0.6, 0, 49), ("j", 0.5, 0, 50)),
    *(("k", 0.9, 0, 51), ("k", 0.3, 0, 52), ("k", 0.3, 0, 53), ("k", 1.0, 0, 54)),
    *(("l", 0.6, 0, 55), ("l", 0.1, 0, 56), ("l", 0.5, 0, 57), ("l", 0.4, 0, 58)),
    *(("l", 0.7, 1, 59), ("l", 0.1, 0, 60), ("l", 1.0, 1, 61)),
]


def score(rows, **options):
    questions, scores, relevant, candidates = zip(*rows, strict=True)
    return ranking_scores(questions, scores, relevant, candidates, **options)


def test_by_hand():
    found = score(BY_HAND)
    assert found == pytest.approx(((1 / 2 + 7 / 12 + 1) / 3, (1 / 2 + 1 / 2 + 1) / 3, 3))


def test_questions_without_a_right_answer():
    """trec_eval's mean counts them as 0, papers on WikiQA leave them out."""
    assert score(BY_HAND, without_answer="zero") == pytest.approx((25 / 48, 1 / 2, 4))
    assert score(BY_HAND, without_answer="skip") == score(
        [row for row in BY_HAND if row[0] != "q2"], without_answer="zero"
    )


def test_trec_eval():
    """The numbers of trec_eval (by pytrec_eval-terrier 0.5.11): means over all questions that
    it judges, and over those with a right answer."""
    every = (0.27314814814814814, 0.2847222222222222, 12)
    answered = (0.5462962962962963, 0.5694444444444444, 6)
    assert score(DRAWN, without_answer="zero") == pytest.approx(every, abs=1e-12)
    assert score(DRAWN) == pytest.approx(answered, abs=1e-12)


def test_order_of_the_rows_does_not_matter():
    shuffled = [DRAWN[i] for i in np.random.permutation(len(DRAWN))]
    assert score(shuffled) == score(DRAWN)


def test_equal_scores_are_ordered_by_name_as_trec_eval_does():
    """Of 8, 9 and 10 the string "9" is the last, and comes first; then "8", then "10"."""
    assert score([("q", 0.3, 1, 8), ("q", 0.3, 0, 9), ("q", 0.3, 0, 10)])[:2] == (0.5, 0.5)
    # equal in float32
    assert score([("q", 1 + 1e-9, 1, 8), ("q", 1.0, 0, 9)])[:2] == (0.5, 0.5)


def test_candidates_are_numbered_by_default():
    assert ranking_scores([0, 0], [1.0, 1.0], [0, 1]) == (1.0, 1.0, 1)


def test_no_question():
    for rows in ([("q", 0.3, 0, 1)], []):
        empty = ranking_scores(*([row[i] for row in rows] for i in range(4)))
        assert math.isnan(empty[0])
        assert math.isnan(empty[1])
        assert empty[2] == 0


def test_bad_input():
    with pytest.raises(ValueError, match=r"lengths \[2, 1, 2, 1\]; allowed: one"):
        ranking_scores([0, 0], [1.0], [0, 1])
    with pytest.raises(ValueError, match="score 1 is NaN; allowed: numbers"):
        ranking_scores([0, 0], [1.0, math.nan], [0, 1])
    with pytest.raises(ValueError, match="without_answer is 'drop'; allowed: skip, zero"):
        ranking_scores([0], [1.0], [1], without_answer="drop")
