"""Ranged attention in tiles of slots, in plain PyTorch: CPU and CUDA, O(N) memory per head.

Queries and keys are put into slot order and cut into tiles of T slots. Ranges rarely jump
between neighbouring slots, so the T queries of a tile see few tiles of keys, and these are
consecutive. Query tiles that see equally many are attended together, as one batched matrix
product; only the weights of one such group exist at a time. The backward pass computes them again
from the log-sum-exp.

Logits are kept in units of log 2: exp2 of -inf costs a CPU a tenth of what exp does.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..precision import HALF, without_autocast
from .layout import Layout

TILE = 64  # of long sequences; what is shorter is one tile
LOG2_E = math.log2(math.e)
# Weights of one group of tiles, in numbers: 1M float32 fit a CPU's second-level cache; a GPU is
# kept busy by larger groups.
GROUP_NUMBERS_CPU, GROUP_NUMBERS_GPU = 1 << 20, 1 << 25


def blocks_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    *,
    key_bias: Tensor | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """See :func:`fairseq_clusterformer.kernels.ranged_attention`."""
    # One number from the global generator names this call's dropout masks, so that the backward
    # pass draws them again and activation checkpointing replays them.
    seed = int(torch.randint(1 << 62, (), device="cpu")) if dropout > 0.0 else 0
    with torch.autocast(q.device.type, enabled=False):
        return _BlocksAttention.apply(q, k, v, key_bias, layout, dropout, seed)


@dataclass(frozen=True)
class _Group:
    """Query tiles that are attended together: they see ``num_tiles`` key tiles or fewer."""

    tiles: Tensor  # [c] rank among all query tiles, of all rows and orders
    first: Tensor  # [c] first key tile that each sees
    num_tiles: int
    tile: int  # slots of a tile
    heads: int  # heads that share an order
    query_tiles: int
    key_tiles: int

    def queries(self) -> Tensor:
        """Rank of each query tile among the tiles of all heads, [c * heads]."""
        return self._of_heads(self.tiles % self.query_tiles, self.query_tiles).flatten()

    def keys(self) -> Tensor:
        """The same for key tiles, [c * heads * num_tiles]."""
        span = self.first.unsqueeze(-1) + torch.arange(self.num_tiles, device=self.first.device)
        # A tile that sees fewer than num_tiles reaches past the end; its ranges hide what it gets.
        span = span.clamp(max=self.key_tiles - 1).unsqueeze(1)
        return self._of_heads(span, self.key_tiles).flatten()

    def _of_heads(self, tile: Tensor, tiles: int) -> Tensor:
        """Rank among all heads' tiles, [c, heads] or [c, heads, num_tiles]."""
        row = torch.div(self.tiles, self.query_tiles, rounding_mode="floor").unsqueeze(-1)
        head = row * self.heads + torch.arange(self.heads, device=row.device)
        if tile.dim() == 1:
            return head * tiles + tile.unsqueeze(-1)
        return head.unsqueeze(-1) * tiles + tile


@dataclass(frozen=True)
class _Side:
    """Queries or keys: which token stands in which slot."""

    token: Tensor  # [rows * tiles, T]
    slots: int  # the rest of the last tile is filling
    once: bool  # each token stands in one slot
    unused: Tensor | None  # True where a slot holds no token, [rows, 1, tiles * T]


