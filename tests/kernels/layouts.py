"""Layouts and inputs that tests of ranged attention share."""

from dataclasses import replace

import pytest
import torch

from fairseq_clusterformer.attention import Batch
from fairseq_clusterformer.attention.layout import chunk_layout, recent_layouts, window_layouts
from fairseq_clusterformer.kernels import IMPLEMENTATIONS, Layout, ranged_attention

BATCH, HEADS, WIDTH = 3, 2, 8


def _window(ids, mask, window, causal) -> Layout:
    return window_layouts(
        ids.size(-1), window, causal=causal, batch=Batch(mask), device=ids.device
    )[0]


def _clusters(ids, mask, window, **options) -> Layout:
    return recent_layouts(ids, 5, window, batch=Batch(mask), **options)[0]


def _least(layout: Layout) -> Layout:
    least = torch.randn(layout.lo.shape, dtype=torch.float64)
    return replace(layout, least=least)


LAYOUTS = {
    "full, causal": lambda ids, mask: _window(ids, mask, None, causal=True),
    "window, both sides": lambda ids, mask: _window(ids, mask, 9, causal=False),
    "clusters, causal": lambda ids, mask: _clusters(ids, mask, 11, causal=True),
    "clusters, whole": lambda ids, mask: _clusters(ids, mask, None, causal=False),
    "queries and keys apart": lambda ids, mask: _clusters(
        ids, mask, 70, causal=True, key_clusters=ids.roll(3, -1)
    ),
    "chunks": lambda ids, mask: chunk_layout(ids, 5, padding_mask=mask),
    "index": lambda ids, mask: _least(_clusters(ids, mask, None, causal=True)),
}
every_layout = pytest.mark.parametrize("name", LAYOUTS)
OTHERS = [name for name in IMPLEMENTATIONS if name != "reference"]
every_other = pytest.mark.parametrize("impl", OTHERS)


def make_layout(name: str, length: int, groups: int, mask=None) -> Layout:
    return LAYOUTS[name](torch.randint(5, (BATCH, groups, length)), mask)


def make_inputs(
    length: int, dtype=torch.float64, bias: bool = False, *, batch=BATCH, heads=HEADS, width=WIDTH
):
    """q, k, v laid out as projections leave them, and a bias."""
    shape = (batch, length, heads, width)
    tensors = [torch.randn(shape, dtype=dtype).transpose(1, 2) for _ in range(3)]
    return (*tensors, torch.randn(batch, 1, length, dtype=dtype) if bias else None)


def run(impl, q, k, v, bias, layout, weight=None, **options):
    """Output, log-sum-exp, and gradients of a function of both."""
    leaves = [t.detach().clone().requires_grad_() for t in (q, k, v, bias) if t is not None]
    if bias is not None:
        layout = replace(layout, key_bias=leaves[3])
    out, lse = ranged_attention(*leaves[:3], layout, impl=impl, **options)
    if weight is None:
        weight = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view_as(out)
    visible = torch.isfinite(lse)
    loss = (out.double() * weight).sum() + lse[visible].double().square().sum()
    gradients = torch.autograd.grad(loss, leaves)
    return [out.detach(), lse.detach(), *gradients]
