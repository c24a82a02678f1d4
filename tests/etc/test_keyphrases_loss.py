"""The losses of keyphrases against loops, and what is logged of them."""

import math
from argparse import Namespace

import pytest
import torch
from fairseq.logging import metrics

from fairseq_clusterformer.etc.keyphrases_loss import ETCKeyphrasesLoss, phrase_nll

NONE = -torch.inf
# "a b a b": four words; of n-grams, one and two words are shown
LOGITS = torch.tensor([[[1.0, 2.0, 4.0, 0.5], [3.0, -1.0, 5.0, NONE]]], dtype=torch.float64)
FIRST = torch.tensor([[[0, 1, 0, 1], [0, 1, 0, 3]]])
PHRASES = torch.tensor([[[0, 2], [1, 1], [0, 0]]])  # "a b", "b"; no more


def nll(right: list[float], all_: list[float]) -> float:
    return math.log(sum(map(math.exp, all_))) - sum(right) / len(right)


def test_the_first_place_is_right() -> None:
    found = phrase_nll(LOGITS, PHRASES, FIRST, "first")
    assert found.tolist() == pytest.approx([nll([3, 2], [1, 2, 4, 0.5, 3, -1, 5])])


def test_the_largest_of_all_places_is_the_logit_of_a_phrase() -> None:
    """Of "a" 4, of "b" 2, of "a b" 5; the other words stand once."""
    found = phrase_nll(LOGITS, PHRASES, FIRST, "max")
    assert found.tolist() == pytest.approx([nll([5, 2], [4, 2, 5, -1])])


@pytest.mark.parametrize("place", ["first", "max"])
def test_gradients(place: str) -> None:
    logits = LOGITS.clone().requires_grad_()
    phrase_nll(logits, PHRASES, FIRST, place).sum().backward()
    assert logits.grad[0, 1, 3] == 0  # no n-gram
    step = 1e-6
    for row, word in ((0, 0), (0, 2), (1, 0), (1, 1), (1, 2)):
        moved = []
        for sign in (-1, 1):
            changed = LOGITS.clone()
            changed[0, row, word] += sign * step
            moved.append(float(phrase_nll(changed, PHRASES, FIRST, place).sum()))
        slope = (moved[1] - moved[0]) / (2 * step)
        assert float(logits.grad[0, row, word]) == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize("place", ["first", "max"])
def test_a_page_without_a_keyphrase(place: str) -> None:
    logits = LOGITS.repeat(2, 1, 1).requires_grad_()
    phrases = torch.stack([PHRASES[0], torch.zeros_like(PHRASES[0])])
    found = phrase_nll(logits, phrases, FIRST.repeat(2, 1, 1), place)
    assert found[1] == 0
    found.sum().backward()
    assert (logits.grad[1] == 0).all()
    assert logits.grad[0].isfinite().all()


class Data:
    """Texts of two pages; of the second no keyphrase is known."""

    def texts(self, number: int) -> dict:
        phrases = [["A b", "b", "no such"], None][number]
        return {"text": "A b a b", "phrases": phrases}


class Model:
    training = False

    def __call__(self, **net_input):
        return LOGITS.repeat(2, 1, 1), {}


def test_what_is_logged() -> None:
    """The best phrases are "a b", "a", "b", "b a"."""
    cfg = Namespace(_name="etc_keyphrases", max_nodes=9)
    dataset = Namespace(data=Data())
    criterion = ETCKeyphrasesLoss(Namespace(cfg=cfg, dataset=lambda split: dataset), "max")
    sample = {
        "id": torch.tensor([0, 1]),
        "split": "valid",
        "net_input": {},
        "target": {
            "phrases": torch.stack([PHRASES[0], torch.zeros_like(PHRASES[0])]),
            "first": FIRST.repeat(2, 1, 1),
        },
        "ntokens": 8,
        "nsentences": 2,
    }
    loss, size, log = criterion(Model(), sample)
    assert size == 1
    with metrics.aggregate() as found:
        ETCKeyphrasesLoss.reduce_metrics([log, log])
    values = found.get_smoothed_values()
    assert values["loss"] == pytest.approx(float(loss) / math.log(2), abs=1e-3)
    expected = {1: (100, 33.33, 50), 3: (66.67, 66.67, 66.67), 5: (40, 66.67, 50)}
    for depth, scores in expected.items():
        names = [f"{name}_at_{depth}" for name in ("precision", "recall", "f1")]
        assert [float(values[name]) for name in names] == pytest.approx(scores, abs=0.01)


def test_another_task() -> None:
    message = "--criterion is etc_keyphrases, and --task clusterformer_qa; allowed: etc_keyphr"
    with pytest.raises(ValueError, match=message):
        ETCKeyphrasesLoss(Namespace(cfg=Namespace(_name="clusterformer_qa")), "first")
