"""SQuAD 2.0's scores, worked out by hand, and its no-answer threshold."""

import pytest

from fairseq_clusterformer.metrics import squad

GOLD = {
    "france": ["France", "in France"],
    "obama": ["Barack Obama"],
    "none 1": [],
    "none 2": [],
    "the": ["the"],  # an answer, of which nothing is left
}
PREDICTIONS = {"france": "France", "obama": "Obama", "none 1": "", "none 2": "Paris", "the": ""}


def test_without_probabilities():
    # exact: france, none 1, the; f1: obama has 1 of 1 and 1 of 2 words: 2/3
    assert squad.evaluate_v2(GOLD, PREDICTIONS) == {
        "exact": pytest.approx(60),
        "f1": pytest.approx(100 * (3 + 2 / 3) / 5),
        "total": 5,
        "HasAns_exact": pytest.approx(200 / 3),
        "HasAns_f1": pytest.approx(100 * (2 + 2 / 3) / 3),
        "HasAns_total": 3,
        "NoAns_exact": 50,
        "NoAns_f1": 50,
        "NoAns_total": 2,
    }


def test_threshold_and_best_threshold():
    no_answer = {"france": 0.1, "none 2": 0.2, "obama": 0.3, "none 1": 0.4, "the": 0.5}
    scores = squad.evaluate_v2(GOLD, PREDICTIONS, no_answer, threshold=0.2)
    # above 0.2 nothing is answered: obama and the are wrong, none 1 stays right
    assert (scores["exact"], scores["HasAns_exact"], scores["NoAns_exact"]) == (
        pytest.approx(40),
        pytest.approx(100 / 3),
        50,
    )
    # Running sums from 2 (none answered): exact 3, 2, 2, 2, 3, so 3 of 5 at 0.1 (the first of
    # equals); f1 3, 2, 8/3, 8/3, 11/3, so 11/3 of 5 at 0.5.
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (pytest.approx(60), 0.1)
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (pytest.approx(100 * 11 / 15), 0.5)
    scores = squad.evaluate_v2({"a": [], "b": ["x"]}, {"a": "y", "b": "z"}, {"a": 0.3, "b": 0.2})
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (50, 0.0)  # by none answered


@pytest.mark.parametrize(
    ("predictions", "no_answer", "name"),
    [({}, None, "predictions"), ({"a": "x"}, {}, "no_answer")],
)
def test_refuses_missing_predictions(predictions, no_answer, name):
    with pytest.raises(ValueError, match=f"{name} lacks 'a'; allowed: one for each"):
        squad.evaluate_v2({"a": ["x"]}, predictions, no_answer)
