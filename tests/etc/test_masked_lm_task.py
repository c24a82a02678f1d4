"""ETC's losses against loops, and what is logged of them."""

import math
from argparse import Namespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.logging import metrics

from fairseq_clusterformer.etc.masked_lm import ETCMaskedLMLoss


def criterion() -> ETCMaskedLMLoss:
    return ETCMaskedLMLoss(Namespace(target_dictionary=Dictionary()), 0.8, 0.2)


def sample(target: list[int]) -> dict:
    return {"target": torch.tensor([target]), "net_input": {}, "ntokens": 4, "nsentences": 1}


def test_losses_are_those_of_loops() -> None:
    torch.manual_seed(0)
    logits, expected, actual = torch.randn(2, 9), torch.randn(3, 4), torch.randn(3, 4)

    def model(masked_tokens):
        assert masked_tokens.tolist() == [[True, False, True, False]]
        return logits, {"contrast": (expected, actual)}

    total, size, log = criterion()(model, sample([5, 1, 7, 1]))
    words = sum(math.log(row.exp().sum()) - row[t] for row, t in zip(logits, (5, 7), strict=True))
    parts = 0.0
    for number in range(3):
        alike = [float(expected[number] @ other) / 2 for other in actual]
        parts += math.log(sum(map(math.exp, alike))) - alike[number]
    assert size == 2
    assert float(total) == pytest.approx(0.8 * float(words) + 0.2 * 2 * parts / 3, rel=1e-5)
    with metrics.aggregate() as found:
        ETCMaskedLMLoss.reduce_metrics([log, log])
    values = found.get_smoothed_values()
    assert values["loss"] == pytest.approx(float(words) / 2 / math.log(2), abs=1e-3)
    assert float(values["parts_loss"]) == pytest.approx(parts / 3 / math.log(2), abs=1e-3)
    right = (expected @ actual.T).argmax(-1).eq(torch.arange(3)).float().mean()
    assert float(values["parts_accuracy"]) == pytest.approx(right.item(), abs=1e-3)


def test_nothing_to_guess() -> None:
    def model(masked_tokens):
        empty = torch.zeros(0, 4, requires_grad=True)
        return torch.zeros(0, 9, requires_grad=True), {"contrast": (empty, empty)}

    total, size, _ = criterion()(model, sample([1, 1]))
    total.backward()
    assert (total.item(), size) == (0, 1)
