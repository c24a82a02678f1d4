"""Natural Questions' scores, worked out by hand from the rules that its ``nq_eval.py`` states."""

import re

import pytest

from fairseq_clusterformer.metrics.natural_questions import Label, Span, evaluate


def tokens(start: int, end: int) -> Span:
    return Span(start_token=start, end_token=end)


LONG = tokens(10, 50)
NOTHING = Label()
SHORT = Label(LONG, (tokens(12, 14), tokens(20, 21)))


def answers(*labels: Label) -> list[Label]:
    """The labels of five annotators; those not given gave no answer."""
    return [*labels, *[NOTHING] * (5 - len(labels))]


@pytest.mark.parametrize(
    ("labels", "is_answer"),
    [
        ([SHORT], 1),
        ([NOTHING], 0),
        ([SHORT, NOTHING], 0),
        ([SHORT, SHORT], 1),
        (answers(SHORT), 0),
        (answers(SHORT, SHORT), 1),
        ([], 0),
    ],
)
def test_how_many_annotators_make_an_answer(labels, is_answer):
    """The only one, as in the training data; of more, two must agree that there is one."""
    scores = evaluate({1: labels}, {1: SHORT})
    assert scores["long-answer-f1"] == scores["short-answer-f1"] == is_answer


def test_any_annotators_answer_is_right():
    other = Label(tokens(60, 80), yes_no="yes")
    gold = {1: answers(SHORT, other)}
    assert evaluate(gold, {1: Label(tokens(60, 80))})["long-answer-f1"] == 1
    assert evaluate(gold, {1: Label(yes_no="yes")})["short-answer-f1"] == 1
    assert evaluate(gold, {1: Label(yes_no="no")})["short-answer-f1"] == 0


def test_short_answers_are_right_as_a_whole():
    gold = {1: answers(SHORT, SHORT)}
    for spans, right in {
        (tokens(20, 21), tokens(12, 14)): 1,
        (tokens(12, 14),): 0,
        (tokens(12, 14), tokens(20, 21), tokens(30, 31)): 0,
        (tokens(12, 15), tokens(20, 21)): 0,
    }.items():
        assert evaluate(gold, {1: Label(short=spans)})["short-answer-f1"] == right


def test_precision_recall_and_best_threshold():
    gold = {i: answers(SHORT, SHORT) for i in range(3)} | {3: answers(), 4: answers(SHORT)}
    wrong = tokens(11, 50)
    predictions = {
        0: Label(LONG, long_score=9),  # right
        1: Label(wrong, long_score=8),
        2: Label(LONG, long_score=7),  # right
        3: Label(LONG, long_score=1),  # there is no answer
        4: Label(long_score=10),  # rightly none
    }
    scores = evaluate(gold, predictions)
    # 2 of 4 predictions are right, 2 of 3 answers found. From the surest down, P and R: 0 0,
    # 1 1/3, 1/2 1/3, 2/3 2/3, 1/2 2/3; best F1 is 2/3, at 7.
    long = {name.removeprefix("long-"): x for name, x in scores.items() if "long" in name}
    assert long == {
        "answer-n": 5,
        "answer-precision": 1 / 2,
        "answer-recall": 2 / 3,
        "answer-f1": pytest.approx(4 / 7),
        "best-threshold": 7,
        **{f"best-threshold-{x}": pytest.approx(2 / 3) for x in ("precision", "recall", "f1")},
        "recall-at-precision>=0.5": pytest.approx(2 / 3),
        "precision-at-precision>=0.5": pytest.approx(2 / 3),
        "recall-at-precision>=0.75": pytest.approx(1 / 3),
        "precision-at-precision>=0.75": 1,
        "recall-at-precision>=0.9": pytest.approx(1 / 3),
        "precision-at-precision>=0.9": 1,
    }
    # no short answer is predicted
    assert scores["short-answer-f1"] == scores["short-best-threshold-f1"] == 0


def test_bytes_or_tokens():
    both = Span(100, 200, 10, 50)
    assert both.matches(tokens(10, 50))
    assert both.matches(Span(100, 200))
    assert both.matches(Span(100, 201, 10, 50))
    assert not Span(100, 200).matches(tokens(10, 50))
    assert not Span()


def test_from_json():
    span = {"start_byte": -1, "end_byte": -1, "start_token": 213, "end_token": 215}
    prediction = {
        "example_id": 1,
        "long_answer": {"start_byte": 9, "end_byte": 99, "start_token": 212, "end_token": 310},
        "long_answer_score": 13.5,
        "short_answers": [span],
        "short_answers_score": 26.4,
        "yes_no_answer": "NONE",
    }
    expected = Label(Span(9, 99, 212, 310), (tokens(213, 215),), "none", 13.5, 26.4)
    assert Label.from_json(prediction) == expected
    simplified = {"long_answer": {"start_token": -1, "end_token": -1}, "short_answers": []}
    assert Label.from_json(simplified) == NOTHING
    for damaged, message in (
        (None, "a label is None; allowed: an object"),
        ({"short_answers": [1]}, "a label is"),
        ({"long_answer": {"start_token": "1"}}, "a label is"),
        ({"long_answer": {"start_token": 5, "end_token": 5}}, "(5, 5); allowed: start < end"),
        ({"long_answer": {"start_byte": 3}}, "(3, -1); allowed"),
        ({"yes_no_answer": "perhaps"}, "'perhaps'; allowed: yes, no, none"),
        (prediction | {"yes_no_answer": "YES"}, "yes_no_answer is yes with short answers"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            Label.from_json(damaged)


def test_refuses_other_questions():
    for gold in ({1: answers(), 2: answers()}, {}):
        with pytest.raises(ValueError, match=f"gold has {len(gold)} questions, predictions 1; al"):
            evaluate(gold, {1: NOTHING})
