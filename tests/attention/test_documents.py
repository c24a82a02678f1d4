"""Documents packed into one row: each as if it stood alone, in parallel and step by step."""

import pytest
import torch
from torch import Tensor

from fairseq_clusterformer.attention import Batch, MultiheadAttention

from ..kinds import CARRIED_ON, CAUSAL, WIDTH, build, by_steps, every_causal_kind, every_kind, pads
from .plain import LENGTHS, TOTAL, documents

ALL = {"rotary": True, "short_convolution": 3}

PLAIN = {}
#: rotary positions, a convolution, and shared keys
WHOLE = {**ALL, "kv_heads": 2}


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
        numbers = torch.zeros_like(mask, dtype=torch.long)
        numbers[~mask] = documents().flatten()
        out, reports = module(whole, Batch(mask if extra else None, numbers))
        real = out[~mask].view_as(x)
        torch.testing.assert_close(real, expected, rtol=0, atol=1e-12)
        (found,) = torch.autograd.grad(real[:, :9].square().sum(), x)
        torch.testing.assert_close(found, gradient, rtol=0, atol=1e-12)
        for report in reports:
            if report.clusters is not None:
                assert report.clusters.shape[::2] == whole.shape[:2]


@every_causal_kind(of=[WHOLE, PLAIN])
@torch.no_grad()
def test_steps_begin_anew(kind, of):
    module, x = build(kind, causal=True, of=of), inputs()
    if kind in CARRIED_ON:
        with pytest.raises(ValueError, match="carries what it saw .*; allowed in rows of se"):
            by_steps(module, x, documents=documents())
        return
    found, _ = by_steps(module, x, documents=documents())
    torch.testing.assert_close(found, alone(module, apart(x)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [kind for kind in CAUSAL if kind not in CARRIED_ON])
@torch.no_grad()
def test_steps_with_padding(kind):
    module, given = build(kind, causal=True, of=ALL), inputs()
    mask = pads([TOTAL] * 3, TOTAL + 4, "left")
    x = torch.full((3, TOTAL + 4, WIDTH), float("nan"), dtype=torch.float64)
    x[~mask] = given.flatten(0, 1)
    numbers = torch.zeros_like(mask, dtype=torch.long)
    numbers[~mask] = documents().flatten()
    found = by_steps(module, x, mask, numbers)[0][~mask].view(3, TOTAL, WIDTH)
    torch.testing.assert_close(found, alone(module, apart(given)), rtol=0, atol=1e-12)


def test_centroids_of_the_layer_before_are_of_a_whole_row():
    module = build("neural, chunk, centroids handed on", causal=False)
    with pytest.raises(ValueError, match="allowed: each layer owns its centroids"):
        module(inputs(), Batch(None, documents()))


@torch.no_grad()
def test_a_document_sees_nothing_of_another():
    """Guards the tests above: were all numbers the same, they would differ."""
    module, x = build("window", causal=True), inputs()
    one = module(x, Batch(None, torch.zeros(3, TOTAL, dtype=torch.long)))[0]
    torch.testing.assert_close(one, module(x)[0], rtol=0, atol=1e-12)
    assert not torch.allclose(one[0], module(x, Batch(None, documents()))[0][0])


def test_positions_begin_anew():
    mask = torch.tensor([[True, True, False, False, False, False, True]])
    numbers = torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    assert Batch(mask, numbers).positions(mask).tolist()[0][2:6] == [0, 1, 0, 1]
    assert Batch(None, numbers).positions(mask).tolist() == [[0, 1, 2, 3, 0, 1, 2]]
    assert Batch().positions(mask).tolist() == [list(range(7))]
