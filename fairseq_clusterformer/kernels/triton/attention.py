"""Ranged attention as fused Triton kernels: one forward, two for the backward pass.

A program attends a tile of query slots to the key slots between the lowest and the highest that
any of them sees. Orders are read inside the kernels and results are stored at their tokens' own
positions: nothing is gathered or scattered in memory, and weights never leave the chip. The
backward pass computes them again from the log-sum-exp. Every number is written once, by one
program: no atomics, and the same bits every time for a choice of tiles (see
:func:`.launch.tuned`). Only where tokens stand in several key slots are dk and dv kept by slot and
added up afterwards.
"""

import torch
from torch import Tensor

from ..layout import TENSORS, Layout
from .backward import backward
from .forward import forward


def triton_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    *,
    key_bias: Tensor | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """See :func:`fairseq_clusterformer.kernels.ranged_attention`."""
    # One number names this call's dropout masks, so that the backward pass draws them again and
    # activation checkpointing replays them; on the device, so that a CUDA graph draws anew.
    seed = torch.randint(1 << 62, (), device=q.device) if dropout > 0.0 else None
    tensors = [getattr(layout, name) for name in TENSORS]
    return _TritonAttention.apply(
        q, k, v, key_bias, seed, dropout, layout.earlier_only, layout.reach, *tensors
    )


class _TritonAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, key_bias, seed, dropout, earlier_only, reach, *tensors):
        layout = Layout(*tensors, earlier_only=earlier_only, reach=reach)
        out, lse = forward(q, k, v, key_bias, seed, layout, dropout)
        ctx.save_for_backward(q, k, v, key_bias, out, lse, seed, *tensors)
        ctx.dropout, ctx.layout = dropout, (earlier_only, reach)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out, d_lse):
        *saved, seed = ctx.saved_tensors[: -len(TENSORS)]
        earlier_only, reach = ctx.layout
        layout = Layout(
            *ctx.saved_tensors[-len(TENSORS) :], earlier_only=earlier_only, reach=reach
        )
        d_out = torch.zeros_like(saved[-2]) if d_out is None else d_out
        gradients = backward(d_out, d_lse, *saved, seed, layout, ctx.dropout)
        return *gradients, *(None,) * (4 + len(TENSORS))