class _Plan:
    """A layout's orders and ranges in tiles, for q of shape [B, H, N, E]."""

    def __init__(self, layout: Layout, q: Tensor, key_bias: Tensor | None):
        batch, heads, length, _ = q.shape
        parts = (
            layout.lo,
            layout.hi,
            layout.query_order,
            layout.key_order,
            layout.num_queries,
            layout.num_keys,
        )
        groups = heads if any(p is not None and p.size(1) > 1 for p in parts) else 1
        self.shape = q.shape
        self.rows = batch * groups
        self.heads = heads // groups
        self.groups = groups
        self.earlier_only = layout.earlier_only
        slots = length if layout.key_order is None else layout.key_order.size(-1)
        self.tile = min(TILE, -(-max(length, slots) // 8) * 8)
        self.query_tiles = -(-length // self.tile)
        self.key_tiles = -(-slots // self.tile)

        def tiled(x: Tensor, tiles: int, fill: int) -> Tensor:
            x = x.expand(batch, groups, -1).reshape(self.rows, -1)
            x = torch.nn.functional.pad(x, (0, tiles * self.tile - x.size(-1)), value=fill)
            return x.view(self.rows * tiles, self.tile)

        # Ranges of each tile's slots; a slot that sees nothing gets an empty range at 0.
        empty = layout.hi <= layout.lo
        self.lo = tiled(layout.lo.masked_fill(empty, 0), self.query_tiles, 0)
        self.hi = tiled(layout.hi.masked_fill(empty, 0), self.query_tiles, 0)

        # The token at each slot; unused slots point at token 0 and are hidden.
        identity = torch.arange(length, device=q.device).view(1, 1, length)
        query_order = identity if layout.query_order is None else layout.query_order
        key_order = identity if layout.key_order is None else layout.key_order
        self.queries = _Side(
            token=tiled(query_order, self.query_tiles, 0),
            slots=length,
            once=True,
            unused=self._unused(layout.num_queries, length, self.query_tiles),
        )
        self.keys = _Side(
            token=tiled(key_order, self.key_tiles, 0),
            slots=slots,
            once=slots == length,
            unused=self._unused(layout.num_keys, slots, self.key_tiles),
        )
        self.bias = None
        if key_bias is not None:
            bias = key_bias.expand(batch, heads, length).unsqueeze(-1)
            self.bias = self.to_slots(bias, self.keys).mul_(LOG2_E)
        self.groups_of_tiles = self._group(
            GROUP_NUMBERS_CPU if q.device.type == "cpu" else GROUP_NUMBERS_GPU
        )

    def _unused(self, count: Tensor | None, slots: int, tiles: int) -> Tensor | None:
        """True at slots that hold nothing, [rows, 1, tiles * T]; None if all are in use."""
        if count is None:
            if slots == tiles * self.tile:
                return None
            count = torch.full((1, 1), slots, device=self.lo.device)
        count = count.expand(self.shape[0], self.groups).reshape(-1, 1, 1)
        return torch.arange(tiles * self.tile, device=count.device) >= count

    def _group(self, limit: int) -> list[_Group]:
        """Sort query tiles by how many key tiles they see; cut where a group grows too large."""
        sees = self.hi > self.lo
        far = self.key_tiles * self.tile
        first = torch.div(
            torch.where(sees, self.lo, far).amin(-1), self.tile, rounding_mode="floor"
        )
        last = torch.div(self.hi.amax(-1) + self.tile - 1, self.tile, rounding_mode="floor")
        first = torch.where(sees.any(-1), first, 0)
        counts, tiles = (last - first).clamp(min=1).sort(descending=True, stable=True)
        groups, sizes, begin = [], counts.tolist(), 0
        while begin < len(sizes):
            numbers = self.heads * self.tile * self.tile * sizes[begin]
            end = min(len(sizes), begin + max(1, limit // numbers))
            members = tiles[begin:end]
            groups.append(
                _Group(
                    tiles=members,
                    first=first[members],
                    num_tiles=sizes[begin],
                    tile=self.tile,
                    heads=self.heads,
                    query_tiles=self.query_tiles,
                    key_tiles=self.key_tiles,
                )
            )
            begin = end
        return groups

    def _token_rows(self, x: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """x's memory as rows of width E, and the row of each slot's token, [rows, heads, slots].

        A view wherever x consists of whole rows: projections seen as heads do, also some of them.
        """
        batch, heads, _, width = x.shape
        strides = (*x.stride()[:3], x.storage_offset())
        if x.stride(-1) != 1 or any(stride % width for stride in strides):
            x = x.contiguous()
            strides = (*x.stride()[:3], x.storage_offset())
        flat = x.as_strided(
            (x.untyped_storage().nbytes() // x.element_size() // width, width), (width, 1), 0
        )
        of_row, of_head, of_token, offset = (stride // width for stride in strides)
        row = torch.arange(batch, device=x.device).view(-1, 1, 1, 1)
        head = torch.arange(heads, device=x.device).view(1, self.groups, -1, 1)
        token = token.view(batch, self.groups, 1, -1)
        index = offset + row * of_row + head * of_head + token * of_token
        return flat, index.view(self.rows, self.heads, -1)

    def to_slots(self, x: Tensor, side: _Side) -> Tensor:
        """Token order [B, H, N, E] to tiles [rows * heads * tiles, T, E], unused slots 0."""
        flat, index = self._token_rows(x, side.token)
        out = flat.index_select(0, index.flatten()).view(*index.shape, x.size(-1))
        if side.unused is not None:
            out.masked_fill_(side.unused.unsqueeze(-1), 0)
        return out.view(-1, self.tile, x.size(-1))

    def to_tokens(self, tiles: Tensor, side: _Side) -> Tensor:
        """Back from tiles to token order [B, H, N, E]; a token in several slots gets their sum."""
        batch, heads, length, _ = self.shape
        create = tiles.new_empty if side.once else tiles.new_zeros
        out = create(batch, length, heads, tiles.size(-1)).transpose(1, 2)
        flat, index = self._token_rows(out, side.token)
        index = index[..., : side.slots].flatten()
        source = tiles.view(self.rows, self.heads, -1, tiles.size(-1))[:, :, : side.slots]
        if side.once:
            flat.index_copy_(0, index, source.flatten(0, 2))
        else:
            flat.index_add_(0, index, source.flatten(0, 2))
        return out

    def logits(self, group: _Group, q: Tensor, k: Tensor) -> Tensor:
        """Logits of a group [c * heads, T, num_tiles * T], -inf where a key is not seen."""
        logits = torch.bmm(q, k.transpose(1, 2))
        if self.bias is not None:
            logits += self.bias.index_select(0, group.keys()).view(len(q), 1, -1)
        span = group.num_tiles * self.tile
        slot = (group.first * self.tile).unsqueeze(-1) + torch.arange(span, device=q.device)
        hidden = slot.unsqueeze(1) < self.lo[group.tiles].unsqueeze(-1)
        hidden |= slot.unsqueeze(1) >= self.hi[group.tiles].unsqueeze(-1)
        if self.earlier_only:
            row = torch.div(group.tiles, self.query_tiles, rounding_mode="floor").unsqueeze(-1)
            key_token = self.keys.token.view(self.rows, -1)
            key_token = key_token[row, slot.clamp(max=key_token.size(-1) - 1)]
            hidden |= key_token.unsqueeze(1) > self.queries.token[group.tiles].unsqueeze(-1)
        mask = torch.zeros_like(hidden, dtype=q.dtype).masked_fill_(hidden, -math.inf)
        logits.view(-1, self.heads, self.tile, span).add_(mask.unsqueeze(1))
        return logits


class _BlocksAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, key_bias, layout, dropout, seed):
        dtype = torch.float32 if q.dtype in HALF else q.dtype
        plan = _Plan(layout, q, None if key_bias is None else key_bias.to(dtype))
        q_tiles = plan.to_slots(q, plan.queries)
        k_tiles = plan.to_slots(k, plan.keys)
        v_tiles = plan.to_slots(v, plan.keys)

        # Without a backward pass a tile of queries, which is read once, gives its place to theirs.
        keep = any(ctx.needs_input_grad)
        out_tiles = torch.empty_like(q_tiles) if keep else q_tiles
        lse_tiles = q_tiles.new_empty(*q_tiles.shape[:2], 1, dtype=dtype)
        for number, group in enumerate(plan.groups_of_tiles):
            queries = group.queries()
            q_group = _scaled(q_tiles.index_select(0, queries), dtype)
            k_group, v_group = _select_keys(group, k_tiles, v_tiles, dtype=dtype)
            weights = plan.logits(group, q_group, k_group)
            peak = weights.amax(-1, keepdim=True).clamp_(min=torch.finfo(dtype).min)
            weights.sub_(peak).exp2_()
            total = weights.sum(-1, keepdim=True)
            lse_tiles[queries] = (peak + total.log2()) / LOG2_E
            if dropout > 0.0:
                weights *= _kept(weights, dropout, seed + number)
            # A query that sees nothing has total 0 and weights 0: the result is 0.
            total.clamp_(min=torch.finfo(dtype).tiny)
            out_tiles[queries] = torch.bmm(weights, v_group).div_(total).to(q.dtype)

        if not keep:
            del k_tiles, v_tiles
        out = plan.to_tokens(out_tiles, plan.queries)
        lse = plan.to_tokens(lse_tiles, plan.queries).squeeze(-1)
        if keep:
            ctx.save_for_backward(q_tiles, k_tiles, v_tiles, key_bias, out, lse)
            ctx.plan, ctx.dropout, ctx.seed = plan, dropout, seed
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    @without_autocast
    def backward(ctx, d_out, d_lse):
        q_tiles, k_tiles, v_tiles, key_bias, out, lse = ctx.saved_tensors
        plan = ctx.plan
        dtype, width = lse.dtype, out.size(-1)
        d_out_tiles = plan.to_slots(d_out, plan.queries)
        # Softmax backward: dS = P * (dP - delta); the log-sum-exp's gradient adds P * d_lse.
        # Where nothing is seen that gradient may be NaN (of logaddexp, say): no key learns of it.
        delta = (d_out.to(dtype) * out.to(dtype)).sum(-1) - d_lse
        delta.masked_fill_(torch.isinf(lse), 0.0)
        delta_tiles = plan.to_slots(delta.unsqueeze(-1), plan.queries)
        lse = lse.masked_fill(torch.isinf(lse), 0.0).mul_(LOG2_E)
        lse_tiles = plan.to_slots(lse.unsqueeze(-1), plan.queries)

        d_q = d_out_tiles  # a tile's gradient takes the place of what it was computed from
        d_k = torch.zeros_like(k_tiles, dtype=dtype)
        d_v = torch.zeros_like(v_tiles, dtype=dtype)
        d_bias = None if key_bias is None else d_k.new_zeros(*d_k.shape[:2], 1)
        scale = 1.0 / math.sqrt(width)
        for number, group in enumerate(plan.groups_of_tiles):
            queries, keys = group.queries(), group.keys()
            q_group = _scaled(q_tiles.index_select(0, queries), dtype)
            k_group, v_group = _select_keys(group, k_tiles, v_tiles, dtype=dtype)
            d_out_group = d_out_tiles.index_select(0, queries).to(dtype)

            weights = plan.logits(group, q_group, k_group)
            weights.sub_(lse_tiles.index_select(0, queries)).exp2_()
            d_weights = torch.bmm(d_out_group, v_group.transpose(1, 2))
            if ctx.dropout > 0.0:
                kept = _kept(weights, ctx.dropout, ctx.seed + number)
                d_weights *= kept
                kept *= weights
                d_v_group = torch.bmm(kept.transpose(1, 2), d_out_group)
            else:
                d_v_group = torch.bmm(weights.transpose(1, 2), d_out_group)
            d_v.index_add_(0, keys, d_v_group.view(-1, plan.tile, width))

            d_logits = d_weights.sub_(delta_tiles.index_select(0, queries)).mul_(weights)
            d_q[queries] = torch.bmm(d_logits, k_group).mul_(scale).to(d_q.dtype)
            d_k_group = torch.bmm(d_logits.transpose(1, 2), q_group)
            d_k.index_add_(0, keys, d_k_group.view(-1, plan.tile, width))
            if d_bias is not None:
                d_bias.index_add_(0, keys, d_logits.sum(1).view(-1, plan.tile, 1))

        d_k.div_(LOG2_E)  # q_group carries the scale in units of log 2
        d_q = plan.to_tokens(d_q, plan.queries)
        d_k = plan.to_tokens(d_k, plan.keys).to(k_tiles.dtype)
        d_v = plan.to_tokens(d_v, plan.keys).to(v_tiles.dtype)
        if d_bias is not None:
            d_bias = plan.to_tokens(d_bias, plan.keys).squeeze(-1)
            d_bias = d_bias.sum_to_size(key_bias.shape).to(key_bias.dtype)
        return d_q, d_k, d_v, d_bias, None, None, None


def _scaled(q: Tensor, dtype: torch.dtype) -> Tensor:
    return q.to(dtype) * (LOG2_E / math.sqrt(q.size(-1)))


def _select_keys(group: _Group, *tiles: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """The key tiles that a group sees, each [c * heads, num_tiles * T, E]."""
    keys = group.keys()
    span = group.num_tiles * group.tile
    return [t.index_select(0, keys).to(dtype).view(-1, span, t.size(-1)) for t in tiles]


def _kept(weights: Tensor, dropout: float, seed: int) -> Tensor:
    """1 / (1 - dropout) where a weight is kept, 0 where it is dropped; the same for a seed."""
    generator = torch.Generator(weights.device).manual_seed(seed)
    kept = torch.empty_like(weights).bernoulli_(1.0 - dropout, generator=generator)
    return kept.div_(1.0 - dropout)
