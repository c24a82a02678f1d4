"""Keyphrases: the best of a page, OpenKP's scores by hand, and the losses against loops."""

import math

import pytest
import torch

from openkp.task import best_keyphrases, keyphrase_scores, phrase_nll

NONE = -torch.inf


def test_each_phrase_once_with_its_largest_logit() -> None:
    logits = torch.tensor([[1.0, 4.0, 3.0, 2.0], [6.0, -1.0, 5.0, NONE]])
    words = ["Star", "Trek", "star", "trek", "behind the end"]
    expected = [("star trek", 6.0), ("trek", 4.0), ("star", 3.0), ("trek star", -1.0)]
    assert best_keyphrases(logits, words) == expected
    assert best_keyphrases(logits, words, 2) == expected[:2]
    assert best_keyphrases(torch.full((2, 4), NONE), words) == []


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (["star trek", "something"], [1, 1 / 2, 2 / 3, 1 / 3, 1 / 2, 2 / 5, 1 / 5, 1 / 2, 2 / 7]),
        (
            ["something", "discovery season", "b", "c", "star trek"],
            [0, 0, 0, 1 / 3, 1 / 2, 2 / 5, 2 / 5, 1, 4 / 7],
        ),
        ([], [0] * 9),
    ],
)
def test_scores_written_out(found: list[str], expected: list[float]) -> None:
    """Precision, recall and F1 of 1, 3 and 5 phrases."""
    scores = keyphrase_scores(found, ["star trek", "discovery season"])
    assert [x / 100 for x in scores.values()] == pytest.approx(expected)


# "a b a b": four words; of n-grams, one and two words are shown
LOGITS = torch.tensor([[[1.0, 2.0, 4.0, 0.5], [3.0, -1.0, 5.0, NONE]]], dtype=torch.float64)
FIRST = torch.tensor([[[0, 1, 0, 1], [0, 1, 0, 3]]])
PHRASES = torch.tensor([[[0, 2], [1, 1], [0, 0]]])  # "a b", "b"; no more


@pytest.mark.parametrize(
    ("place", "right", "all_"),
    [
        ("first", [3, 2], [1, 2, 4, 0.5, 3, -1, 5]),
        ("max", [5, 2], [4, 2, 5, -1]),  # of "a" 4, of "b" 2, of "a b" 5; others stand once
    ],
)
def test_what_is_right(place: str, right: list[float], all_: list[float]) -> None:
    """Nothing in a page without a keyphrase; and no gradient where there is no n-gram."""
    logits, phrases = LOGITS.repeat(2, 1, 1).requires_grad_(), PHRASES.repeat(2, 1, 1)
    phrases[1] = 0
    loss = phrase_nll(logits, phrases, FIRST.repeat(2, 1, 1), place)
    expected = math.log(sum(map(math.exp, all_))) - sum(right) / len(right)
    assert loss.tolist() == pytest.approx([expected, 0])
    loss.sum().backward()
    assert logits.grad.isfinite().all()
    assert not logits.grad[logits == NONE].any()
