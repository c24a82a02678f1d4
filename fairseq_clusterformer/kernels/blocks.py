"""Ranged attention in tiles of slots, in plain PyTorch: CPU and CUDA, O(N) memory per head.

Queries and keys are put into slot order and cut into tiles of T slots. The queries of a tile see
few tiles of keys, which follow each other. Query tiles that see equally many are attended together
in one batched matrix product; only the weights of one such group exist at a time. The backward
pass computes them again from the log-sum-exp.

Logits are in units of log 2: on a CPU, exp2 of -inf costs a tenth of what exp does.
Shape letters: R rows, each an order of its own (B times the layout's G), h heads that share an
order, T slots of a tile, c tiles of a group.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..precision import at_least_float32
from .kernel import LOG2_E, TENSORS, Call, Carry, Gradients, OneByOne

TILE = 64  # slots, if the sequence is longer than that
# Weights of a group of tiles, in numbers: those of a CPU's second-level cache; a GPU wants more.
GROUP_NUMBERS_CPU, GROUP_NUMBERS_GPU = 1 << 20, 1 << 25


class _Side(NamedTuple):
    """Queries or keys: which token stands in which slot."""

    rows: Tensor  # [R * h * tiles * T] of all tokens' rows; any in slots that only fill up a tile
    slots: int  # without these
    unused: Tensor | None  # bool [.., 1], True in slots without a token; None: all have one


class _Plan:
    """A layout's orders and ranges in tiles."""

    def __init__(self, call: Call, below: bool = False):
        q, layout, self.below = call.q, call.layout, below
        self.call, (batch, heads, length, _) = call, q.shape
        parts = (getattr(layout, name) for name in TENSORS[:-1])
        groups = max(x.size(1) for x in parts if x is not None)  # 1 or heads
        self.rows, self.heads = (batch, groups), heads // groups
        # A short sequence is one tile, of a multiple of 8 slots.
        self.tile = min(TILE, -(-max(length, layout.slots) // 8) * 8)
        self.queries = self._side(layout.query_order, layout.num_queries)
        self.keys = self._side(layout.key_order, layout.num_keys)
        # An empty range becomes one at 0.
        empty = layout.hi <= layout.lo
        bounds = (x.masked_fill(empty, 0) for x in (layout.lo, layout.hi))
        # [B or 1, G or 1, slots] to [R * tiles, T], filled up with 0.
        bounds = (pad(x, (0, -x.size(-1) % self.tile)).expand(*self.rows, -1) for x in bounds)
        self.lo, self.hi = (x.reshape(-1, self.tile) for x in bounds)
        self.least = None
        if layout.least is not None:
            least = at_least_float32(layout.least).expand(batch, heads, length)
            self.least = self.to_slots(least.unsqueeze(-1), self.queries)

    def _side(self, order: Tensor | None, count: Tensor | None) -> _Side:
        batch, heads, length, _ = self.call.q.shape
        rows = torch.arange(batch * length * heads, device=self.call.q.device)
        rows = rows.view(batch, length, heads).transpose(1, 2)  # as projections leave them
        if order is not None:
            rows = rows.gather(-1, order.expand(batch, heads, -1))
        slots, unused = rows.size(-1), None
        rows = pad(rows, (0, -slots % self.tile))
        if count is not None or slots < rows.size(-1):
            count = slots if count is None else count.unsqueeze(-1)
            unused = torch.arange(rows.size(-1), device=rows.device) >= count
            unused = unused.expand(rows.shape).reshape(-1, 1)
        return _Side(rows.flatten(), slots, unused)

    def to_slots(self, x: Tensor, side: _Side) -> Tensor:
        """Token order [B, H, N, E] to tiles [R * h * tiles, T, E], unused slots 0."""
        out = x.transpose(1, 2).reshape(-1, x.size(-1)).index_select(0, side.rows)
        if side.unused is not None:
            out.masked_fill_(side.unused, 0)
        return out.view(-1, self.tile, x.size(-1))

    def to_tokens(self, tiles: Tensor, side: _Side) -> Tensor:
        """Back from tiles to token order [B, H, N, E]; a token in several slots gets their sum."""
        batch, heads, length, _ = self.call.q.shape
        once, width = side.slots == length, tiles.size(-1)  # each token stands in one slot
        create = tiles.new_empty if once else tiles.new_zeros  # sums begin at 0
        out = create(batch * length * heads, width)
        index, source = side.rows.view(batch * heads, -1), tiles.view(batch * heads, -1, width)
        index, source = index[:, : side.slots].flatten(), source[:, : side.slots].flatten(0, 1)
        (out.index_copy_ if once else out.index_add_)(0, index, source)
        return out.view(batch, length, heads, width).transpose(1, 2)

    def of_keys(self) -> list[Tensor]:
        """Keys, values and, if there is one, their bias, in tiles [R * h * tiles, T, E or 1]."""
        call, found = self.call, [*self.call[1:3]]
        if call.key_bias is not None:
            bias = call.key_bias.expand(call.q.shape[:3]).unsqueeze(-1)
            found.append(bias.to(torch.promote_types(call.q.dtype, torch.float32)))
        return [self.to_slots(x, self.keys) for x in found]

    def logits(self, q_tiles: Tensor, tiles: list[Tensor]) -> Iterator[tuple[Tensor | None, ...]]:
        """In groups of query tiles by how many key tiles they see, n or fewer: the numbers of
        query tiles [c * h] and of key tiles that they see [c * h * n]; what dropout multiplies by;
        queries [c * h, T, E], keys and values [c * h, n * T, E] of these tiles, in at least
        float32; and logits in units of log 2 [c * h, T, n * T], -inf where a key is not seen."""
        call, tile, heads = self.call, self.tile, self.heads
        dtype = torch.promote_types(q_tiles.dtype, torch.float32)
        rows, device = math.prod(self.rows), self.lo.device
        query_tiles, key_tiles = (
            len(side.rows) // (rows * heads * tile) for side in (self.queries, self.keys)
        )
        sees = self.hi > self.lo
        # From the first key tile that any query of the tile sees, up to the last.
        first = torch.where(sees, self.lo, key_tiles * tile).amin(-1) // tile
        first = torch.where(sees.any(-1), first, 0)
        last = (self.hi.amax(-1) + tile - 1) // tile
        counts, order = (last - first).clamp(min=1).sort(descending=True, stable=True)
        # The group's size is that of its first tile, which sees the most.
        sizes, begin = counts.tolist(), 0
        limit = GROUP_NUMBERS_CPU if call.q.is_cpu else GROUP_NUMBERS_GPU
        head = torch.arange(heads, device=device)
        seed = 0 if call.seed is None else int(call.seed)
        while begin < len(sizes):
            number = sizes[begin]
            of = order[begin : begin + max(1, limit // (heads * tile * tile * number))]
            head_of = (of // query_tiles).unsqueeze(-1) * heads + head
            queries = (head_of * query_tiles + (of % query_tiles).unsqueeze(-1)).flatten()
            span = first[of].unsqueeze(-1) + torch.arange(number, device=device)
            # One that sees fewer tiles reaches past the end; its ranges hide what it gets.
            span = span.clamp(max=key_tiles - 1).unsqueeze(1)
            keys = (head_of.unsqueeze(-1) * key_tiles + span).flatten()
            # Ranges are those of a row's order; the heads that share it have one mask.
            slot = (first[of] * tile).unsqueeze(-1) + torch.arange(number * tile, device=device)
            slot, lo, hi = slot.unsqueeze(1), self.lo[of].unsqueeze(-1), self.hi[of].unsqueeze(-1)
            kept = None
            if call.dropout > 0.0:  # of each group, the same for a seed
                generator = torch.Generator(device).manual_seed(seed)
                kept = self.lo.new_empty(len(queries), tile, number * tile, dtype=torch.float32)
                kept.bernoulli_(1.0 - call.dropout, generator=generator).div_(1.0 - call.dropout)
            q = q_tiles.index_select(0, queries).to(dtype)
            k, v, *bias = (x.index_select(0, keys).to(dtype) for x in tiles)
            k, v = (x.view(len(q), -1, x.size(-1)) for x in (k, v))
            logits = torch.bmm(q * (LOG2_E / math.sqrt(q.size(-1))), k.mT)
            if bias:  # the same for each query
                logits.add_(bias[0].view(len(q), 1, -1), alpha=LOG2_E)
            hidden = ((slot < lo) | (slot >= hi)).unsqueeze(1)
            logits.view(len(of), heads, *hidden.shape[2:]).masked_fill_(hidden, -math.inf)
            if self.least is not None:
                least = self.least.index_select(0, queries) * LOG2_E
                hidden = logits >= least if self.below else logits < least
                logits.masked_fill_(hidden, -math.inf)
            yield queries, keys, kept, q, k, v, logits
            begin, seed = begin + len(of), seed + 1


def _forward(call: Call) -> tuple[Tensor, Tensor]:
    plan, dtype = _Plan(call), torch.promote_types(call.q.dtype, torch.float32)
    q_tiles = plan.to_slots(call.q, plan.queries)
    lse_tiles = q_tiles.new_empty(*q_tiles.shape[:2], 1, dtype=dtype)
    for queries, _, kept, _, _, v, weights in plan.logits(q_tiles, plan.of_keys()):
        peak = weights.amax(-1, keepdim=True).clamp_(min=torch.finfo(dtype).min)
        weights.sub_(peak).exp2_()  # a tile sees all its keys at once: no online softmax
        total = weights.sum(-1, keepdim=True)
        lse_tiles[queries] = (peak + total.log2()) / LOG2_E
        if kept is not None:
            weights *= kept
        # A query that sees nothing has total 0 and weights 0: the result is 0.
        out = torch.bmm(weights, v)
        # Written over q_tiles: each query tile is read only once.
        q_tiles[queries] = out.div_(total.clamp_(min=torch.finfo(dtype).tiny)).to(q_tiles)
    out = plan.to_tokens(q_tiles, plan.queries)
    return out, plan.to_tokens(lse_tiles, plan.queries).squeeze(-1).contiguous()


def _backward(call: Call, d_out: Tensor, d_lse: Tensor | None, carry: Carry) -> Gradients:
    plan, dtype, key_bias = _Plan(call), carry.lse.dtype, call.key_bias
    # Where nothing is seen, d_lse may be NaN (of logaddexp, say): no key may learn of it.
    delta = (d_out.to(dtype) * carry.out.to(dtype)).sum(-1)
    nothing = torch.isinf(carry.lse)
    delta = (delta if d_lse is None else delta - d_lse).masked_fill_(nothing, 0.0)
    lse = carry.lse.masked_fill(nothing, 0.0).mul_(LOG2_E)
    of_queries = [call.q, d_out, *(x.unsqueeze(-1) for x in (lse, delta))]
    q_tiles, *others = (plan.to_slots(x, plan.queries) for x in of_queries)
    keys = plan.of_keys()
    d_q, d_keys = torch.empty_like(q_tiles), [torch.zeros_like(x, dtype=dtype) for x in keys]
    scale = call.q.size(-1) ** -0.5
    for queries, seen, kept, q, k, v, weights in plan.logits(q_tiles, keys):
        d_out, lse, delta = (x.index_select(0, queries).to(dtype) for x in others)
        weights.sub_(lse).exp2_()
        d_weights, dropped = torch.bmm(d_out, v.mT), weights
        if kept is not None:
            d_weights, dropped = d_weights.mul_(kept), weights * kept
        # That of the whole softmax: delta and the log-sum-exp are those of all calls.
        d_logits = d_weights.sub_(delta).mul_(weights)
        d_q[queries] = torch.bmm(d_logits, k).mul_(scale).to(d_q.dtype)
        found = [torch.bmm(d_logits.mT, q).mul_(scale), torch.bmm(dropped.mT, d_out)]
        found += [d_logits.sum(1)] if len(keys) > 2 else []
        for to, x in zip(d_keys, found, strict=True):  # several query tiles see a key tile
            to.index_add_(0, seen, x.view(-1, *to.shape[1:]))
    d_q = plan.to_tokens(d_q, plan.queries)
    d_k, d_v, *d_bias = (plan.to_tokens(x, plan.keys) for x in d_keys)
    d_bias = d_bias[0].squeeze(-1).sum_to_size(key_bias.shape).to(key_bias) if d_bias else None
    return Gradients(d_q, d_k.to(call.k.dtype), d_v.to(call.v.dtype), d_bias)


def by_query(
    call: Call, number: int, find: Callable[[Tensor, int], Tensor], below: bool = False
) -> Tensor:
    """So many numbers of each query [B, H, N, number], at least float32, that a function finds in
    its logits, as many as there are at most; -inf: it has fewer. ``below``: only in those
    that ``least`` hides, in place of those that it leaves."""
    plan, dtype = _Plan(call, below), torch.promote_types(call.q.dtype, torch.float32)
    q_tiles = plan.to_slots(call.q, plan.queries)
    found = q_tiles.new_full((*q_tiles.shape[:2], number), -math.inf, dtype=dtype)
    for queries, *_, logits in plan.logits(q_tiles, plan.of_keys()):
        most = min(number, logits.size(-1))
        found[queries, :, :most] = find(logits.div_(LOG2_E), most).to(dtype)
    return plan.to_tokens(found, plan.queries)


class Blocks(OneByOne):
    attend, gradients = staticmethod(_forward), staticmethod(_backward)
