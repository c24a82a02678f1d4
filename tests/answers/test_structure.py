"""Answers within supporting sentences, and among candidates."""

from dataclasses import replace

import pytest
import torch

from fairseq_clusterformer.answers import AnswerLogits, Document, ranked_answers

# <s> A . B . <s> C .
DOCUMENT = Document(
    texts=["A. B.", "C."],
    starts=torch.tensor([0, 5]),
    characters=torch.tensor([[-1, 0, 1, 3, 4, -1, 0, 1], [-1, 1, 2, 4, 5, -1, 1, 2]]),
    sentences=torch.tensor([[1, 3], [3, 5], [6, 8]]),
)
TEXT = torch.tensor([1, 2, 3, 4, 6, 7])


def logits(sentences: list[float] | None, start: dict[int, float], **more) -> AnswerLogits:
    """Each token that is given begins and ends spans; the others are as likely as each other."""
    of_tokens = torch.full((1, 8), -torch.inf)
    of_tokens[0, TEXT] = 0.0
    for place, value in start.items():
        of_tokens[0, place] = value
    paragraph = torch.full((1, 8), -torch.inf)
    paragraph[0, DOCUMENT.starts] = 0.0
    sentences = None if sentences is None else torch.tensor([sentences])
    return AnswerLogits(
        of_tokens, of_tokens.clone(), paragraph, torch.zeros(1, 5), sentences, **more
    )


@pytest.mark.parametrize(
    ("sentences", "text", "facts"),
    [
        ([-1.0, 3.0, -1.0], "B", [1]),
        ([2.0, 3.0, -1.0], "A", [0, 1]),
        ([-9.0, -9.0, -9.0], "C", []),  # none is likely enough: anywhere
        (None, "C", None),
    ],
)
def test_spans_are_in_supporting_sentences(sentences, text, facts):
    """C is likeliest by itself, then A, then B."""
    (found,) = ranked_answers(logits(sentences, {6: 5.0, 1: 4.0, 3: 3.0}), [DOCUMENT])
    assert found.text == text
    assert (found.supporting and [number for number, _ in found.supporting]) == facts
    for number, probability in found.supporting or ():
        assert probability == pytest.approx(torch.tensor(sentences[number]).sigmoid().item())


def test_the_threshold():
    given = logits([0.0, 1.0, -1.0], {})
    for threshold, facts in ((0.2, [0, 1, 2]), (0.5, [0, 1]), (0.51, [1]), (1.0, [])):
        (found,) = ranked_answers(given, [DOCUMENT], supporting_threshold=threshold)
        assert [number for number, _ in found.supporting] == facts


def test_no_span_goes_from_one_sentence_into_the_next():
    start = logits([5.0, 5.0, -5.0], {1: 9.0})
    end = logits(None, {3: 9.0}).end
    (found,) = ranked_answers(start._replace(end=end), [DOCUMENT])
    assert found.text in ("A", "A.", "B")
    (found,) = ranked_answers(start._replace(end=end, sentences=None), [DOCUMENT])
    assert found.text == "A. B"


def test_a_title_above_a_supporting_sentence_may_be_the_answer():
    """But supports nothing itself: of the first paragraph, "A." is the title."""
    titled = replace(DOCUMENT, titled=True)
    assert titled.titles == {0: 0, 1: 2}
    for sentences, text in (([9.0, 3.0, -1.0], "A"), ([9.0, -3.0, -1.0], "C")):
        given = logits(sentences, {6: 5.0, 1: 4.0, 3: 3.0})
        (found,) = ranked_answers(given, [titled])
        assert (found.text, [number for number, _ in found.supporting]) == (
            text,
            [1] * (text == "A"),
        )


def test_candidates():
    """Their text is the answer, wherever they stand; one of them stands nowhere."""
    mentions = torch.tensor([[0, 6, 7], [2, 3, 4], [2, 1, 2]])
    document = Document(
        *(DOCUMENT.texts, DOCUMENT.starts, DOCUMENT.characters, DOCUMENT.sentences),
        candidates=("c", "nowhere", "b"),
        mentions=mentions,
    )
    given = logits([9.0, -9.0, -9.0], {}, candidates=torch.tensor([[1.0, 3.0, 2.0]]))
    documents = [document]
    (found,) = ranked_answers(given, documents, top=3)
    assert [answer.text for answer in found.short] == ["nowhere", "b", "c"]
    assert [answer.candidate for answer in found.short] == [1, 2, 0]
    assert [answer.tokens for answer in found.short] == [None, (3, 4), (6, 7)]
    assert (found.text, found.type, found.types["none"]) == ("nowhere", "short", 0.0)
    total = sum(torch.tensor([1.0, 2.0, 3.0]).exp()).log().item()
    assert found.short[0].score == pytest.approx(3 - total)
    more = torch.tensor([[1.0, 3.0, 2.0, -torch.inf]])  # padding
    (found,) = ranked_answers(given._replace(candidates=more), documents, top=9)
    assert len(found.short) == 3
