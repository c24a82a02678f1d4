"""The backward pass of ranged attention: one kernel over tiles of queries (dq), one over tiles of
keys (dk, dv, the bias's gradient).

Shape letters: B batch, H heads, N tokens, M key slots, E head width.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..kernel import Carry, Gradients, Wanted, empty_like
from ..layout import Call, Layout
from .forward import (
    LOG2_E,
    VARYING,
    arguments,
    bias_rows,
    grid,
    load_keys,
    load_queries,
    logits_of,
)
from .launch import (
    dot,
    kept,
    load_index,
    load_rows,
    place_of,
    products,
    rounded,
    rows_of,
    store_rows,
    tuned,
)

# Query slots, and key slots, that are looked at together to find out who sees whom; SPAN divides
# every BLOCK_N below.
TILE, SPAN = 64, 32

TILES_OF_QUERIES = {
    (2, 64): [(64, 64, 4, 2), (64, 32, 4, 2), (128, 64, 8, 2)],
    (2, 128): [(64, 32, 4, 2), (128, 32, 8, 2), (128, 64, 8, 2)],
    (2, 256): [(128, 32, 8, 1)],
    (4, 64): [(64, 32, 8, 1), (128, 32, 8, 1)],
    (4, 128): [(128, 32, 8, 1)],
    (8, 64): [(64, 32, 4, 1)],
    (8, 128): [(64, 32, 4, 1)],
}
TILES_OF_KEYS = {
    (2, 64): [(32, 64, 4, 2), (64, 128, 8, 2)],
    (2, 128): [(16, 64, 8, 2), (32, 64, 8, 1)],
    (2, 256): [(32, 64, 8, 2)],
    (4, 64): [(16, 128, 8, 1)],
    (4, 128): [(16, 128, 8, 1)],
    (8, 64): [(32, 64, 4, 1)],
    (8, 128): [(32, 64, 4, 1)],
}


@tuned(TILES_OF_QUERIES)
@triton.jit(do_not_specialize=VARYING)
def _backward_queries(
    q, k, v, bias, out, lse, d_out, d_lse, d_q, delta,
    lo, hi, query_order, key_order, num_queries, num_keys,
    heads, length, slots, work, dropout, seed,
    WIDTH: tl.constexpr, NUMBER_BYTES: tl.constexpr, PART: tl.constexpr,
    SCALE: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    row, tile = place_of(tl.cdiv(length, BLOCK_M))
    part = tl.program_id(1)
    b, h = row // heads, row % heads
    slot = (tl.cdiv(length, BLOCK_M) - 1 - tile) * BLOCK_M + tl.arange(0, BLOCK_M)
    token, low, high, used = load_queries(lo, hi, query_order, num_queries, b, h, slot, length)
    exists = slot < length
    query = load_rows(q, b, h, token, used, 0, WIDTH, PART)
    d_values = load_rows(d_out, b, h, token, used, 0, WIDTH, PART)
    log_sum = tl.load(lse + row * length + token, mask=used, other=0.0)
    sees_nothing = log_sum == float("-inf")
    log_sum = tl.where(sees_nothing, 0.0, log_sum * LOG2_E)
    # dS = P * (dP - delta); the gradient of the log-sum-exp adds P * d_lse. Where nothing is seen
    # that gradient may be NaN (of logaddexp, say), and nobody's keys may learn of it.
    shift = tl.zeros([BLOCK_M], ACC)
    for other in tl.static_range(0, (WIDTH + PART - 1) // PART):
        gradient = load_rows(d_out, b, h, token, used, other, WIDTH, PART)
        values = load_rows(out, b, h, token, used, other, WIDTH, PART)
        shift += tl.sum(gradient.to(ACC) * values.to(ACC), 1)
    if d_lse is not None:
        shift -= tl.load(d_lse + row * length + token, mask=used, other=0.0)
    shift = tl.where(sees_nothing, 0.0, shift)
    of_one = slot < tl.where(part == 0, length, 0)  # of the programs of a head's parts
    tl.store(delta + row * length + token, shift, mask=of_one)

    if seed is not None:
        seed = tl.load(seed)
    d_query = tl.zeros([BLOCK_M, PART], ACC)
    begin = tl.min(tl.where(high > low, low, slots)) // BLOCK_N * BLOCK_N
    end = tl.max(tl.where(high > low, high, 0))
    for first in range(begin, end, BLOCK_N):
        key_slot = first + tl.arange(0, BLOCK_N)
        key_token, key_used = load_keys(key_order, num_keys, b, h, key_slot, slots)
        key = load_rows(k, b, h, key_token, key_used, 0, WIDTH, PART)
        value = load_rows(v, b, h, key_token, key_used, 0, WIDTH, PART)
        inner = products(
            q, token, used, query, k, key_token, key_used, key, b, h, WIDTH, PART, ACC, PRECISION
        )
        logits = logits_of(
            inner, bias, b, h, low, high, key_slot, key_token, key_used,
            SCALE, ACC, QUERIES=0,
        )  # fmt: skip
        weights = tl.exp2(logits - log_sum[:, None])
        d_weights = products(
            d_out, token, used, d_values, v, key_token, key_used, value, b, h,
            WIDTH, PART, ACC, PRECISION,
        )  # fmt: skip
        if seed is not None:
            d_weights *= kept(seed, row * length + slot[:, None], key_slot[None, :], dropout)
        d_logits = weights * (d_weights - shift[:, None])
        if WIDTH > PART:
            key = load_rows(k, b, h, key_token, key_used, part, WIDTH, PART)
        d_query += dot(rounded(d_logits, key.dtype), key, ACC, PRECISION)
    store_rows(d_q, b, h, token, d_query * SCALE, exists, part, WIDTH, PART)


@tuned(TILES_OF_KEYS)
@triton.jit(do_not_specialize=VARYING)
def _backward_keys(
    q, k, v, bias, lse, d_out, delta, d_k, d_v, d_bias, spans,
    lo, hi, query_order, key_order, num_queries, num_keys,
    heads, length, slots, work, dropout, seed, key_tiles, span_b, span_h,
    WIDTH: tl.constexpr, NUMBER_BYTES: tl.constexpr, PART: tl.constexpr,
    SCALE: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
    ONCE: tl.constexpr, SPAN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    row, tile = place_of(tl.cdiv(slots, BLOCK_N))
    part = tl.program_id(1)
    b, h = row // heads, row % heads
    key_slot = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    key_token, key_used = load_keys(key_order, num_keys, b, h, key_slot, slots)
    key = load_rows(k, b, h, key_token, key_used, 0, WIDTH, PART)
    value = load_rows(v, b, h, key_token, key_used, 0, WIDTH, PART)
    if seed is not None:
        seed = tl.load(seed)
    d_key = tl.zeros([BLOCK_N, PART], ACC)
    d_value = tl.zeros([BLOCK_N, PART], ACC)
    d_key_bias = tl.zeros([BLOCK_N], ACC)

    # Query slots that see any key of the tile: the union of its entries in the table of spans.
    entry = tile * (BLOCK_N // SPAN) + tl.arange(0, BLOCK_N // SPAN)
    span = spans + ((b * span_b + h * span_h) * key_tiles + entry) * 2
    begin = tl.min(tl.load(span, mask=entry < key_tiles, other=length))
    end = tl.max(tl.load(span + 1, mask=entry < key_tiles, other=0))
    for first in range(begin, end, BLOCK_M):
        slot = first + tl.arange(0, BLOCK_M)
        token, low, high, used = load_queries(lo, hi, query_order, num_queries, b, h, slot, length)
        query = load_rows(q, b, h, token, used, 0, WIDTH, PART)
        d_values = load_rows(d_out, b, h, token, used, 0, WIDTH, PART)
        log_sum = tl.load(lse + row * length + token, mask=used, other=0.0)
        log_sum = tl.where(log_sum == float("-inf"), 0.0, log_sum * LOG2_E)
        shift = tl.load(delta + row * length + token, mask=used, other=0.0)
        # Transposed, [keys, queries]: sums over queries then stay in the program.
        inner = products(
            k, key_token, key_used, key, q, token, used, query, b, h, WIDTH, PART, ACC, PRECISION
        )
        logits = logits_of(
            inner, bias, b, h, low, high, key_slot, key_token, key_used,
            SCALE, ACC, QUERIES=1,
        )  # fmt: skip
        weights = tl.exp2(logits - log_sum[None, :])
        d_weights = products(
            v, key_token, key_used, value, d_out, token, used, d_values, b, h,
            WIDTH, PART, ACC, PRECISION,
        )  # fmt: skip
        left = weights
        if seed is not None:
            keep = kept(seed, row * length + slot[None, :], key_slot[:, None], dropout)
            d_weights *= keep
            left = weights * keep
        if WIDTH > PART:
            d_values = load_rows(d_out, b, h, token, used, part, WIDTH, PART)
        d_value += dot(rounded(left, d_values.dtype), d_values, ACC, PRECISION)
        d_logits = weights * (d_weights - shift[None, :])
        if WIDTH > PART:
            query = load_rows(q, b, h, token, used, part, WIDTH, PART)
        d_key += dot(rounded(d_logits, query.dtype), query, ACC, PRECISION)
        d_key_bias += tl.sum(d_logits, 1)

    # By token, or by slot where several slots hold one token.
    place = key_token if ONCE else key_slot.to(tl.int64)
    exists = key_slot < slots
    store_rows(d_k, b, h, place, d_key * SCALE, exists, part, WIDTH, PART)
    store_rows(d_v, b, h, place, d_value, exists, part, WIDTH, PART)
    if d_bias is not None:
        tl.store(
            d_bias + row * slots + place, d_key_bias, mask=key_slot < tl.where(part == 0, slots, 0)
        )


@triton.jit(do_not_specialize=VARYING)
def _spans(
    lo, hi, spans, groups, length, slots, tiles, key_tiles,
    TILE: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """First and one past the last query slot of those that see a tile of keys, in whole tiles."""
    row, block = place_of(tl.cdiv(key_tiles, BLOCK))
    key_tile = block * BLOCK + tl.arange(0, BLOCK)
    begin = tl.zeros([BLOCK], tl.int32) + tiles
    end = tl.zeros([BLOCK], tl.int32)
    for first in range(0, tiles, BLOCK):
        tile = first + tl.arange(0, BLOCK)
        slot = tile[:, None] * TILE + tl.arange(0, TILE)[None, :]
        low = load_index(lo, row // groups, row % groups, slot, length).to(tl.int32)
        high = load_index(hi, row // groups, row % groups, slot, length).to(tl.int32)
        some = high > low  # first and last key slots that each tile of queries sees
        low, high = tl.min(tl.where(some, low, slots), 1), tl.max(tl.where(some, high, 0), 1)
        # [key tiles, query tiles]: their ranges overlap
        sees = low[None, :] < (key_tile[:, None] + 1) * SPAN
        sees = sees & (high[None, :] > key_tile[:, None] * SPAN)
        begin = tl.minimum(begin, tl.min(tl.where(sees, tile[None, :], tiles), 1))
        end = tl.maximum(end, tl.max(tl.where(sees, tile[None, :] + 1, 0), 1))
    entry = spans + (row * key_tiles + key_tile) * 2
    tl.store(entry, tl.minimum(begin * TILE, length), mask=key_tile < key_tiles)
    tl.store(entry + 1, tl.minimum(end * TILE, length), mask=key_tile < key_tiles)


def backward(call: Call, wanted: Wanted, carry: Carry) -> Gradients:
    """See :meth:`..kernel.OneByOne.gradients`."""
    q, k, v, key_bias, layout = *call[:4], call.layout
    (d_out, d_lse), (out, lse, *_) = wanted, carry
    batch, heads, length, width = q.shape
    shared = arguments(call)
    slots = shared["slots"]
    if d_out.stride(-1) != 1:  # the gradient of a sum is one number, expanded
        d_out = d_out.contiguous()
    d_lse = None if d_lse is None else d_lse.contiguous()
    bias, delta = bias_rows(call), torch.empty_like(lse)

    d_q = empty_like(q)
    _backward_queries[grid(q, length, "BLOCK_M")](
        rows_of(q), rows_of(k), rows_of(v), bias, rows_of(out), lse,
        rows_of(d_out), d_lse, rows_of(d_q), delta, **shared,
    )  # fmt: skip

    once = slots == length
    dtype = q.dtype if once else lse.dtype
    d_k, d_v = (q.new_empty(batch, slots, heads, width, dtype=dtype).transpose(1, 2) for _ in "kv")
    d_bias = None if key_bias is None else lse.new_empty(batch, heads, slots)
    spans, key_tiles, span_strides = _spans_of(shared, layout)
    _backward_keys[grid(q, slots, "BLOCK_N")](
        rows_of(q), rows_of(k), rows_of(v), bias, lse,
        rows_of(d_out), delta, rows_of(d_k), rows_of(d_v), d_bias, spans, **shared,
        key_tiles=key_tiles, **span_strides, ONCE=once, SPAN=SPAN,
    )  # fmt: skip
    if not once:
        d_k, d_v = (_added_up(x, layout.key_order, q) for x in (d_k, d_v))
    if d_bias is not None:
        if not once:
            d_bias = _added_up(d_bias.unsqueeze(-1), layout.key_order, lse).squeeze(-1)
        d_bias = d_bias.sum_to_size(key_bias.shape).to(key_bias.dtype)
    return Gradients(d_q, d_k, d_v, d_bias)


def _spans_of(shared: dict, layout: Layout) -> tuple[Tensor, int, dict]:
    """Which query slots see each tile of SPAN key slots: int32 [rows, key tiles, 2]."""
    batch, groups = torch.broadcast_shapes(layout.lo.shape[:2], layout.hi.shape[:2])
    length, slots = shared["length"], shared["slots"]
    tiles, key_tiles = triton.cdiv(length, TILE), triton.cdiv(slots, SPAN)
    shape = batch * groups, key_tiles, 2
    spans = torch.empty(shape, dtype=torch.int32, device=layout.lo.device)
    _spans[(triton.cdiv(key_tiles, 64) * batch * groups,)](
        shared["lo"], shared["hi"], spans, groups, length, slots, tiles, key_tiles,
        TILE=TILE, SPAN=SPAN, BLOCK=64,
    )  # fmt: skip
    strides = {"span_b": groups if batch > 1 else 0, "span_h": 1 if groups > 1 else 0}
    return spans, key_tiles, strides


def _added_up(by_slot: Tensor, key_order: Tensor, like: Tensor) -> Tensor:
    """Sums [B, H, N, *] over the slots of each token, of [B, H, M, *]."""
    batch, heads, _, width = by_slot.shape
    index = key_order.expand(batch, heads, -1).unsqueeze(-1).expand(by_slot.shape)
    total = by_slot.new_zeros(batch, like.size(2), heads, width).transpose(1, 2)
    return total.scatter_add_(2, index, by_slot).to(like.dtype)
