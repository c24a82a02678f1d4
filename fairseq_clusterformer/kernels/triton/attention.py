"""Ranged attention as fused Triton kernels: one forward, two for the backward pass.

A program attends a tile of query slots to the key slots between the lowest and the highest that
any of them sees. Orders are read inside the kernels and results are stored at their tokens' own
positions: nothing is gathered or scattered in memory, and weights never leave the chip. The
backward pass computes them again from the log-sum-exp; one kernel goes over tiles of queries (dq),
one over tiles of keys (dk, dv, the bias's gradient). Every number is written once, by one program:
no atomics, and the same bits every time for a choice of tiles (which a process makes by timing).
Only where tokens stand in several key slots are dk and dv kept by slot and added up afterwards.

Logits are in units of log 2, as the hardware's exponential is.

Shape letters: B batch, H heads, N tokens, M key slots, E head width.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..layout import Layout
from .launch import (
    Rows,
    check_width,
    configs,
    dot,
    index_of,
    kept,
    load_count,
    load_index,
    load_rows,
    place_of,
    rounded,
    rows_of,
    size_class,
    store_rows,
)

LOG2_E = tl.constexpr(1.4426950408889634)
# Slots that share an entry of the two tables of bounds; SPAN divides every BLOCK_N below.
TILE, SPAN = 64, 32

# Numbers that differ from batch to batch: kernels are not compiled anew for their values.
_VARYING = ["length", "slots", "size_class", "seed", "tiles", "key_tiles"]
_TUNED_FOR = ["WIDTH", "NUMBER_BYTES", "EARLIER_ONLY", "DROPOUT", "size_class"]
_OF_LAYOUT = ("lo", "hi", "query_order", "key_order", "num_queries", "num_keys")


@triton.jit
def _queries(lo, hi, query_order, num_queries, b, h, slot, length):
    """Of a tile of query slots: their tokens and ranges, and which of them hold a real token."""
    token = load_index(query_order, b, h, slot, length)
    low = load_index(lo, b, h, slot, length).to(tl.int32)
    high = load_index(hi, b, h, slot, length).to(tl.int32)
    used = slot < length
    if num_queries is not None:
        used = slot < load_count(num_queries, b, h)
    return token, low, high, used


@triton.jit
def _keys(key_order, num_keys, b, h, slot, slots):
    """Of a tile of key slots: their tokens, and which of them hold a real one."""
    token = load_index(key_order, b, h, slot, slots)
    used = slot < slots
    if num_keys is not None:
        used = slot < load_count(num_keys, b, h)
    return token, used


@triton.jit
def _logits(
    query, key, bias, b, h, token, low, high, key_slot, key_token, key_used,
    SCALE: tl.constexpr, ACC: tl.constexpr, EARLIER_ONLY: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """Logits of a tile in units of log 2, -inf where a key is not seen; queries along the axis
    QUERIES, keys along the other."""
    KEYS: tl.constexpr = 1 - QUERIES
    if QUERIES == 0:
        logits = dot(query, tl.trans(key), ACC) * (SCALE * LOG2_E)
    else:
        logits = dot(key, tl.trans(query), ACC) * (SCALE * LOG2_E)
    if bias is not None:
        pointers = bias.ptr + b * bias.b + h * bias.h + key_token * bias.n
        of_key = tl.load(pointers, mask=key_used, other=0.0).to(ACC) * LOG2_E
        logits += tl.expand_dims(of_key, QUERIES)
    slot = tl.expand_dims(key_slot, QUERIES)
    seen = (slot >= tl.expand_dims(low, KEYS)) & (slot < tl.expand_dims(high, KEYS))
    if EARLIER_ONLY:
        seen = seen & (tl.expand_dims(key_token, QUERIES) <= tl.expand_dims(token, KEYS))
    return tl.where(seen, logits, float("-inf"))


@triton.autotune(
    configs((64, 32, 4, 2), (32, 32, 4, 2), (64, 64, 4, 3), (128, 64, 4, 3), (128, 64, 8, 3)),
    key=_TUNED_FOR,
)
@triton.jit(do_not_specialize=_VARYING)
def _forward(
    q, k, v, bias, out, lse, lo, hi, query_order, key_order, num_queries, num_keys,
    heads, length, slots, size_class, dropout, seed,
    WIDTH: tl.constexpr, NUMBER_BYTES: tl.constexpr, BLOCK_E: tl.constexpr,
    SCALE: tl.constexpr, ACC: tl.constexpr,
    EARLIER_ONLY: tl.constexpr, DROPOUT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    row, tile = place_of(tl.cdiv(length, BLOCK_M))
    b, h = row // heads, row % heads
    # Causal attention over everything has its longest ranges last: they start first.
    slot = (tl.cdiv(length, BLOCK_M) - 1 - tile) * BLOCK_M + tl.arange(0, BLOCK_M)
    token, low, high, used = _queries(lo, hi, query_order, num_queries, b, h, slot, length)
    query = load_rows(q, b, h, token, used, WIDTH, BLOCK_E)

    peak = tl.full([BLOCK_M], float("-inf"), ACC)
    total = tl.zeros([BLOCK_M], ACC)
    values = tl.zeros([BLOCK_M, BLOCK_E], ACC)
    begin = tl.min(tl.where(high > low, low, slots)) // BLOCK_N * BLOCK_N
    end = tl.max(tl.where(high > low, high, 0))
    for first in range(begin, end, BLOCK_N):
        key_slot = first + tl.arange(0, BLOCK_N)
        key_token, key_used = _keys(key_order, num_keys, b, h, key_slot, slots)
        key = load_rows(k, b, h, key_token, key_used, WIDTH, BLOCK_E)
        value = load_rows(v, b, h, key_token, key_used, WIDTH, BLOCK_E)
        logits = _logits(
            query, key, bias, b, h, token, low, high, key_slot, key_token, key_used,
            SCALE, ACC, EARLIER_ONLY, QUERIES=0,
        )  # fmt: skip

        new_peak = tl.maximum(peak, tl.max(logits, 1))
        # While nothing has been seen both are -inf, and their difference would be NaN.
        shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp2(logits - shift[:, None])
        decay = tl.exp2(peak - shift)
        total = total * decay + tl.sum(weights, 1)
        if DROPOUT:
            place = (row * length + slot[:, None]) * slots + key_slot[None, :]
            weights *= kept(seed, place, dropout)
        values = values * decay[:, None] + dot(rounded(weights, value.dtype), value, ACC)
        peak = new_peak

    # A query that sees nothing has total 0: its result is 0 and its log-sum-exp -inf.
    safe = tl.where(total == 0.0, 1.0, total)
    exists = slot < length
    store_rows(out, b, h, token, values / safe[:, None], exists, WIDTH, BLOCK_E)
    log_sum = tl.where(total == 0.0, float("-inf"), (peak + tl.log2(safe)) / LOG2_E)
    tl.store(lse + row * length + token, log_sum, mask=exists)


@triton.autotune(
    configs((64, 32, 4, 2), (64, 64, 4, 2), (128, 64, 8, 2), (128, 32, 4, 3)), key=_TUNED_FOR
)
@triton.jit(do_not_specialize=_VARYING)
def _backward_queries(
    q, k, v, bias, out, lse, d_out, d_lse, d_q, delta,
    lo, hi, query_order, key_order, num_queries, num_keys,
    heads, length, slots, size_class, dropout, seed,
    WIDTH: tl.constexpr, NUMBER_BYTES: tl.constexpr, BLOCK_E: tl.constexpr,
    SCALE: tl.constexpr, ACC: tl.constexpr,
    EARLIER_ONLY: tl.constexpr, DROPOUT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    row, tile = place_of(tl.cdiv(length, BLOCK_M))
    b, h = row // heads, row % heads
    slot = (tl.cdiv(length, BLOCK_M) - 1 - tile) * BLOCK_M + tl.arange(0, BLOCK_M)
    token, low, high, used = _queries(lo, hi, query_order, num_queries, b, h, slot, length)
    exists = slot < length
    query = load_rows(q, b, h, token, used, WIDTH, BLOCK_E)
    d_values = load_rows(d_out, b, h, token, used, WIDTH, BLOCK_E)
    values = load_rows(out, b, h, token, used, WIDTH, BLOCK_E)
    log_sum = tl.load(lse + row * length + token, mask=used, other=0.0)
    sees_nothing = log_sum == float("-inf")
    log_sum = tl.where(sees_nothing, 0.0, log_sum * LOG2_E)
    # dS = P * (dP - delta); the gradient of the log-sum-exp adds P * d_lse. Where nothing is seen
    # that gradient may be NaN (of logaddexp, say), and nobody's keys may learn of it.
    shift = tl.sum(d_values.to(ACC) * values.to(ACC), 1)
    if d_lse is not None:
        shift -= tl.load(d_lse + row * length + token, mask=used, other=0.0)
    shift = tl.where(sees_nothing, 0.0, shift)
    tl.store(delta + row * length + token, shift, mask=exists)

    d_query = tl.zeros([BLOCK_M, BLOCK_E], ACC)
    begin = tl.min(tl.where(high > low, low, slots)) // BLOCK_N * BLOCK_N
    end = tl.max(tl.where(high > low, high, 0))
    for first in range(begin, end, BLOCK_N):
        key_slot = first + tl.arange(0, BLOCK_N)
        key_token, key_used = _keys(key_order, num_keys, b, h, key_slot, slots)
        key = load_rows(k, b, h, key_token, key_used, WIDTH, BLOCK_E)
        value = load_rows(v, b, h, key_token, key_used, WIDTH, BLOCK_E)
        logits = _logits(
            query, key, bias, b, h, token, low, high, key_slot, key_token, key_used,
            SCALE, ACC, EARLIER_ONLY, QUERIES=0,
        )  # fmt: skip
        weights = tl.exp2(logits - log_sum[:, None])
        d_weights = dot(d_values, tl.trans(value), ACC)
        if DROPOUT:
            place = (row * length + slot[:, None]) * slots + key_slot[None, :]
            d_weights *= kept(seed, place, dropout)
        d_logits = weights * (d_weights - shift[:, None])
        d_query += dot(rounded(d_logits, key.dtype), key, ACC)
    store_rows(d_q, b, h, token, d_query * SCALE, exists, WIDTH, BLOCK_E)


@triton.autotune(
    configs((32, 64, 4, 2), (64, 64, 4, 2), (64, 128, 8, 2), (32, 128, 4, 3)), key=_TUNED_FOR
)
@triton.jit(do_not_specialize=_VARYING)
def _backward_keys(
    q, k, v, bias, lse, d_out, delta, d_k, d_v, d_bias, spans,
    lo, hi, query_order, key_order, num_queries, num_keys,
    heads, length, slots, size_class, dropout, seed, key_tiles, span_b, span_h,
    WIDTH: tl.constexpr, NUMBER_BYTES: tl.constexpr, BLOCK_E: tl.constexpr,
    SCALE: tl.constexpr, ACC: tl.constexpr,
    EARLIER_ONLY: tl.constexpr, DROPOUT: tl.constexpr, ONCE: tl.constexpr, SPAN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    row, tile = place_of(tl.cdiv(slots, BLOCK_N))
    b, h = row // heads, row % heads
    key_slot = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    key_token, key_used = _keys(key_order, num_keys, b, h, key_slot, slots)
    key = load_rows(k, b, h, key_token, key_used, WIDTH, BLOCK_E)
    value = load_rows(v, b, h, key_token, key_used, WIDTH, BLOCK_E)
    d_key = tl.zeros([BLOCK_N, BLOCK_E], ACC)
    d_value = tl.zeros([BLOCK_N, BLOCK_E], ACC)
    d_key_bias = tl.zeros([BLOCK_N], ACC)

    entry = tile * (BLOCK_N // SPAN) + tl.arange(0, BLOCK_N // SPAN)
    span = spans + ((b * span_b + h * span_h) * key_tiles + entry) * 2
    begin = tl.min(tl.load(span, mask=entry < key_tiles, other=length))
    end = tl.max(tl.load(span + 1, mask=entry < key_tiles, other=0))
    for first in range(begin, end, BLOCK_M):
        slot = first + tl.arange(0, BLOCK_M)
        token, low, high, used = _queries(lo, hi, query_order, num_queries, b, h, slot, length)
        query = load_rows(q, b, h, token, used, WIDTH, BLOCK_E)
        d_values = load_rows(d_out, b, h, token, used, WIDTH, BLOCK_E)
        log_sum = tl.load(lse + row * length + token, mask=used, other=0.0)
        log_sum = tl.where(log_sum == float("-inf"), 0.0, log_sum * LOG2_E)
        shift = tl.load(delta + row * length + token, mask=used, other=0.0)
        logits = _logits(
            query, key, bias, b, h, token, low, high, key_slot, key_token, key_used,
            SCALE, ACC, EARLIER_ONLY, QUERIES=1,
        )  # fmt: skip
        weights = tl.exp2(logits - log_sum[None, :])
        d_weights = dot(value, tl.trans(d_values), ACC)
        left = weights
        if DROPOUT:
            place = (row * length + slot[None, :]) * slots + key_slot[:, None]
            keep = kept(seed, place, dropout)
            d_weights *= keep
            left = weights * keep
        d_value += dot(rounded(left, d_values.dtype), d_values, ACC)
        d_logits = weights * (d_weights - shift[None, :])
        d_key += dot(rounded(d_logits, query.dtype), query, ACC)
        d_key_bias += tl.sum(d_logits, 1)

    place = key_token if ONCE else key_slot.to(tl.int64)
    exists = key_slot < slots
    store_rows(d_k, b, h, place, d_key * SCALE, exists, WIDTH, BLOCK_E)
    store_rows(d_v, b, h, place, d_value, exists, WIDTH, BLOCK_E)
    if d_bias is not None:
        tl.store(d_bias + row * slots + place, d_key_bias, mask=exists)


@triton.jit(do_not_specialize=_VARYING)
def _bounds(lo, hi, bounds, groups, length, slots, tiles, TILE: tl.constexpr):
    """First and one past the last key slot that each tile of query slots sees."""
    row, tile = place_of(tiles)
    slot = tile * TILE + tl.arange(0, TILE)
    low = load_index(lo, row // groups, row % groups, slot, length).to(tl.int32)
    high = load_index(hi, row // groups, row % groups, slot, length).to(tl.int32)
    entry = bounds + (row * tiles + tile) * 2
    tl.store(entry, tl.min(tl.where(high > low, low, slots)))
    tl.store(entry + 1, tl.max(tl.where(high > low, high, 0)))


@triton.jit(do_not_specialize=_VARYING)
def _spans(
    bounds, spans, length, tiles, key_tiles,
    TILE: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The same of queries: first and one past the last slot of those that see a tile of keys."""
    row, block = place_of(tl.cdiv(key_tiles, BLOCK))
    key_tile = block * BLOCK + tl.arange(0, BLOCK)
    begin = tl.zeros([BLOCK], tl.int32) + tiles
    end = tl.zeros([BLOCK], tl.int32)
    for first in range(0, tiles, BLOCK):
        tile = first + tl.arange(0, BLOCK)
        entry = bounds + (row * tiles + tile) * 2
        low = tl.load(entry, mask=tile < tiles, other=0)
        high = tl.load(entry + 1, mask=tile < tiles, other=0)
        sees = low[None, :] < (key_tile[:, None] + 1) * SPAN
        sees = sees & (high[None, :] > key_tile[:, None] * SPAN)
        begin = tl.minimum(begin, tl.min(tl.where(sees, tile[None, :], tiles), 1))
        end = tl.maximum(end, tl.max(tl.where(sees, tile[None, :] + 1, 0), 1))
    entry = spans + (row * key_tiles + key_tile) * 2
    tl.store(entry, tl.minimum(begin * TILE, length), mask=key_tile < key_tiles)
    tl.store(entry + 1, tl.minimum(end * TILE, length), mask=key_tile < key_tiles)


