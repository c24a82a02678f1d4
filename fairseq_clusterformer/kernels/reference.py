"""Ranged attention by a dense mask: the specification that the kernels are held to.

It is plain PyTorch, which autograd and ``torch.compile`` follow.
"""

import math

import torch
from torch import Tensor

from ..precision import at_least_float32
from .kernel import Carry, Kernel, attend_own, join
from .layout import Call


class Reference(Kernel):
    """See :class:`.kernel.Kernel`. Memory O(N * M)."""

    backward = None

    def forward(self, call: Call, carry: Carry | None = None) -> Carry:
        parts = [_attend(call)] if carry is None else [carry[:2], _attend(call)]
        if call.own is not None:
            parts.append(attend_own(*call[:3], call.own))
        return Carry(*join(parts))


def _attend(call: Call) -> tuple[Tensor, Tensor]:
    key_bias, layout, dropout = call.key_bias, call.layout, call.dropout
    batch, heads, length, width = call.q.shape
    q, k, v = map(at_least_float32, call[:3])

    # The token at each slot, [B, H, N] and [B, H, M].
    tokens = torch.arange(length, device=q.device).view(1, 1, length)
    query_order, key_order = (
        (tokens if order is None else order).expand(batch, heads, -1)
        for order in (layout.query_order, layout.key_order)
    )
    # Into slot order. A slot that holds no token becomes 0, whatever stands in memory.
    q = _hide_unused(_take(q, query_order), layout.num_queries)
    k = _hide_unused(_take(k, key_order), layout.num_keys)
    v = _hide_unused(_take(v, key_order), layout.num_keys)

    logits = q @ k.transpose(-1, -2) / math.sqrt(width)  # [B, H, N, M]
    if key_bias is not None:
        bias = key_bias.to(q.dtype).expand(batch, heads, length).unsqueeze(-1)
        # Kernels have logits in units of log 2, where the least finite number is -inf.
        bias = bias.masked_fill(torch.isneginf(bias * math.log2(math.e)), -math.inf)
        # [B, H, M, 1] to [B, H, 1, M]: the same for each query
        logits = logits + _hide_unused(_take(bias, key_order), layout.num_keys).mT

    slot = torch.arange(key_order.size(-1), device=q.device)
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

    restore = query_order.argsort(-1)  # the slot of each token
    return _take(out, restore).to(call.q.dtype), lse.gather(-1, restore)


def _take(x: Tensor, order: Tensor) -> Tensor:
    """Rows of x [B, H, *, E] in an order [B, H, n]."""
    return x.gather(2, order.unsqueeze(-1).expand(-1, -1, -1, x.size(-1)))


def _hide_unused(x: Tensor, count: Tensor | None) -> Tensor:
    """x [B, H, slots, E] with 0 from slot number ``count`` on."""
    if count is None:
        return x
    unused = torch.arange(x.size(2), device=x.device) >= count.unsqueeze(-1)
    return x.masked_fill(unused.unsqueeze(-1), 0.0)
