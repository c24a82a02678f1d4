"""Answer texts compared. Expected values are worked out by hand, as the comments show."""

import pytest

from fairseq_clusterformer.metrics import answers


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The  U.S. Navy!", "us navy"),
        ("An apple, a day", "apple day"),
        ("theatre", "theatre"),  # an article is a word of its own
        ("rock-'n'-roll", "rocknroll"),
        ("“Ü-Bahn”", "“übahn”"),  # only ASCII marks are punctuation
        ("King’s\u00a0Cross", "king’s cross"),
        ("snake_case", "snakecase"),
        ("The", ""),
    ],
)
def test_normalise(text, found):
    assert answers.normalise(text) == found


def test_f1_counts_a_word_as_often_as_both_have_it():
    # 2 of the prediction's 4 words and of the gold answer's 3 agree: 2pr / (p + r) = 4/7
    assert answers.f1("New York New York", "York City York") == pytest.approx(4 / 7)
    assert answers.f1("the", "the") == 0.0  # no words are left, which version 1.1 counts as 0
    assert answers.exact_match("the", "a") == 1.0


def test_best_of_several_gold_answers_counts():
    gold = {
        "1": ["Barack Hussein Obama", "Obama"],  # f1: 2 words of 2 and 3: 0.8; the second: 2/3
        "2": ["France"],
        "3": ["blue"],  # no prediction
    }
    scores = answers.evaluate(gold, {"1": "Barack Obama", "2": "the france.", "unknown": "x"})
    assert scores == {
        "exact_match": pytest.approx(100 / 3),
        "f1": pytest.approx(100 * 1.8 / 3),
        "total": 3,
    }


def test_hotpotqa_gives_yes_and_no_no_partial_credit():
    gold = {"1": "yes", "2": "no", "3": "no way out", "4": "noanswer", "5": "Kansas Song"}
    predictions = {"1": "Yes.", "2": "no way out", "3": "no", "4": "no answer", "5": "the Song"}
    # 1: right. 2 and 3 share "no", 4 is not the word "noanswer": 0. 5: p = 1, r = 1/2, f1 = 2/3.
    assert answers.evaluate_hotpotqa({n: [x] for n, x in gold.items()}, predictions, {}, {}) == {
        "em": pytest.approx(1 / 5),
        "f1": pytest.approx((1 + 2 / 3) / 5),
        "prec": pytest.approx(2 / 5),
        "recall": pytest.approx(1.5 / 5),
    }


@pytest.mark.parametrize(
    ("gold", "message"),
    [({}, "0 questions; allowed: 1 or more"), ({"a": ["x"], "b": []}, "no answer to 'b'; all")],
)
def test_refuses_what_has_no_answer(gold, message):
    with pytest.raises(ValueError, match=message):
        answers.evaluate(gold, {})


GOLD_FACTS = {"a": [("A", 0), ("B", 1)], "b": [("A", 2)], "c": [("C", 0)]}
FACTS = {"a": [("B", 1)], "b": [("A", 2), ("A", 3)], "c": [("C", 0)]}


def test_supporting_sentences_of_hotpotqa():
    """Answers: a has precision 1, recall 1/3; b is right; c has none. Facts: a 1, 1/2; b 1/2, 1;
    c is right. Questions whose facts are unknown count for the answer alone."""
    gold = {"a": ["Chief of Protocol"], "b": ["yes"], "c": ["Paris"]}
    given = gold, {"a": "the chief", "b": "yes"}
    expected = {
        **{"em": 1 / 3, "prec": 2 / 3, "recall": (1 / 3 + 1) / 3, "f1": (1 / 2 + 1) / 3},
        **{"sp_em": 1 / 3, "sp_prec": 2.5 / 3, "sp_recall": 2.5 / 3},
        "sp_f1": (2 / 3 + 2 / 3 + 1) / 3,
        **{"joint_em": 0, "joint_prec": (1 + 1 / 2) / 3, "joint_recall": (1 / 6 + 1) / 3},
        "joint_f1": (2 * (1 / 6) / (7 / 6) + 2 * (1 / 2) / (3 / 2)) / 3,
    }
    assert answers.evaluate_hotpotqa(*given, GOLD_FACTS, FACTS) == pytest.approx(expected)
    scores = answers.evaluate_hotpotqa(*given, {"b": GOLD_FACTS["b"]}, FACTS)
    assert scores["sp_f1"] == scores["joint_f1"] == pytest.approx(2 / 3)
    assert answers.evaluate_hotpotqa(*given, GOLD_FACTS, {})["sp_f1"] == 0


V2_GOLD = {
    "france": ["France", "in France"],
    "obama": ["Barack Obama"],
    "none 1": [],
    "none 2": [],
    "the": ["the"],  # an answer, of which nothing is left
}
V2_FOUND = {"france": "France", "obama": "Obama", "none 1": "", "none 2": "Paris", "the": ""}
NO_ANSWER = {"france": 0.1, "none 2": 0.2, "obama": 0.3, "none 1": 0.4, "the": 0.5}


def test_squad_2():
    """exact: france, none 1, the; f1: obama has 1 of 1 and 1 of 2 words: 2/3. Running sums from 2
    (none answered): exact 3, 2, 2, 2, 3, so 3 of 5 at 0.1 (the first of equals); f1 3, 2, 8/3,
    8/3, 11/3, so 11/3 of 5 at 0.5."""
    assert answers.evaluate_v2(V2_GOLD, V2_FOUND, NO_ANSWER, threshold=1.0) == {
        "exact": pytest.approx(60),
        "f1": pytest.approx(100 * (3 + 2 / 3) / 5),
        "total": 5,
        "HasAns_exact": pytest.approx(200 / 3),
        "HasAns_f1": pytest.approx(100 * (2 + 2 / 3) / 3),
        "HasAns_total": 3,
        "NoAns_exact": 50,
        "NoAns_f1": 50,
        "NoAns_total": 2,
        **{"best_exact": pytest.approx(60), "best_exact_thresh": 0.1},
        **{"best_f1": pytest.approx(100 * 11 / 15), "best_f1_thresh": 0.5},
    }


def test_no_answer_threshold_of_squad_2():
    """Above 0.2 nothing is answered: obama and the are wrong, none 1 stays right."""
    scores = answers.evaluate_v2(V2_GOLD, V2_FOUND, NO_ANSWER, threshold=0.2)
    found = [scores[f"{name}exact"] for name in ("", "HasAns_", "NoAns_")]
    assert found == pytest.approx([40, 100 / 3, 50])
    given = {"a": [], "b": ["x"]}, {"a": "y", "b": "z"}, {"a": 0.3, "b": 0.2}
    scores = answers.evaluate_v2(*given, threshold=1.0)
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (50, 0.0)  # by none answered