def triton_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    *,
    key_bias: Tensor | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """See :func:`fairseq_clusterformer.kernels.ranged_attention`.

    Raises:
        ValueError: a head wider than 256.
    """
    check_width(q)
    # One number from the global generator names this call's dropout masks, so that the backward
    # pass draws them again and activation checkpointing replays them.
    seed = int(torch.randint(1 << 62, (), device="cpu")) if dropout > 0.0 else 0
    with torch.cuda.device_of(q):  # the backward pass is run on its tensors' device anyway
        return _TritonAttention.apply(q, k, v, key_bias, layout, dropout, seed)


class _TritonAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, key_bias, layout, dropout, seed):
        batch, heads, length, width = q.shape
        # As projections leave q, k and v: a token's heads side by side.
        out = q.new_empty(batch, length, heads, width).transpose(1, 2)
        exact = torch.float64 if q.dtype == torch.float64 else torch.float32
        lse = q.new_empty(batch, heads, length, dtype=exact)
        shared = _arguments(q, layout, dropout, seed)
        _forward[lambda meta: (triton.cdiv(length, meta["BLOCK_M"]) * batch * heads,)](
            rows_of(q), rows_of(k), rows_of(v), _bias(key_bias, q), rows_of(out), lse, **shared
        )
        ctx.save_for_backward(q, k, v, key_bias, out, lse)
        ctx.shared, ctx.layout = shared, layout
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out, d_lse):
        q, k, v, key_bias, out, lse = ctx.saved_tensors
        batch, heads, length, width = q.shape
        shared, slots = ctx.shared, ctx.shared["slots"]
        d_out = torch.zeros_like(out) if d_out is None else d_out
        if d_out.stride(-1) != 1:  # the gradient of a sum is one number, expanded
            d_out = d_out.contiguous()
        d_lse = None if d_lse is None else d_lse.contiguous()
        bias, delta = _bias(key_bias, q), torch.empty_like(lse)
        rows = batch * heads

        d_q = q.new_empty(batch, length, heads, width).transpose(1, 2)
        _backward_queries[lambda meta: (triton.cdiv(length, meta["BLOCK_M"]) * rows,)](
            rows_of(q), rows_of(k), rows_of(v), bias, rows_of(out), lse,
            rows_of(d_out), d_lse, rows_of(d_q), delta, **shared,
        )  # fmt: skip

        once = slots == length
        dtype = q.dtype if once else lse.dtype
        d_k, d_v = (
            q.new_empty(batch, slots, heads, width, dtype=dtype).transpose(1, 2) for _ in "kv"
        )
        d_bias = None if key_bias is None else lse.new_empty(batch, heads, slots)
        spans, key_tiles, span_strides = _spans_of(shared, ctx.layout)
        _backward_keys[lambda meta: (triton.cdiv(slots, meta["BLOCK_N"]) * rows,)](
            rows_of(q), rows_of(k), rows_of(v), bias, lse,
            rows_of(d_out), delta, rows_of(d_k), rows_of(d_v), d_bias, spans, **shared,
            key_tiles=key_tiles, **span_strides, ONCE=once, SPAN=SPAN,
        )  # fmt: skip
        if not once:
            d_k, d_v = (_added_up(x, ctx.layout.key_order, q) for x in (d_k, d_v))
        if d_bias is not None:
            if not once:
                d_bias = _added_up(d_bias.unsqueeze(-1), ctx.layout.key_order, lse).squeeze(-1)
            d_bias = d_bias.sum_to_size(key_bias.shape).to(key_bias.dtype)
        return d_q, d_k, d_v, d_bias, None, None, None


