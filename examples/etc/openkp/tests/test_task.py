"""Keyphrases: the best of a page, OpenKP's scores by hand, and the losses against loops."""

import math
from argparse import Namespace

import pytest
import torch

from openkp.task import (
    ETCKeyphrasesLoss,
    best_keyphrases,
    keyphrase_scores,
    phrase_nll,
)

NONE = -torch.inf
GOLD = ["Star Trek", "discovery  season"]


def test_each_phrase_once_with_its_largest_logit() -> None:
    logits = torch.tensor([[1.0, 4.0, 3.0, 2.0], [6.0, -1.0, 5.0, NONE]])
    words = ["Star", "Trek", "star", "trek", "behind the end"]
    expected = [("star trek", 6.0), ("trek", 4.0), ("star", 3.0), ("trek star", -1.0)]
    assert best_keyphrases(logits, words) == expected
    assert best_keyphrases(logits, words, 2) == expected[:2]
    assert best_keyphrases(torch.full((2, 4), NONE), words) == []


def scores(found: list[str], gold: list[str] = GOLD) -> list[list[float]]:
    """Precision, recall and F1 of each depth."""
    named = keyphrase_scores(found, gold)
    return [[named[f"{n}_at_{k}"] for n in ("precision", "recall", "f1")] for k in (1, 3, 5)]


def test_scores_written_out() -> None:
    assert scores(["STAR trek", "something"]) == [
        pytest.approx([1, 1 / 2, 2 / 3]),
        pytest.approx([1 / 3, 1 / 2, 2 / 5]),
        pytest.approx([1 / 5, 1 / 2, 2 / 7]),
    ]
    assert scores(["something", "discovery season", "b", "c", "star trek"]) == [
        pytest.approx([0, 0, 0]),
        pytest.approx([1 / 3, 1 / 2, 2 / 5]),
        pytest.approx([2 / 5, 1, 4 / 7]),
    ]
    assert scores([]) == [[0, 0, 0]] * 3


def test_repeated_phrases_count_once() -> None:
    assert scores(["a", "A", "a ", "star trek"]) == scores(["a", "star trek"])
    assert scores(["star trek"], [*GOLD, "STAR TREK"]) == scores(["star trek"])


# "a b a b": four words; of n-grams, one and two words are shown
LOGITS = torch.tensor([[[1.0, 2.0, 4.0, 0.5], [3.0, -1.0, 5.0, NONE]]], dtype=torch.float64)
FIRST = torch.tensor([[[0, 1, 0, 1], [0, 1, 0, 3]]])
PHRASES = torch.tensor([[[0, 2], [1, 1], [0, 0]]])  # "a b", "b"; no more
NO_PHRASE = torch.zeros(1, 3, 2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("place", "right", "all_"),
    [
        ("first", [3, 2], [1, 2, 4, 0.5, 3, -1, 5]),
        ("max", [5, 2], [4, 2, 5, -1]),  # of "a" 4, of "b" 2, of "a b" 5; others stand once
    ],
)
def test_what_is_right(place: str, right: list[float], all_: list[float]) -> None:
    expected = math.log(sum(map(math.exp, all_))) - sum(right) / len(right)
    assert phrase_nll(LOGITS, PHRASES, FIRST, place).tolist() == pytest.approx([expected])


@pytest.mark.parametrize("place", ["first", "max"])
def test_no_gradient_where_there_is_no_n_gram(place: str) -> None:
    logits, phrases = LOGITS.repeat(2, 1, 1).requires_grad_(), torch.cat([PHRASES, NO_PHRASE])
    loss = phrase_nll(logits, phrases, FIRST.repeat(2, 1, 1), place)
    assert loss[1] == 0  # no keyphrase
    loss.sum().backward()
    assert logits.grad.isfinite().all()
    assert not logits.grad[logits == NONE].any()


def test_another_task() -> None:
    message = "--criterion is etc_keyphrases, and --task clusterformer_qa; allowed: etc_keyphr"
    with pytest.raises(ValueError, match=message):
        ETCKeyphrasesLoss(Namespace(cfg=Namespace(_name="clusterformer_qa")), "first")
