"""The kernels of ranged attention: forward; and backward, one over tiles of queries (dq), and one
over tiles of keys (dk, dv, the bias's gradient).

A program attends a tile of query slots to the key slots between the lowest and the highest that
any of them sees. Kernels read the orders and store results at their tokens' own positions: nothing
is gathered or scattered in memory. Each number is written once, by one program: no atomics, and
the same bits every time. Only where tokens stand in several key slots are dk and dv kept by slot,
and added up afterwards.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...precision import at_least_float32
from ..kernel import Call, Carry, Gradients, Layout, empty_like
from .launch import (
    FORWARD,
    KEYS,
    LOG2_E,
    QUERIES,
    VARYING,
    arguments,
    dot,
    kept,
    launch,
    load_index,
    load_keys,
    load_queries,
    load_rows,
    logits_of,
    place_of,
    products,
    rows_of,
    store_rows,
)

# Query slots, and key slots, looked at together for who sees whom; SPAN divides every BLOCK_N.
TILE, SPAN = 64, 32


@triton.jit(do_not_specialize=VARYING)
def _forward(
    of, out, lse, length, slots,
    WIDTH: tl.constexpr, PART: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    row, b, h, tile = place_of(tl.cdiv(length, BLOCK_M), of.heads)
    part = tl.program_id(1)
    # Causal attention over everything has its longest ranges last: they start first.
    slot = (tl.cdiv(length, BLOCK_M) - 1 - tile) * BLOCK_M + tl.arange(0, BLOCK_M)
    queries = load_queries(of, b, h, slot, length)
    at, low, high = queries[0], queries[2], queries[3]
    query = load_rows(of.q, at, 0, WIDTH, PART)

    peak = tl.full([BLOCK_M], float("-inf"), ACC)
    total = tl.zeros([BLOCK_M], ACC)
    values = tl.zeros([BLOCK_M, PART], ACC)
    # Key slots that any query of the tile sees; an empty range widens neither end.
    begin = tl.min(tl.where(high > low, low, slots)) // BLOCK_N * BLOCK_N
    end = tl.max(tl.where(high > low, high, 0))
    for first in range(begin, end, BLOCK_N):
        keys = load_keys(of, b, h, first + tl.arange(0, BLOCK_N), slots)
        key = load_rows(of.k, keys[0], 0, WIDTH, PART)
        value = load_rows(of.v, keys[0], part, WIDTH, PART)
        inner = products(of.q, at, query, of.k, keys[0], key, WIDTH, PART, ACC, PRECISION)
        logits = logits_of(inner, of, queries, keys, length, WIDTH, QUERIES=0)
        new_peak = tl.maximum(peak, tl.max(logits, 1))
        # While nothing has been seen both are -inf, and their difference would be NaN.
        shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp2(logits - shift[:, None])
        decay = tl.exp2(peak - shift)  # rescales what was summed under the old maximum
        total = total * decay + tl.sum(weights, 1)
        if of.seed is not None:
            weights *= kept(of, row, queries, keys, length, QUERIES=0)
        values = values * decay[:, None] + dot(weights, value, ACC, PRECISION)
        peak = new_peak

    # A query that sees nothing has total 0: its result is 0 and its log-sum-exp -inf.
    safe = tl.where(total == 0.0, 1.0, total)
    at = b, h, at[2], slot < length
    store_rows(out, at, values / safe[:, None], part, WIDTH, PART)
    log_sum = tl.where(total == 0.0, float("-inf"), (peak + tl.log2(safe)) / LOG2_E)
    tl.store(lse + row * length + at[2], log_sum, mask=slot < tl.where(part == 0, length, 0))


@triton.jit
def _gradients_of(
    inner, d_weights, of, row, queries, keys, length, log_sum, shift,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """The weights of a tile as they multiply values, and the gradients of its logits, from inner
    products of queries and keys, and of gradients and values: dS = P * (dP - delta)."""
    logits = logits_of(inner, of, queries, keys, length, WIDTH, QUERIES)
    weights = tl.exp2(logits - tl.expand_dims(log_sum, 1 - QUERIES))
    left = weights
    if of.seed is not None:
        keep = kept(of, row, queries, keys, length, QUERIES)
        d_weights *= keep
        left = weights * keep
    return left, weights * (d_weights - tl.expand_dims(shift, 1 - QUERIES))


@triton.jit(do_not_specialize=VARYING)
def _backward_queries(
    of, out, lse, d_out, d_lse, d_q, delta, length, slots,
    WIDTH: tl.constexpr, PART: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    row, b, h, tile = place_of(tl.cdiv(length, BLOCK_M), of.heads)
    part = tl.program_id(1)
    slot = (tl.cdiv(length, BLOCK_M) - 1 - tile) * BLOCK_M + tl.arange(0, BLOCK_M)
    queries = load_queries(of, b, h, slot, length)
    at, low, high = queries[0], queries[2], queries[3]
    token, used = at[2], at[3]
    query = load_rows(of.q, at, 0, WIDTH, PART)
    d_values = load_rows(d_out, at, 0, WIDTH, PART)
    log_sum = tl.load(lse + row * length + token, mask=used, other=0.0)
    sees_nothing = log_sum == float("-inf")
    log_sum = tl.where(sees_nothing, 0.0, log_sum * LOG2_E)
    # delta is out . d_out; the gradient of the log-sum-exp adds P * d_lse. Where nothing is seen
    # that gradient may be NaN (of logaddexp, say), and nobody's keys may learn of it.
    shift = tl.zeros([BLOCK_M], ACC)
    for other in tl.static_range(0, (WIDTH + PART - 1) // PART):
        gradient = load_rows(d_out, at, other, WIDTH, PART)
        values = load_rows(out, at, other, WIDTH, PART)
        shift += tl.sum(gradient.to(ACC) * values.to(ACC), 1)
    if d_lse is not None:
        shift -= tl.load(d_lse + row * length + token, mask=used, other=0.0)
    shift = tl.where(sees_nothing, 0.0, shift)
    of_one = slot < tl.where(part == 0, length, 0)  # of the programs of a head's parts
    tl.store(delta + row * length + token, shift, mask=of_one)

    d_query = tl.zeros([BLOCK_M, PART], ACC)
    begin = tl.min(tl.where(high > low, low, slots)) // BLOCK_N * BLOCK_N
    end = tl.max(tl.where(high > low, high, 0))
    for first in range(begin, end, BLOCK_N):
        keys = load_keys(of, b, h, first + tl.arange(0, BLOCK_N), slots)
        key = load_rows(of.k, keys[0], 0, WIDTH, PART)
        value = load_rows(of.v, keys[0], 0, WIDTH, PART)
        inner = products(of.q, at, query, of.k, keys[0], key, WIDTH, PART, ACC, PRECISION)
        d_weights = products(
            d_out, at, d_values, of.v, keys[0], value, WIDTH, PART, ACC, PRECISION
        )
        d_logits = _gradients_of(
            inner, d_weights, of, row, queries, keys, length, log_sum, shift, WIDTH, 0
        )[1]
        if WIDTH > PART:
            key = load_rows(of.k, keys[0], part, WIDTH, PART)
        d_query += dot(d_logits, key, ACC, PRECISION)
    store_rows(d_q, (b, h, token, slot < length), d_query * WIDTH**-0.5, part, WIDTH, PART)


@triton.jit(do_not_specialize=VARYING)
def _backward_keys(
    of, lse, d_out, delta, d_k, d_v, d_bias, spans,
    length, slots, key_tiles, span_b, span_h,
    WIDTH: tl.constexpr, PART: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr, ONCE: tl.constexpr, SPAN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    row, b, h, tile = place_of(tl.cdiv(slots, BLOCK_N), of.heads)
    part = tl.program_id(1)
    key_slot = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    keys = load_keys(of, b, h, key_slot, slots)
    at = keys[0]
    key = load_rows(of.k, at, 0, WIDTH, PART)
    value = load_rows(of.v, at, 0, WIDTH, PART)
    d_key = tl.zeros([BLOCK_N, PART], ACC)
    d_value = tl.zeros([BLOCK_N, PART], ACC)
    d_key_bias = tl.zeros([BLOCK_N], ACC)

    # Query slots that see any key of the tile: the union of its entries in the table of spans.
    entry = tile * (BLOCK_N // SPAN) + tl.arange(0, BLOCK_N // SPAN)
    span = spans + ((b * span_b + h * span_h) * key_tiles + entry) * 2
    begin = tl.min(tl.load(span, mask=entry < key_tiles, other=length))
    end = tl.max(tl.load(span + 1, mask=entry < key_tiles, other=0))
    for first in range(begin, end, BLOCK_M):
        queries = load_queries(of, b, h, first + tl.arange(0, BLOCK_M), length)
        token, used = queries[0][2], queries[0][3]
        query = load_rows(of.q, queries[0], 0, WIDTH, PART)
        d_values = load_rows(d_out, queries[0], 0, WIDTH, PART)
        log_sum = tl.load(lse + row * length + token, mask=used, other=0.0)
        log_sum = tl.where(log_sum == float("-inf"), 0.0, log_sum * LOG2_E)
        shift = tl.load(delta + row * length + token, mask=used, other=0.0)
        # Transposed, [keys, queries]: sums over queries then stay in the program.
        inner = products(of.k, at, key, of.q, queries[0], query, WIDTH, PART, ACC, PRECISION)
        d_weights = products(
            of.v, at, value, d_out, queries[0], d_values, WIDTH, PART, ACC, PRECISION
        )
        left, d_logits = _gradients_of(
            inner, d_weights, of, row, queries, keys, length, log_sum, shift, WIDTH, 1
        )
        if WIDTH > PART:
            d_values = load_rows(d_out, queries[0], part, WIDTH, PART)
            query = load_rows(of.q, queries[0], part, WIDTH, PART)
        d_value += dot(left, d_values, ACC, PRECISION)
        d_key += dot(d_logits, query, ACC, PRECISION)
        d_key_bias += tl.sum(d_logits, 1)

    # By token, or by slot where several slots hold one token.
    place = at[2] if ONCE else key_slot.to(tl.int64)
    at = b, h, place, key_slot < slots
    store_rows(d_k, at, d_key * WIDTH**-0.5, part, WIDTH, PART)
    store_rows(d_v, at, d_value, part, WIDTH, PART)
    if d_bias is not None:
        of_one = key_slot < tl.where(part == 0, slots, 0)
        tl.store(d_bias + row * slots + place, d_key_bias, mask=of_one)


@triton.jit(do_not_specialize=VARYING)
def _spans(
    of, spans, groups, length, slots, tiles, key_tiles,
    TILE: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """First and one past the last query slot of those that see a tile of keys, in whole tiles."""
    row, b, g, block = place_of(tl.cdiv(key_tiles, BLOCK), groups)
    key_tile = block * BLOCK + tl.arange(0, BLOCK)
    begin = tl.zeros([BLOCK], tl.int32) + tiles
    end = tl.zeros([BLOCK], tl.int32)
    for first in range(0, tiles, BLOCK):
        tile = first + tl.arange(0, BLOCK)
        slot = tile[:, None] * TILE + tl.arange(0, TILE)[None, :]
        low = load_index(of.lo, b, g, slot, length).to(tl.int32)
        high = load_index(of.hi, b, g, slot, length).to(tl.int32)
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


def forward(call: Call) -> tuple[Tensor, Tensor]:
    q, out = call.q, empty_like(call.q)
    lse = at_least_float32(q.new_empty(q.shape[:3]))
    with torch.cuda.device_of(q):  # the backward pass is run on its tensors' device anyway
        launch(_forward, FORWARD, q, out=rows_of(out), lse=lse, **arguments(call))
    return out, lse


def backward(call: Call, d_out: Tensor, d_lse: Tensor | None, carry: Carry) -> Gradients:
    q, key_bias, layout, lse = call.q, call.key_bias, call.layout, carry.lse
    batch, heads, length, width = q.shape
    shared, slots = arguments(call), layout.slots
    if d_out.stride(-1) != 1:  # the gradient of a sum is one number, expanded
        d_out = d_out.contiguous()
    shared |= {"lse": lse, "d_out": rows_of(d_out), "delta": torch.empty_like(lse)}
    d_lse = None if d_lse is None else d_lse.contiguous()
    d_q, once = empty_like(q), slots == length
    results = {"d_lse": d_lse, "d_q": rows_of(d_q)}
    launch(_backward_queries, QUERIES, q, out=rows_of(carry.out), **results, **shared)
    dtype = q.dtype if once else lse.dtype
    d_k, d_v = (q.new_empty(batch, slots, heads, width, dtype=dtype).transpose(1, 2) for _ in "kv")
    d_bias = None if key_bias is None else lse.new_empty(batch, heads, slots)
    results = {"d_k": rows_of(d_k), "d_v": rows_of(d_v), "d_bias": d_bias, "ONCE": once}
    launch(_backward_keys, KEYS, q, **shared, **results, **_spans_of(shared, layout))
    if not once:
        d_k, d_v = (_added_up(x, layout.key_order, q) for x in (d_k, d_v))
    if d_bias is not None:
        if not once:
            d_bias = _added_up(d_bias.unsqueeze(-1), layout.key_order, lse).squeeze(-1)
        d_bias = d_bias.sum_to_size(key_bias.shape).to(key_bias.dtype)
    return Gradients(d_q, d_k, d_v, d_bias)


def _spans_of(shared: dict, layout: Layout) -> dict:
    """Which query slots see each tile of SPAN key slots: int32 [rows, key tiles, 2]."""
    batch, groups = torch.broadcast_shapes(layout.lo.shape[:2], layout.hi.shape[:2])
    length, slots = shared["length"], shared["slots"]
    tiles, key_tiles = triton.cdiv(length, TILE), triton.cdiv(slots, SPAN)
    shape = batch * groups, key_tiles, 2
    spans = torch.empty(shape, dtype=torch.int32, device=layout.lo.device)
    _spans[(triton.cdiv(key_tiles, 64) * batch * groups,)](
        shared["of"], spans, groups, length, slots, tiles, key_tiles, TILE, SPAN, BLOCK=64
    )
    strides = {"span_b": groups if batch > 1 else 0, "span_h": 1 if groups > 1 else 0}
    return {"spans": spans, "key_tiles": key_tiles, "SPAN": SPAN, **strides}


def _added_up(by_slot: Tensor, key_order: Tensor, like: Tensor) -> Tensor:
    """Sums [B, H, N, *] over the slots of each token, of [B, H, M, *]."""
    batch, heads, _, width = by_slot.shape
    index = key_order.expand(batch, heads, -1).unsqueeze(-1).expand(by_slot.shape)
    total = by_slot.new_zeros(batch, like.size(2), heads, width).transpose(1, 2)
    return total.scatter_add_(2, index, by_slot).to(like.dtype)
