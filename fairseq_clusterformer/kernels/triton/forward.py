"""The forward kernel of ranged attention.

A program attends a tile of query slots to the key slots between the lowest and the highest that
any of them sees. Kernels read the orders and store results at their tokens' own positions: nothing
is gathered or scattered in memory, and weights never leave the chip. The backward pass computes
them again from the log-sum-exp. Each number is written once, by one program: no atomics, and the
same bits every time. Only where tokens stand in several key slots are dk and dv kept by slot, and
added up afterwards.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...precision import at_least_float32
from ..kernel import empty_like
from ..layout import Call
from .launch import (
    FORWARD,
    LOG2_E,
    VARYING,
    arguments,
    dot,
    kept,
    launch,
    load_keys,
    load_queries,
    load_rows,
    logits_of,
    place_of,
    products,
    rows_of,
    store_rows,
)


@triton.jit(do_not_specialize=VARYING)
def _forward(
    of, out, lse, length, slots,
    WIDTH: tl.constexpr, PART: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    row, tile = place_of(tl.cdiv(length, BLOCK_M))
    part = tl.program_id(1)
    b, h = row // of.heads, row % of.heads
    # Causal attention over everything has its longest ranges last: they start first.
    slot = (tl.cdiv(length, BLOCK_M) - 1 - tile) * BLOCK_M + tl.arange(0, BLOCK_M)
    queries = load_queries(of, b, h, slot, length)
    at, low, high = queries[0], queries[2], queries[3]
    query = load_rows(of.q, at, 0, WIDTH, PART)

    if of.seed is not None:
        seed = tl.load(of.seed)
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
        logits = logits_of(inner, of.bias, queries, keys, WIDTH, QUERIES=0)
        new_peak = tl.maximum(peak, tl.max(logits, 1))
        # While nothing has been seen both are -inf, and their difference would be NaN.
        shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp2(logits - shift[:, None])
        decay = tl.exp2(peak - shift)  # rescales what was summed under the old maximum
        total = total * decay + tl.sum(weights, 1)
        if of.seed is not None:
            weights *= kept(seed, of.dropout, row, queries, keys, length, QUERIES=0)
        values = values * decay[:, None] + dot(weights, value, ACC, PRECISION)
        peak = new_peak

    # A query that sees nothing has total 0: its result is 0 and its log-sum-exp -inf.
    safe = tl.where(total == 0.0, 1.0, total)
    at = b, h, at[2], slot < length
    store_rows(out, at, values / safe[:, None], part, WIDTH, PART)
    log_sum = tl.where(total == 0.0, float("-inf"), (peak + tl.log2(safe)) / LOG2_E)
    tl.store(lse + row * length + at[2], log_sum, mask=slot < tl.where(part == 0, length, 0))


def forward(call: Call) -> tuple[Tensor, Tensor]:
    """See :meth:`..kernel.OneByOne.attend`."""
    q, out = call.q, empty_like(call.q)
    lse = at_least_float32(q.new_empty(q.shape[:3]))
    with torch.cuda.device_of(q):  # the backward pass is run on its tensors' device anyway
        launch(_forward, FORWARD, q, out=rows_of(out), lse=lse, **arguments(call))
    return out, lse
