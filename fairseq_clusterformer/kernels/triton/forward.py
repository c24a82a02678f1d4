"""The forward kernel of ranged attention, and what the backward kernels share with it.

A program attends a tile of query slots to the key slots between the lowest and the highest that
any of them sees. Kernels read the orders and store results at their tokens' own positions: nothing
is gathered or scattered in memory, and weights never leave the chip. The backward pass computes
them again from the log-sum-exp. Each number is written once, by one program: no atomics, and the
same bits every time for a choice of tiles (:func:`.launch.tuned`). Only where tokens stand in
several key slots are dk and dv kept by slot, and added up afterwards.

Logits are in units of log 2, as the hardware's exponential is.
Shape letters: B batch, H heads, N tokens, M key slots, E head width.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..kernel import empty_like
from ..layout import TENSORS, Call
from .launch import (
    Rows,
    dot,
    index_of,
    kept,
    load_count,
    load_index,
    load_rows,
    part_of,
    place_of,
    precision_of,
    products,
    rounded,
    rows_of,
    store_rows,
    tuned,
    work_class,
)

LOG2_E = tl.constexpr(1.4426950408889634)
# Numbers that differ from batch to batch: kernels are not compiled anew for their values.
VARYING = ["length", "slots", "work", "tiles", "key_tiles"]


@triton.jit
def load_queries(lo, hi, query_order, num_queries, b, h, slot, length):
    """Of a tile of query slots: their tokens and ranges, and which of them hold a real token."""
    token = load_index(query_order, b, h, slot, length)
    low = load_index(lo, b, h, slot, length).to(tl.int32)
    high = load_index(hi, b, h, slot, length).to(tl.int32)
    used = slot < length
    if num_queries is not None:
        used = slot < load_count(num_queries, b, h)
    return token, low, high, used


@triton.jit
def load_keys(key_order, num_keys, b, h, slot, slots):
    """Of a tile of key slots: their tokens, and which of them hold a real one."""
    token = load_index(key_order, b, h, slot, slots)
    used = slot < slots
    if num_keys is not None:
        used = slot < load_count(num_keys, b, h)
    return token, used


@triton.jit
def logits_of(
    inner, bias, b, h, low, high, key_slot, key_token, key_used,
    SCALE: tl.constexpr, ACC: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """Logits of a tile in units of log 2, -inf where a key is not seen, from inner products:
    queries along the axis QUERIES, keys along the other."""
    KEYS: tl.constexpr = 1 - QUERIES
    logits = inner * (SCALE * LOG2_E)
    if bias is not None:
        pointers = bias.ptr + b * bias.b + h * bias.h + key_token * bias.n
        of_key = tl.load(pointers, mask=key_used, other=0.0).to(ACC) * LOG2_E
        logits += tl.expand_dims(of_key, QUERIES)
    slot = tl.expand_dims(key_slot, QUERIES)
    seen = (slot >= tl.expand_dims(low, KEYS)) & (slot < tl.expand_dims(high, KEYS))
    return tl.where(seen, logits, float("-inf"))


TILES = {
    (2, 64): [(64, 64, 4, 3), (64, 32, 4, 3), (128, 64, 8, 3), (128, 128, 8, 3)],
    (2, 128): [(64, 64, 4, 3), (64, 32, 4, 3), (128, 64, 8, 3)],
    (2, 256): [(64, 32, 4, 2), (128, 64, 8, 2)],
    (4, 64): [(64, 32, 4, 2), (128, 32, 8, 2), (128, 64, 8, 2)],
    (4, 128): [(128, 32, 8, 1)],
    (8, 64): [(64, 32, 4, 1)],
    (8, 128): [(64, 32, 4, 1)],
}


@tuned(TILES)
@triton.jit(do_not_specialize=VARYING)
def _forward(
    q, k, v, bias, out, lse, lo, hi, query_order, key_order, num_queries, num_keys,
    heads, length, slots, work, dropout, seed,
    WIDTH: tl.constexpr, NUMBER_BYTES: tl.constexpr, PART: tl.constexpr,
    SCALE: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    row, tile = place_of(tl.cdiv(length, BLOCK_M))
    part = tl.program_id(1)
    b, h = row // heads, row % heads
    # Causal attention over everything has its longest ranges last: they start first.
    slot = (tl.cdiv(length, BLOCK_M) - 1 - tile) * BLOCK_M + tl.arange(0, BLOCK_M)
    token, low, high, used = load_queries(lo, hi, query_order, num_queries, b, h, slot, length)
    query = load_rows(q, b, h, token, used, 0, WIDTH, PART)

    if seed is not None:
        seed = tl.load(seed)
    peak = tl.full([BLOCK_M], float("-inf"), ACC)
    total = tl.zeros([BLOCK_M], ACC)
    values = tl.zeros([BLOCK_M, PART], ACC)
    # Key slots that any query of the tile sees; an empty range widens neither end.
    begin = tl.min(tl.where(high > low, low, slots)) // BLOCK_N * BLOCK_N
    end = tl.max(tl.where(high > low, high, 0))
    for first in range(begin, end, BLOCK_N):
        key_slot = first + tl.arange(0, BLOCK_N)
        key_token, key_used = load_keys(key_order, num_keys, b, h, key_slot, slots)
        key = load_rows(k, b, h, key_token, key_used, 0, WIDTH, PART)
        value = load_rows(v, b, h, key_token, key_used, part, WIDTH, PART)
        inner = products(
            q, token, used, query, k, key_token, key_used, key, b, h, WIDTH, PART, ACC, PRECISION
        )
        logits = logits_of(
            inner, bias, b, h, low, high, key_slot, key_token, key_used,
            SCALE, ACC, QUERIES=0,
        )  # fmt: skip

        new_peak = tl.maximum(peak, tl.max(logits, 1))
        # While nothing has been seen both are -inf, and their difference would be NaN.
        shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp2(logits - shift[:, None])
        decay = tl.exp2(peak - shift)  # rescales what was summed under the old maximum
        total = total * decay + tl.sum(weights, 1)
        if seed is not None:
            weights *= kept(seed, row * length + slot[:, None], key_slot[None, :], dropout)
        attended = dot(rounded(weights, value.dtype), value, ACC, PRECISION)
        values = values * decay[:, None] + attended
        peak = new_peak

    # A query that sees nothing has total 0: its result is 0 and its log-sum-exp -inf.
    safe = tl.where(total == 0.0, 1.0, total)
    exists = slot < length
    store_rows(out, b, h, token, values / safe[:, None], exists, part, WIDTH, PART)
    log_sum = tl.where(total == 0.0, float("-inf"), (peak + tl.log2(safe)) / LOG2_E)
    tl.store(lse + row * length + token, log_sum, mask=slot < tl.where(part == 0, length, 0))


def forward(call: Call) -> tuple[Tensor, Tensor]:
    """See :meth:`..kernel.OneByOne.attend`."""
    q, k, v = call[:3]
    out, exact = empty_like(q), torch.promote_types(q.dtype, torch.float32)
    lse = q.new_empty(q.shape[:3], dtype=exact)
    with torch.cuda.device_of(q):  # the backward pass is run on its tensors' device anyway
        _forward[grid(q, q.size(2), "BLOCK_M")](
            rows_of(q), rows_of(k), rows_of(v), bias_rows(call), rows_of(out), lse,
            **arguments(call),
        )  # fmt: skip
    return out, lse


def grid(q: Tensor, slots: int, block: str) -> Callable[[dict], tuple[int, int]]:
    """A program for each tile of slots, head and part of it. Programs of several parts each
    compute the weights anew, but hold what they add up in registers."""
    batch, heads, _, width = q.shape
    parts = triton.cdiv(width, part_of(width, q.element_size()))
    return lambda meta: (triton.cdiv(slots, meta[block]) * batch * heads, parts)


def arguments(call: Call) -> dict:
    """What all kernels of a call take."""
    q, layout = call.q, call.layout
    _, heads, length, width = q.shape
    return {
        **{name: index_of(getattr(layout, name)) for name in TENSORS},
        "heads": heads,
        "length": length,
        "slots": layout.slots,
        "work": work_class(length, layout.reach),
        "dropout": call.dropout,
        "seed": call.seed,
        "WIDTH": width,
        "NUMBER_BYTES": q.element_size(),
        "PART": part_of(width, q.element_size()),
        "SCALE": width**-0.5,
        "ACC": tl.float64 if q.dtype == torch.float64 else tl.float32,
        "PRECISION": precision_of(q.dtype),
    }


def bias_rows(call: Call) -> Rows | None:
    if call.key_bias is None:
        return None
    return rows_of(call.key_bias.expand(call.q.shape[:3]).unsqueeze(-1))
