"""Ranged attention by PyTorch's flex_attention: an independent check, and fused kernels that are
not ours. Queries and keys are gathered into slot order; ranges become a mask of blocks.

On CUDA it is compiled, which takes seconds for each new shape. Where it cannot be (on a CPU, whose
compiled form has no gradients, or without Triton) torch computes it densely: memory O(N * M).
"""

import math
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from ..precision import at_least_float32
from .layout import Layout
from .reference import _hide_unused, _order, _take

BLOCK = 128


def flex_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    *,
    key_bias: Tensor | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """See :func:`fairseq_clusterformer.kernels.ranged_attention`: without dropout."""
    batch, heads, length, width = q.shape
    query_order = _order(layout.query_order, batch, heads, length, q.device)
    key_order = _order(layout.key_order, batch, heads, length, q.device)
    slots = key_order.size(-1)
    lo, hi = (x.expand(batch, heads, length) for x in (layout.lo, layout.hi))

    queries = _hide_unused(_take(q, query_order), layout.num_queries)
    keys, values = (_hide_unused(_take(x, key_order), layout.num_keys) for x in (k, v))
    biases = ()
    if key_bias is not None:
        bias = at_least_float32(key_bias).expand(batch, heads, length).gather(-1, key_order)
        biases = (_hide_unused(bias.unsqueeze(-1), layout.num_keys).squeeze(-1),)

    def seen(b, h, query, key):
        inside = (key >= lo[b, h, query]) & (key < hi[b, h, query])
        if layout.earlier_only:
            inside = inside & (key_order[b, h, key] <= query_order[b, h, query])
        return inside

    def biased(score, b, h, query, key, *bias):
        return score + bias[0][b, h, key].to(score.dtype) if bias else score

    run = _compiled() if q.is_cuda and find_spec("triton") is not None else _dense
    out, lse = run(queries, keys, values, biased, biases, _blocks(lo, hi, slots, seen))

    # Where nothing is seen, no gradient may pass: that of -inf may be NaN.
    nothing = torch.isneginf(lse) | (hi <= lo)
    out = out.masked_fill(nothing.unsqueeze(-1), 0.0)
    lse = at_least_float32(lse).masked_fill(nothing, -math.inf)
    restore = query_order.argsort(-1)
    return _take(out, restore), lse.gather(-1, restore)


def _blocks(lo: Tensor, hi: Tensor, slots: int, seen):
    """Which blocks of keys a block of queries sees: those between its lowest and highest."""
    from torch.nn.attention.flex_attention import BlockMask

    length = lo.size(-1)
    lo = lo.masked_fill(hi <= lo, slots)
    padding = (0, -length % BLOCK)
    lo = torch.nn.functional.pad(lo, padding, value=slots).unflatten(-1, (-1, BLOCK)).amin(-1)
    hi = torch.nn.functional.pad(hi, padding).unflatten(-1, (-1, BLOCK)).amax(-1)
    first = torch.div(lo, BLOCK, rounding_mode="floor")
    count = torch.div(hi + BLOCK - 1, BLOCK, rounding_mode="floor") - first
    blocks = -(-slots // BLOCK)
    index = (first.unsqueeze(-1) + torch.arange(blocks, device=lo.device)) % blocks
    return BlockMask.from_kv_blocks(
        count.clamp(min=0).int(),
        index.int(),
        BLOCK_SIZE=BLOCK,
        mask_mod=seen,
        seq_lengths=(length, slots),
    )


def _fused(q, k, v, biased, biases, blocks):
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    def score(s, b, h, query, key):
        return biased(s, b, h, query, key, *biases)

    out, aux = flex_attention(
        q, k, v, score_mod=score, block_mask=blocks, return_aux=AuxRequest(lse=True)
    )
    return out, aux.lse


@cache
def _compiled():
    return torch.compile(_fused, dynamic=False)


def _dense(q, k, v, biased, biases, blocks):
    """The operator that flex_attention wraps: without compiling, and with gradients on CPUs."""
    from torch._higher_order_ops.flex_attention import flex_attention

    scale = 1.0 / math.sqrt(q.size(-1))
    out, lse, _ = flex_attention(
        q, k, v, biased, blocks.as_tuple(), scale, {"OUTPUT_LOGSUMEXP": True}, biases, ()
    )
    return out, lse * math.log(2.0)
