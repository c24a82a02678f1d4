"""Answers as Natural Questions' script reads them, in tokens of the web page."""

import math

import pytest

from fairseq_clusterformer.answers import TYPES, Answer, Answers
from fairseq_clusterformer.metrics.natural_questions import Label, Span
from fairseq_clusterformer.use.evaluate import natural_question

# <H1> ... </H1> <P> It rained in May </P> <P> Paris is <b> not </b> far </P>
PARAGRAPHS = [
    ["T", "It rained in May", [3, 9], [4, 5, 6, 7]],
    ["T", "Paris is not far", [9, 17], [10, 11, 13, 15]],
]


def answers(*short: Answer, long: tuple = ((1, -0.5), (0, -2.0)), **types: float) -> Answers:
    return Answers(dict.fromkeys(TYPES, 0.0) | types, list(short), list(long))


def test_spans_of_tokens():
    is_not = Answer("is not", -1.5, 1, (6, 12), (9, 11))
    found = natural_question("-77", answers(is_not, short=0.75, none=0.25), PARAGRAPHS)
    assert found["example_id"] == -77
    label = Label.from_json(found)
    assert label.long == Span(start_token=9, end_token=17)
    assert label.short == (Span(start_token=11, end_token=14),)
    assert label.yes_no == "none"
    assert label.long_score == pytest.approx(-0.5 + math.log(0.75))
    assert label.short_score == -1.5


@pytest.mark.parametrize(
    ("characters", "tokens"),
    [((0, 2), (4, 5)), ((3, 9), (5, 6)), ((4, 11), (5, 7)), ((13, 16), (7, 8))],
)
def test_words_in_part(characters, tokens):
    answer = Answer("...", -1.0, 0, characters, (1, 2))
    (span,) = natural_question("x", answers(answer), PARAGRAPHS)["short_answers"]
    assert (span["start_token"], span["end_token"]) == tokens


def test_yes_and_scores_that_are_numbers():
    yes, span = Answer("yes", -0.1), Answer("May", -3.0, 0, (13, 16), (4, 5))
    found = natural_question("x", answers(yes, span, yes=1.0), PARAGRAPHS)
    assert (found["example_id"], found["yes_no_answer"]) == ("x", "YES")
    assert Label.from_json(found).yes_no == "yes"
    assert found["short_answers"] == []
    never = Answer("no", -math.inf)
    found = natural_question("x", answers(never, long=(), none=1.0), PARAGRAPHS)
    assert found["long_answer_score"] == found["short_answers_score"] == -1e9
    assert not Label.from_json(found).long
    found = natural_question("x", answers(never, none=1.0), PARAGRAPHS)
    assert -1e9 < found["long_answer_score"] < -20
