"""Ranged attention by a dense mask: the specification that other implementations are held to."""

import math

import torch
from torch import Tensor

from ..precision import at_least_float32
from .layout import Layout


def reference_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    *,
    key_bias: Tensor | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """See :func:`fairseq_clusterformer.kernels.ranged_attention`. Memory O(N * M)."""
    batch, heads, length, width = q.shape
    dtype = q.dtype
    q, k, v = at_least_float32(q), at_least_float32(k), at_least_float32(v)

    query_order = _order(layout.query_order, batch, heads, length, q.device)
    key_order = _order(layout.key_order, batch, heads, length, q.device)
    slots = key_order.size(-1)

    # Into slot order; what holds no token becomes 0, whatever stood there.
    q = _hide_unused(_take(q, query_order), layout.num_queries)
    k = _hide_unused(_take(k, key_order), layout.num_keys)
    v = _hide_unused(_take(v, key_order), layout.num_keys)

    logits = q @ k.transpose(-1, -2) / math.sqrt(width)
    if key_bias is not None:
        bias = key_bias.to(q.dtype).expand(batch, heads, length).gather(-1, key_order)
        logits = logits + _hide_unused(bias.unsqueeze(-1), layout.num_keys).transpose(-1, -2)

    slot = torch.arange(slots, device=q.device)
    seen = (slot >= layout.lo.unsqueeze(-1)) & (slot < layout.hi.unsqueeze(-1))
    if layout.earlier_only:
        seen = seen & (key_order.unsqueeze(-2) <= query_order.unsqueeze(-1))
    logits = logits.masked_fill(~seen, -math.inf)

    # Where no key has a weight, the result is 0, and no gradient passes.
    none_seen = torch.isneginf(logits).all(-1, keepdim=True)
    logits = logits.masked_fill(none_seen, 0.0)
    lse = torch.logsumexp(logits, dim=-1).masked_fill(none_seen.squeeze(-1), -math.inf)
    weights = torch.softmax(logits, dim=-1).masked_fill(none_seen, 0.0)
    out = torch.nn.functional.dropout(weights, dropout) @ v

    # Back to the tokens' own positions.
    restore = query_order.argsort(-1)
    return _take(out, restore).to(dtype), lse.gather(-1, restore)


def _order(order: Tensor | None, batch: int, heads: int, length: int, device) -> Tensor:
    if order is None:
        order = torch.arange(length, device=device).view(1, 1, length)
    return order.expand(batch, heads, -1)


def _take(x: Tensor, order: Tensor) -> Tensor:
    return x.gather(2, order.unsqueeze(-1).expand(-1, -1, -1, x.size(-1)))


def _hide_unused(x: Tensor, count: Tensor | None) -> Tensor:
    if count is None:
        return x
    unused = torch.arange(x.size(2), device=x.device) >= count.unsqueeze(-1)
    return x.masked_fill(unused.unsqueeze(-1), 0.0)
