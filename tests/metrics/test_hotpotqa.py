"""HotpotQA's scores of supporting sentences and of both together, by hand."""

import pytest

from fairseq_clusterformer.metrics.hotpotqa import evaluate

GOLD = {"a": ["Chief of Protocol"], "b": ["yes"], "c": ["Paris"]}
TEXTS = {"a": "the chief", "b": "yes"}
GOLD_FACTS = {"a": [("A", 0), ("B", 1)], "b": [("A", 2)], "c": [("C", 0)]}
FACTS = {"a": [("B", 1)], "b": [("A", 2), ("A", 3)], "c": [("C", 0)]}


def test_written_out():
    """Answers: a has precision 1, recall 1/3; b is right; c has none. Facts: a 1, 1/2; b 1/2, 1;
    c is right."""
    scores = evaluate(GOLD, TEXTS, GOLD_FACTS, FACTS)
    expected = {
        **{"em": 1 / 3, "prec": 2 / 3, "recall": (1 / 3 + 1) / 3, "f1": (1 / 2 + 1) / 3},
        **{"sp_em": 1 / 3, "sp_prec": 2.5 / 3, "sp_recall": 2.5 / 3},
        "sp_f1": (2 / 3 + 2 / 3 + 1) / 3,
        **{"joint_em": 0, "joint_prec": (1 + 1 / 2) / 3, "joint_recall": (1 / 6 + 1) / 3},
        "joint_f1": (2 * (1 / 6) / (7 / 6) + 2 * (1 / 2) / (3 / 2)) / 3,
    }
    assert scores == pytest.approx(expected)


def test_without_facts_and_with_some():
    answers = evaluate(GOLD, TEXTS)
    assert answers == pytest.approx(evaluate(GOLD, TEXTS, {}, {}))
    assert set(answers) == {"em", "prec", "recall", "f1"}
    scores = evaluate(GOLD, TEXTS, {"b": GOLD_FACTS["b"]}, FACTS)
    assert scores["sp_f1"] == scores["joint_f1"] == pytest.approx(2 / 3)
    assert scores["f1"] == answers["f1"]
    assert evaluate(GOLD, TEXTS, GOLD_FACTS, {})["sp_f1"] == 0
    assert evaluate({"a": "x"}, {"a": "x"}, {"a": []}, {"a": []})["sp_em"] == 1
