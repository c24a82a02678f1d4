"""Answer texts compared. Expected values are worked out by hand, as the comments show."""

import pytest

from fairseq_clusterformer.metrics import answers, hotpotqa


@pytest.mark.parametrize(
    ("text", "squad", "triviaqa"),
    [
        ("The  U.S. Navy!", "us navy", "u s navy"),
        ("An apple, a day", "apple day", "apple day"),
        ("theatre", "theatre", "theatre"),  # an article is a word of its own
        ("rock-'n'-roll", "rocknroll", "rock n roll"),
        ("“Ü-Bahn”", "“übahn”", "“ü bahn”"),  # only ASCII marks and ‘’´` are punctuation
        ("King’s\u00a0Cross", "king’s cross", "king s cross"),
        ("snake_case", "snakecase", "snake case"),
        ("The", "", ""),
    ],
)
def test_normalise(text, squad, triviaqa):
    assert answers.normalise(text) == squad
    assert answers.normalise_triviaqa(text) == triviaqa


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
    assert hotpotqa.evaluate(gold, predictions) == {
        "em": pytest.approx(1 / 5),
        "f1": pytest.approx((1 + 2 / 3) / 5),
        "prec": pytest.approx(2 / 5),
        "recall": pytest.approx(1.5 / 5),
    }


@pytest.mark.parametrize("evaluate", [answers.evaluate, hotpotqa.evaluate])
def test_refuses_what_has_no_answer(evaluate):
    with pytest.raises(ValueError, match="0 questions; allowed: 1 or more"):
        evaluate({}, {})
    with pytest.raises(ValueError, match=r"no answer to 'b', 'c', 'd' and 1 more; allowed"):
        evaluate({"a": ["x"], "b": [], "c": [], "d": [], "e": []}, {})


GOLD = {"a": ["Chief of Protocol"], "b": ["yes"], "c": ["Paris"]}
TEXTS = {"a": "the chief", "b": "yes"}
GOLD_FACTS = {"a": [("A", 0), ("B", 1)], "b": [("A", 2)], "c": [("C", 0)]}
FACTS = {"a": [("B", 1)], "b": [("A", 2), ("A", 3)], "c": [("C", 0)]}


def test_supporting_sentences_of_hotpotqa():
    """Answers: a has precision 1, recall 1/3; b is right; c has none. Facts: a 1, 1/2; b 1/2, 1;
    c is right."""
    scores = hotpotqa.evaluate(GOLD, TEXTS, GOLD_FACTS, FACTS)
    expected = {
        **{"em": 1 / 3, "prec": 2 / 3, "recall": (1 / 3 + 1) / 3, "f1": (1 / 2 + 1) / 3},
        **{"sp_em": 1 / 3, "sp_prec": 2.5 / 3, "sp_recall": 2.5 / 3},
        "sp_f1": (2 / 3 + 2 / 3 + 1) / 3,
        **{"joint_em": 0, "joint_prec": (1 + 1 / 2) / 3, "joint_recall": (1 / 6 + 1) / 3},
        "joint_f1": (2 * (1 / 6) / (7 / 6) + 2 * (1 / 2) / (3 / 2)) / 3,
    }
    assert scores == pytest.approx(expected)


def test_without_facts_and_with_some():
    answers = hotpotqa.evaluate(GOLD, TEXTS)
    assert answers == pytest.approx(hotpotqa.evaluate(GOLD, TEXTS, {}, {}))
    assert set(answers) == {"em", "prec", "recall", "f1"}
    scores = hotpotqa.evaluate(GOLD, TEXTS, {"b": GOLD_FACTS["b"]}, FACTS)
    assert scores["sp_f1"] == scores["joint_f1"] == pytest.approx(2 / 3)
    assert scores["f1"] == answers["f1"]
    assert hotpotqa.evaluate(GOLD, TEXTS, GOLD_FACTS, {})["sp_f1"] == 0
    assert hotpotqa.evaluate({"a": "x"}, {"a": "x"}, {"a": []}, {"a": []})["sp_em"] == 1
