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
from typing import NamedTuple

import torch
from torch import Tensor

from .kernel import LOG2_E, Carry, Gradients, OneByOne, Wanted
from .layout import TENSORS, Call

TILE = 64  # slots, if the sequence is longer than that
# Weights of one group of tiles, in numbers: 1M float32 fit a CPU's second-level cache; a GPU is
# kept busy by larger groups.
GROUP_NUMBERS_CPU, GROUP_NUMBERS_GPU = 1 << 20, 1 << 25


class _Group(NamedTuple):
    """Query tiles that are attended together: each sees ``num_tiles`` key tiles or fewer."""

    tiles: Tensor  # [c] their numbers among the query tiles of all rows
    first: Tensor  # [c] the first key tile that each sees
    num_tiles: int
    queries: Tensor  # [c * h] their numbers among the query tiles of all heads
    keys: Tensor  # [c * h * num_tiles] the key tiles that these see


class _Side(NamedTuple):
    """Queries or keys: which token stands in which slot."""

    token: Tensor  # [R * tiles, T]; 0 in slots that only fill up the last tile
    slots: int  # without these
    tiles: int  # of a row
    unused: Tensor | None  # bool [R, 1, tiles * T], True in slots without a token; None: all have


class _Plan:
    """A layout's orders and ranges in tiles."""

    def __init__(self, call: Call):
        q, layout = call.q, call.layout
        batch, heads, length, _ = q.shape
        parts = [x for name in TENSORS if (x := getattr(layout, name)) is not None]
        self.groups = heads if any(x.size(1) > 1 for x in parts) else 1
        self.shape, self.rows, self.heads = q.shape, batch * self.groups, heads // self.groups
        slots = layout.slots
        # A short sequence is one tile, of a multiple of 8 slots.
        self.tile = min(TILE, -(-max(length, slots) // 8) * 8)
        identity = torch.arange(length, device=q.device).view(1, 1, length)
        self.queries = self._side(layout.query_order, layout.num_queries, length, identity)
        self.keys = self._side(layout.key_order, layout.num_keys, slots, identity)
        # An empty range becomes one at 0.
        empty = layout.hi <= layout.lo
        self.lo = self._tiled(layout.lo.masked_fill(empty, 0))
        self.hi = self._tiled(layout.hi.masked_fill(empty, 0))
        self.bias = None  # [R * h * tiles, T, 1]
        if call.key_bias is not None:
            bias = call.key_bias.to(torch.promote_types(q.dtype, torch.float32))
            bias = bias.expand(batch, heads, length).unsqueeze(-1)
            self.bias = self.to_slots(bias, self.keys).mul_(LOG2_E)
        self.grouped = self._grouped(GROUP_NUMBERS_CPU if q.is_cpu else GROUP_NUMBERS_GPU)

    def _side(
        self, order: Tensor | None, count: Tensor | None, slots: int, identity: Tensor
    ) -> _Side:
        token = self._tiled(identity if order is None else order)
        tiles, unused = len(token) // self.rows, None
        if count is None and slots < tiles * self.tile:
            count = torch.full((1, 1), slots, device=token.device)
        if count is not None:
            count = count.expand(self.shape[0], self.groups).reshape(-1, 1, 1)
            unused = torch.arange(tiles * self.tile, device=token.device) >= count
        return _Side(token, slots, tiles, unused)

    def _tiled(self, x: Tensor) -> Tensor:
        """[B or 1, G or 1, slots] to [R * tiles, T], filled up with 0."""
        x = x.expand(self.shape[0], self.groups, -1).reshape(self.rows, -1)
        x = torch.nn.functional.pad(x, (0, -x.size(-1) % self.tile))
        return x.view(-1, self.tile)

    def _grouped(self, limit: int) -> list[_Group]:
        """Sort query tiles by how many key tiles they see; cut where a group grows too large."""
        sees = self.hi > self.lo
        far = self.keys.tiles * self.tile
        lowest = torch.where(sees, self.lo, far).amin(-1)
        # From the first key tile that any query of the tile sees, up to the last.
        first = torch.div(lowest, self.tile, rounding_mode="floor")
        last = torch.div(self.hi.amax(-1) + self.tile - 1, self.tile, rounding_mode="floor")
        first = torch.where(sees.any(-1), first, 0)
        counts, tiles = (last - first).clamp(min=1).sort(descending=True, stable=True)
        # The group's size is that of its first tile, which sees the most.
        groups, sizes, begin = [], counts.tolist(), 0
        head = torch.arange(self.heads, device=first.device)
        while begin < len(sizes):
            number = sizes[begin]
            numbers = self.heads * self.tile * self.tile * number  # weights of a query tile
            members = tiles[begin : begin + max(1, limit // numbers)]
            row = torch.div(members, self.queries.tiles, rounding_mode="floor").unsqueeze(-1)
            heads, tile = row * self.heads + head, members % self.queries.tiles
            queries = (heads * self.queries.tiles + tile.unsqueeze(-1)).flatten()
            span = first[members].unsqueeze(-1) + torch.arange(number, device=first.device)
            # One that sees fewer tiles reaches past the end; its ranges hide what it gets.
            span = span.clamp(max=self.keys.tiles - 1).unsqueeze(1)
            keys = (heads.unsqueeze(-1) * self.keys.tiles + span).flatten()
            groups.append(_Group(members, first[members], number, queries, keys))
            begin += len(members)
        return groups

    def _token_rows(self, x: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """x's memory as rows of width E, and the row of each slot's token, [R, h, slots].

        A view wherever x consists of whole rows, as the heads of a projection do.
        """
        batch, heads, _, width = x.shape
        strides = (*x.stride()[:3], x.storage_offset())
        if x.stride(-1) != 1 or any(stride % width for stride in strides):
            x = x.contiguous()
            strides = (*x.stride()[:3], x.storage_offset())
        size = x.untyped_storage().nbytes() // x.element_size() // width
        flat = x.as_strided((size, width), (width, 1), 0)  # all of x's memory, row by row
        row_stride, head_stride, token_stride, offset = (stride // width for stride in strides)
        row = torch.arange(batch, device=x.device).view(-1, 1, 1, 1)
        head = torch.arange(heads, device=x.device).view(1, self.groups, -1, 1)
        token = token.view(batch, self.groups, 1, -1)
        index = offset + row * row_stride + head * head_stride + token * token_stride
        return flat, index.view(self.rows, self.heads, -1)

    def to_slots(self, x: Tensor, side: _Side) -> Tensor:
        """Token order [B, H, N, E] to tiles [R * h * tiles, T, E], unused slots 0."""
        flat, index = self._token_rows(x, side.token)
        out = flat.index_select(0, index.flatten()).view(*index.shape, x.size(-1))
        if side.unused is not None:
            out.masked_fill_(side.unused.unsqueeze(-1), 0)
        return out.view(-1, self.tile, x.size(-1))

    def to_tokens(self, tiles: Tensor, side: _Side) -> Tensor:
        """Back from tiles to token order [B, H, N, E]; a token in several slots gets their sum."""
        batch, heads, length, _ = self.shape
        once = side.slots == length  # each token stands in one slot
        create = tiles.new_empty if once else tiles.new_zeros  # sums begin at 0
        out = create(batch, length, heads, tiles.size(-1)).transpose(1, 2)
        flat, index = self._token_rows(out, side.token)
        index = index[..., : side.slots].flatten()
        source = tiles.view(self.rows, self.heads, -1, tiles.size(-1))[:, :, : side.slots]
        (flat.index_copy_ if once else flat.index_add_)(0, index, source.flatten(0, 2))
        return out

    def logits(self, group: _Group, q: Tensor, k: Tensor) -> Tensor:
        """Logits of a group [c * h, T, num_tiles * T], -inf where a key is not seen."""
        logits = torch.bmm(q, k.transpose(1, 2))
        if self.bias is not None:
            # The biases of a query tile's key tiles side by side, the same for each query.
            logits += self.bias.index_select(0, group.keys).view(len(q), 1, -1)
        span = group.num_tiles * self.tile
        # Ranges are those of a row's order; the heads that share it have one mask.
        slot = (group.first * self.tile).unsqueeze(-1) + torch.arange(span, device=q.device)
        hidden = slot.unsqueeze(1) < self.lo[group.tiles].unsqueeze(-1)  # [c, T, span]
        hidden |= slot.unsqueeze(1) >= self.hi[group.tiles].unsqueeze(-1)
        mask = torch.zeros_like(hidden, dtype=q.dtype).masked_fill_(hidden, -math.inf)
        logits.view(-1, self.heads, self.tile, span).add_(mask.unsqueeze(1))  # for each of h heads
        return logits

    def select(self, group: _Group, dtype: torch.dtype, q: Tensor, *keys: Tensor) -> list[Tensor]:
        """A group's queries, scaled, [c * h, T, E], and key tiles [c * h, num_tiles * T, E]."""
        queries = q.index_select(0, group.queries).to(dtype) * (LOG2_E / math.sqrt(q.size(-1)))
        found = (x.index_select(0, group.keys).to(dtype) for x in keys)
        return [queries, *(x.view(len(queries), -1, x.size(-1)) for x in found)]


def _forward(call: Call) -> tuple[Tensor, Tensor]:
    q, k, v, seed, dropout = *call[:3], call.seed, call.dropout
    plan, dtype = _Plan(call), torch.promote_types(q.dtype, torch.float32)
    seed = 0 if seed is None else int(seed)
    q_tiles = plan.to_slots(q, plan.queries)
    k_tiles, v_tiles = (plan.to_slots(x, plan.keys) for x in (k, v))
    lse_tiles = q_tiles.new_empty(*q_tiles.shape[:2], 1, dtype=dtype)
    for number, group in enumerate(plan.grouped):
        q_group, k_group, v_group = plan.select(group, dtype, q_tiles, k_tiles, v_tiles)
        weights = plan.logits(group, q_group, k_group)
        peak = weights.amax(-1, keepdim=True).clamp_(min=torch.finfo(dtype).min)
        weights.sub_(peak).exp2_()  # a tile sees all its keys at once: no online softmax
        total = weights.sum(-1, keepdim=True)
        lse_tiles[group.queries] = (peak + total.log2()) / LOG2_E
        if dropout > 0.0:
            weights *= _kept(weights, dropout, seed + number)
        # A query that sees nothing has total 0 and weights 0: the result is 0.
        total.clamp_(min=torch.finfo(dtype).tiny)
        # Write the output over q_tiles: each query tile is read only once.
        q_tiles[group.queries] = torch.bmm(weights, v_group).div_(total).to(q.dtype)
    del k_tiles, v_tiles
    out = plan.to_tokens(q_tiles, plan.queries)
    return out, plan.to_tokens(lse_tiles, plan.queries).squeeze(-1).contiguous()


def _backward(call: Call, wanted: Wanted, carry: Carry) -> Gradients:
    q, k, v, key_bias, seed, dropout = *call[:5], call.dropout
    (d_out, d_lse), (out, lse, *_) = wanted, carry
    plan = _Plan(call)
    dtype, width = lse.dtype, q.size(-1)
    seed = 0 if seed is None else int(seed)
    # Softmax backward: dS = P * (dP - delta); the log-sum-exp's gradient adds P * d_lse.
    # Where nothing is seen that gradient may be NaN (of logaddexp, say): no key may learn of it.
    delta = (d_out.to(dtype) * out.to(dtype)).sum(-1)
    delta = delta if d_lse is None else delta - d_lse
    delta.masked_fill_(torch.isinf(lse), 0.0)
    lse = lse.masked_fill(torch.isinf(lse), 0.0).mul_(LOG2_E)
    delta_tiles, lse_tiles = (plan.to_slots(x.unsqueeze(-1), plan.queries) for x in (delta, lse))
    q_tiles, d_out_tiles = (plan.to_slots(x, plan.queries) for x in (q, d_out))
    k_tiles, v_tiles = (plan.to_slots(x, plan.keys) for x in (k, v))

    d_q = d_out_tiles  # d_q reuses the memory of d_out: each tile is read before it is written
    d_k, d_v = (torch.zeros_like(x, dtype=dtype) for x in (k_tiles, v_tiles))
    d_bias = None if key_bias is None else d_k.new_zeros(*d_k.shape[:2], 1)
    for number, group in enumerate(plan.grouped):
        queries, keys = group.queries, group.keys
        q_group, k_group, v_group = plan.select(group, dtype, q_tiles, k_tiles, v_tiles)
        d_out_group = d_out_tiles.index_select(0, queries).to(dtype)

        weights = plan.logits(group, q_group, k_group)
        weights.sub_(lse_tiles.index_select(0, queries)).exp2_()
        d_weights = torch.bmm(d_out_group, v_group.transpose(1, 2))
        dropped = weights
        if dropout > 0.0:
            kept = _kept(weights, dropout, seed + number)
            d_weights *= kept
            dropped = kept.mul_(weights)
        # Key tiles are seen by several query tiles: their gradients add up.
        d_v_group = torch.bmm(dropped.transpose(1, 2), d_out_group)
        d_v.index_add_(0, keys, d_v_group.view(-1, plan.tile, width))
        d_logits = d_weights.sub_(delta_tiles.index_select(0, queries)).mul_(weights)
        d_q[queries] = torch.bmm(d_logits, k_group).mul_(width**-0.5).to(d_q.dtype)
        d_k_group = torch.bmm(d_logits.transpose(1, 2), q_group)
        d_k.index_add_(0, keys, d_k_group.view(-1, plan.tile, width))
        if d_bias is not None:
            d_bias.index_add_(0, keys, d_logits.sum(1).view(-1, plan.tile, 1))

    d_k.div_(LOG2_E)  # q_group carries the scale in units of log 2
    d_q = plan.to_tokens(d_q, plan.queries)
    d_k, d_v = (plan.to_tokens(x, plan.keys).to(k.dtype) for x in (d_k, d_v))
    if d_bias is not None:
        d_bias = plan.to_tokens(d_bias, plan.keys).squeeze(-1)
        d_bias = d_bias.sum_to_size(key_bias.shape).to(key_bias.dtype)
    return Gradients(d_q, d_k, d_v, d_bias)


class Blocks(OneByOne):
    """See :class:`.kernel.Kernel`."""

    attend, gradients = staticmethod(_forward), staticmethod(_backward)


def _kept(weights: Tensor, dropout: float, seed: int) -> Tensor:
    """1 / (1 - dropout) where a weight is kept, 0 where it is dropped; the same for a seed."""
    generator = torch.Generator(weights.device).manual_seed(seed)
    kept = torch.empty_like(weights).bernoulli_(1.0 - dropout, generator=generator)
    return kept.div_(1.0 - dropout)