def _arguments(q: Tensor, layout: Layout, dropout: float, seed: int) -> dict:
    """What all kernels of a call take."""
    _, heads, length, width = q.shape
    slots = length if layout.key_order is None else layout.key_order.size(-1)
    return {
        **{name: index_of(getattr(layout, name)) for name in _OF_LAYOUT},
        "heads": heads,
        "length": length,
        "slots": slots,
        "size_class": size_class(length),
        "dropout": dropout,
        "seed": seed,
        "WIDTH": width,
        "NUMBER_BYTES": q.element_size(),
        "BLOCK_E": max(16, triton.next_power_of_2(width)),
        "SCALE": width**-0.5,
        "ACC": tl.float64 if q.dtype == torch.float64 else tl.float32,
        "EARLIER_ONLY": layout.earlier_only,
        "DROPOUT": dropout > 0.0,
    }


def _bias(key_bias: Tensor | None, q: Tensor) -> Rows | None:
    if key_bias is None:
        return None
    return rows_of(key_bias.expand(q.shape[:3]).unsqueeze(-1))


def _spans_of(shared: dict, layout: Layout) -> tuple[Tensor, int, dict]:
    """Which query slots see each tile of SPAN key slots: int32 [rows, key tiles, 2]."""
    batch, groups = torch.broadcast_shapes(layout.lo.shape[:2], layout.hi.shape[:2])
    length, slots = shared["length"], shared["slots"]
    tiles, key_tiles = triton.cdiv(length, TILE), triton.cdiv(slots, SPAN)
    bounds = torch.empty(batch * groups, tiles, 2, dtype=torch.int32, device=layout.lo.device)
    spans = bounds.new_empty(batch * groups, key_tiles, 2)
    _bounds[(tiles * batch * groups,)](
        shared["lo"], shared["hi"], bounds, groups, length, slots, tiles, TILE=TILE
    )
    _spans[(triton.cdiv(key_tiles, 64) * batch * groups,)](
        bounds, spans, length, tiles, key_tiles, TILE=TILE, SPAN=SPAN, BLOCK=64
    )
    strides = {"span_b": groups if batch > 1 else 0, "span_h": 1 if groups > 1 else 0}
    return spans, key_tiles, strides


def _added_up(by_slot: Tensor, key_order: Tensor, like: Tensor) -> Tensor:
    """Sums [B, H, N, *] over the slots of each token, of [B, H, M, *]."""
    batch, heads, _, width = by_slot.shape
    index = key_order.expand(batch, heads, -1).unsqueeze(-1).expand(by_slot.shape)
    total = by_slot.new_zeros(batch, like.size(2), heads, width).transpose(1, 2)
    return total.scatter_add_(2, index, by_slot).to(like.dtype)
