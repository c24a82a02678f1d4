"""A reader's logits to answers: texts, places, probabilities and their order."""

import math

import pytest
import torch
from torch import Tensor

from fairseq_clusterformer.answers import (
    TYPES,
    Answer,
    AnswerLogits,
    Answers,
    Document,
    ranked_answers,
    text_mask,
)

# <s> A| man <s> title| in|\r\n|Berlin|.   and a document of one paragraph
DOCUMENT = Document(
    texts=["A man", "in\r\nBerlin."],
    starts=torch.tensor([0, 3]),
    characters=torch.tensor(
        [[-1, 0, 1, -1, -1, 0, 2, 4, 10], [-1, 1, 5, -1, -1, 2, 4, 10, 11]], dtype=torch.int32
    ),
)
SHORT = Document(["Yes, so"], torch.tensor([0]), torch.tensor([[-1, 0, 3, 4], [-1, 3, 4, 7]]))
DOCUMENTS = [DOCUMENT, SHORT]


def certain(start: int, end: int, paragraph: int, **types: float) -> list[Tensor]:
    """Logits of one document of nine tokens, nearly sure of a span."""
    logits = [torch.zeros(9) for _ in range(3)]
    for x, place in zip(logits, (start, end, paragraph), strict=True):
        x[place] = 6.0
    return [*logits, torch.tensor([types.get(name, 0.0) for name in TYPES])]


def batch(*rows: list[Tensor]) -> AnswerLogits:
    """As the model bars what is no text."""
    start, end, paragraph, types = (torch.stack(x) for x in zip(*rows, strict=True))
    for row, document in enumerate(DOCUMENTS[: len(rows)]):
        barred = torch.ones(9, dtype=torch.bool)
        barred[: document.characters.size(1)] = ~text_mask(document.characters)
        start[row, barred] = end[row, barred] = -torch.inf
        heads = torch.zeros(9, dtype=torch.bool)
        heads[document.starts] = True
        paragraph[row, ~heads] = -torch.inf
    return AnswerLogits(start, end, paragraph, types)


def test_answers_with_their_probabilities():
    logits = batch(certain(5, 7, 3, short=2.0, none=1.0), certain(1, 1, 0, yes=3.0))
    both = ranked_answers(logits, DOCUMENTS, top=3)
    found = both[0]
    best = found.short[0]
    assert (best.text, best.paragraph, best.characters) == ("in\r\nBerlin", 1, (0, 10))
    assert best.tokens == (5, 8)
    total = math.exp(2) + math.exp(1) + 3
    sure = math.exp(6) / (math.exp(6) + 5)  # six tokens are text
    assert best.score == pytest.approx(math.log(math.exp(2) / total) + 2 * math.log(sure))
    assert found.types["none"] == pytest.approx(math.exp(1) / total)
    assert sum(found.types.values()) == pytest.approx(1)
    assert found.types["long"] + found.types["none"] == pytest.approx((1 + math.exp(1)) / total)
    assert found.type == "short"
    assert found.text == best.text
    assert [paragraph for paragraph, _ in found.long] == [1, 0]
    assert math.exp(found.long[0][1]) == pytest.approx(math.exp(6) / (math.exp(6) + 1))
    # of the second, which is yes above all: then spans, one paragraph
    found = both[1]
    yes, span, *_ = found.short
    assert yes == Answer("yes", pytest.approx(3 - math.log(math.exp(3) + 4)))
    assert found.text == "yes"
    assert (span.text, span.characters) == ("Yes", (0, 3))
    assert found.long == [(0, 0.0)]


def test_the_margin_over_no_answer_of_the_best_of_any_kind():
    """A paragraph is the answer with its own probability, times that of there being one."""
    types = {"short": 0.2, "yes": 0.0, "no": 0.0, "long": 0.5, "none": 0.3}
    long = [(1, math.log(0.8)), (0, math.log(0.2))]
    for likely, best in ((0.1, 0.7 * 0.8), (0.6, 0.6)):
        found = Answers(types, [Answer("man", math.log(likely), 0, (2, 5), (2, 3))], long)
        assert found.best_margin == pytest.approx(math.log(best / 0.3))


def test_without_a_type_that_is_likelier_spans_come_first():
    """Of a reader whose data never told any."""
    (found,) = ranked_answers(batch(certain(7, 7, 3)), DOCUMENTS[:1], top=9)
    texts = [answer.text for answer in found.short]
    assert (found.text, *texts[:1], *texts[-2:]) == ("Berlin", "Berlin", "yes", "no")


@pytest.mark.parametrize("name", ["long", "none"])
def test_no_short_answer(name):
    (found,) = ranked_answers(batch(certain(7, 7, 3, **{name: 1.0})), DOCUMENTS[:1])
    assert found.type == name
    assert found.text == ""
    assert [answer.text for answer in found.short] == ["Berlin"]


