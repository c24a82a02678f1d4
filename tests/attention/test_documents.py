"""Documents packed into one row: each as if it stood alone, in parallel and step by step."""

import pytest
import torch
from torch import Tensor

from fairseq_clusterformer.attention import Batch, MultiheadAttention

from ..kinds import WIDTH, build, every_kind, pads
from .plain import LENGTHS, TOTAL, documents

PLAIN = {}
#: rotary positions, a convolution, and shared keys
WHOLE = {"rotary": True, "short_convolution": 3, "kv_heads": 2}


def inputs() -> Tensor:
    return torch.randn(len(LENGTHS), TOTAL, WIDTH, dtype=torch.float64)


def apart(x: Tensor) -> list[tuple[Tensor, ...]]:
    """The documents of each row."""
    return [row.split(lengths, dim=1) for row, lengths in zip(x.split(1), LENGTHS, strict=True)]


def alone(module: MultiheadAttention, texts: list[tuple[Tensor, ...]]) -> Tensor:
    """Outputs [B, N, D] of each document by itself."""
    rows = [torch.cat([module(text)[0] for text in row], dim=1) for row in texts]
    return torch.cat(rows)


@every_kind(of=[WHOLE, PLAIN])
def test_each_is_as_if_alone(kind, causal, of):
    """Also in rows that padding fills, of another length each."""
    if "handed on" in kind:
        pytest.skip("refused: see below")
    module, x = build(kind, causal=causal, of=of), inputs().requires_grad_()
    expected = alone(module, apart(x))
    (gradient,) = torch.autograd.grad(expected[:, :9].square().sum(), x)
    for extra in (0, 5):
        mask = pads([TOTAL] * 3, TOTAL + extra, "left")
        whole = torch.full((*mask.shape, WIDTH), float("nan"), dtype=x.dtype)
        whole = whole.masked_scatter(~mask.unsqueeze(-1), x)
        numbers = torch.zeros_like(mask, dtype=torch.long).masked_scatter(~mask, documents())
        out, reports = module(whole, Batch(mask if extra else None, numbers))
        real = out[~mask].view_as(x)
        torch.testing.assert_close(real, expected, rtol=0, atol=1e-12)
        (found,) = torch.autograd.grad(real[:, :9].square().sum(), x)
        torch.testing.assert_close(found, gradient, rtol=0, atol=1e-12)
        for report in reports:
            if report.clusters is not None:
                assert report.clusters.shape[::2] == whole.shape[:2]


def test_centroids_of_the_layer_before_are_of_a_whole_row():
    module = build("neural, chunk, centroids handed on", causal=False)
    with pytest.raises(ValueError, match="allowed: each layer owns its centroids"):
        module(inputs(), Batch(None, documents()))


def test_positions_begin_anew():
    mask = torch.tensor([[True, True, False, False, False, False, True]])
    numbers = torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    assert Batch(mask, numbers).positions(mask).tolist()[0][2:6] == [0, 1, 0, 1]
    assert Batch(None, numbers).positions(mask).tolist() == [[0, 1, 2, 3, 0, 1, 2]]
    assert Batch().positions(mask).tolist() == [list(range(7))]