def test_spans_do_not_overlap_and_are_more_than_blanks():
    """\\r\\n alone would be the likeliest."""
    start, end, *rest = certain(6, 6, 3, short=1.0)
    start[7] = end[7] = 5.0
    (found,) = ranked_answers(batch([start, end, *rest]), DOCUMENTS[:1], top=9)
    spans = [answer for answer in found.short if answer.tokens]
    assert [answer.text for answer in spans[:2]] == ["Berlin", "in"]
    tokens = [t for answer in spans for t in range(*answer.tokens)]
    assert len(set(tokens)) == len(tokens)
    assert [a.score for a in spans] == sorted((a.score for a in spans), reverse=True)


def test_short_answers_within_the_long_one():
    """Their probabilities are those that they have in the whole document."""
    logits = batch(certain(7, 7, 0), certain(1, 1, 0))
    free = ranked_answers(logits, DOCUMENTS, top=9)
    within = ranked_answers(logits, DOCUMENTS, top=9, within_long=True)
    assert free[0].short[0].text == "Berlin"
    assert [answer.paragraph for answer in within[0].short] == [0, 0, None, None]
    assert within[0].long == free[0].long
    for answer in within[0].short:
        alike = next(other for other in free[0].short if other.text == answer.text)
        assert answer == alike
    assert within[1] == free[1]


def test_the_longest_answer_is_counted_in_words():
    """Not in tokens, of which this one has three."""
    logits = batch(certain(5, 7, 3))
    assert ranked_answers(logits, DOCUMENTS[:1], max_answer_length=2)[0].text == "in\r\nBerlin"
    (found,) = ranked_answers(logits, DOCUMENTS[:1], max_answer_length=1)
    assert len(found.short[0].text.split()) == 1


@pytest.mark.parametrize(
    ("text", "ends", "words"),
    [
        ("unbe-liev able x", (2, 5, 9, 10, 14, 16), (1, 1, 1, 1, 2, 3)),
        (" a\u00a0b\tc", (2, 3, 4, 6), (1, 1, 2, 3)),
        ("\u6771\u4eac\u306f", (1, 2, 3), (1, 2, 3)),
    ],
)
def test_the_word_of_each_token(text, ends, words):
    """Words go on being counted in the next paragraph; <s> has none of its own."""
    starts = (0, *ends[:-1])
    characters = torch.tensor([[-1, *starts], [-1, *ends]]).repeat(1, 2)
    document = Document([text, text], torch.tensor([0, len(ends) + 1]), characters)
    expected = [0, *words, words[-1], *(word + words[-1] for word in words)]
    assert document.word_of(len(expected) + 1).tolist() == [*expected, expected[-1]]
    assert document.word_of(3).tolist() == expected[:3]


def test_nothing_to_answer_with():
    """Of a document with nothing but a title, and of a reader that diverged."""
    bare = Document(["t"], torch.tensor([0]), torch.tensor([[-1, -1], [-1, -1]]))
    logits = AnswerLogits(*(torch.full((1, 2), -torch.inf) for _ in range(3)), torch.zeros(1, 5))
    (found,) = ranked_answers(logits, [bare])
    assert [answer.text for answer in found.short] == ["yes"]
    assert (found.text, found.long) == ("", [])
    lost = AnswerLogits(*(x * torch.nan for x in batch(certain(5, 7, 3))[:4]))
    (found,) = ranked_answers(lost, DOCUMENTS[:1])
    assert found.long == []
    assert all(answer.tokens is None for answer in found.short)


def test_a_span_that_is_too_long_is_no_answer():
    """Nor does it hide that there is none: as SQuAD's baselines compare legal spans. The margin is
    of logits alone."""
    start, end = (torch.tensor([[-torch.inf, *x]]) for x in ([6.0, 1, 0], [0.0, 1, 6]))
    slots, paragraph = torch.tensor([[[-9.0, -9, -9, 4]] * 2]), torch.full((1, 4), -torch.inf)
    given = AnswerLogits.shared(start, end, paragraph, slots)
    assert given.type[0, 0] == 12  # from the first to the last
    characters = torch.tensor([[-1, 0, 2, 4], [-1, 1, 3, 5]])
    document = Document(["a b c"], torch.tensor([0]), characters)
    (found,) = ranked_answers(given, [document], max_answer_length=2)
    assert (found.type, found.text, found.short[0].text) == ("none", "", "a b")
    assert found.margin("short", found.short[0].score) == pytest.approx(7 - 8, abs=1e-5)
    (found,) = ranked_answers(given, [document], max_answer_length=3)
    assert (found.type, found.text) == ("short", "a b c")
    apart = Document(["a", "b c"], torch.tensor([0, 2]), characters)
    (found,) = ranked_answers(given, [apart], max_answer_length=3)
    assert found.type == "none"
