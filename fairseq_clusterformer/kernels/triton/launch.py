"""What the Triton kernels share: how a call is handed over and read, tiles, and their logits.

Logits are in units of log 2, as the hardware's exponential is. A tile of queries, or of keys, is
the place of its tokens, (row, head, token, whether it is used), and its slots; of queries, their
ranges too.
"""

from collections import namedtuple
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from ..kernel import TENSORS, Call

INTERPRETED = tl.constexpr(knobs.runtime.interpret)
LOG2_E = tl.constexpr(1.4426950408889634)
# Numbers that differ from batch to batch: kernels are not compiled anew for their values.
VARYING = ["length", "slots", "tiles", "key_tiles"]


# A tensor [B, H, N, E] and its strides.
Rows = namedtuple("Rows", "ptr b h n e")
# A contiguous integer tensor [B or 1, H or 1, N], and how far apart its rows are, in rows.
Index = namedtuple("Index", "ptr b h")
# A call: rows, indices, the number of heads, dropout and its seed.
Given = namedtuple("Given", ["q", "k", "v", "bias", *TENSORS, "heads", "dropout", "seed"])


def rows_of(x: Tensor) -> Rows:
    return Rows(x, *x.stride())


def index_of(x: Tensor | None) -> Index | None:
    if x is None:
        return None
    x = x.contiguous()
    return Index(x, x.size(1) if x.size(0) > 1 else 0, 1 if x.size(1) > 1 else 0)


def arguments(call: Call) -> dict:
    """What all kernels of a call take."""
    q, layout, bias = call.q, call.layout, call.key_bias
    bias = None if bias is None else rows_of(bias.expand(q.shape[:3]).unsqueeze(-1))
    indices = (index_of(getattr(layout, name)) for name in TENSORS)
    (length, width), size = q.shape[2:], q.element_size()
    # Columns of a head that a program holds at once: as many as leave its threads enough of their
    # 255 registers; numbers of float32 are held as two each.
    most = {2: 128, 4: 32 if width > 64 else 64, 8: 64}[size]
    # How tensor cores multiply float32: as three products of TensorFloat32, which lose two to four
    # times what float32's own would, or as one where torch allows that.
    precision = "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "tf32x3"
    return {
        "of": Given(*map(rows_of, call[:3]), bias, *indices, q.size(1), call.dropout, call.seed),
        "length": length,
        "slots": layout.slots,
        "WIDTH": width,
        "PART": min(max(16, triton.next_power_of_2(width)), most),
        "ACC": tl.float64 if size == 8 else tl.float32,
        "PRECISION": "ieee" if size == 8 else precision,
    }


# Query slots and key slots of a tile, warps and stages: of the forward kernel, and of the backward
# kernels over queries and over keys. The key is the bytes of a number and the width of a head (64,
# 128); a head in several parts has twice a part's.
TILES = {
    (2, 64): ((64, 64, 4, 3), (64, 64, 4, 2), (32, 64, 4, 2)),
    (2, 128): ((64, 64, 4, 3), (64, 32, 4, 2), (16, 64, 8, 2)),
    (2, 256): ((64, 32, 4, 2), (128, 32, 8, 1), (32, 64, 8, 2)),
    (4, 64): ((64, 32, 4, 2), (64, 32, 8, 1), (16, 128, 8, 1)),
    (4, 128): ((128, 32, 8, 1), (128, 32, 8, 1), (16, 128, 8, 1)),
    (8, 64): ((64, 32, 4, 1), (64, 32, 4, 1), (32, 64, 4, 1)),
    (8, 128): ((64, 32, 4, 1), (64, 32, 4, 1), (32, 64, 4, 1)),
}
FORWARD, QUERIES, KEYS = range(3)


def launch(kernel: triton.JITFunction, which: int, q: Tensor, **given: Any) -> None:
    """Run one of the three: a program for each tile of slots, head and part of it. Programs of
    several parts each compute the weights anew, but hold what they add up in registers."""
    (batch, heads, _, width), part = q.shape, given["PART"]
    held = max(part, 64)
    tiles = TILES[q.element_size(), held if width <= held else 2 * held]
    block_m, block_n, warps, stages = tiles[which]
    slots, block = (given["slots"], block_n) if which == KEYS else (given["length"], block_m)
    programs = triton.cdiv(slots, block) * batch * heads
    how = {"BLOCK_M": block_m, "BLOCK_N": block_n, "num_warps": warps, "num_stages": stages}
    kernel[programs, triton.cdiv(width, part)](**given, **how)


@triton.jit
def place_of(tiles, heads):
    """Of this program: the row of all, its b and h, int64, and the tile: one axis of the grid, for
    a second one ends at 65,535."""
    row = (tl.program_id(0) // tiles).to(tl.int64)
    return row, row // heads, row % heads, tl.program_id(0) % tiles


@triton.jit
def load_index(x, b, h, place, size):
    """Numbers int64 at those places of a row of that size (no x: the places); 0 beyond it."""
    if x is None:
        number = tl.where(place < size, place, 0).to(tl.int64)
    else:
        number = tl.load(x.ptr + (b * x.b + h * x.h) * size + place, mask=place < size, other=0)
    return number


@triton.jit
def _tokens(order, count, b, h, slot, size):
    used = slot < size
    if count is not None:
        used = slot < tl.load(count.ptr + b * count.b + h * count.h)
    return b, h, load_index(order, b, h, slot, size), used


@triton.jit
def load_queries(of, b, h, slot, length):
    """A tile of queries."""
    low = load_index(of.lo, b, h, slot, length).to(tl.int32)
    high = load_index(of.hi, b, h, slot, length).to(tl.int32)
    return _tokens(of.query_order, of.num_queries, b, h, slot, length), slot, low, high


@triton.jit
def load_keys(of, b, h, slot, slots):
    """A tile of keys."""
    return _tokens(of.key_order, of.num_keys, b, h, slot, slots), slot


@triton.jit
def _pointers(x, at, part, WIDTH: tl.constexpr, PART: tl.constexpr):
    """To a part of the rows at those places [len(token), PART], and which of them there are."""
    b, h, token, used = at
    column = part * PART + tl.arange(0, PART)
    mask = used[:, None]
    if WIDTH % PART != 0:
        mask = mask & (column < WIDTH)[None, :]
    return x.ptr + b * x.b + h * x.h + token[:, None] * x.n + column[None, :] * x.e, mask


@triton.jit
def load_rows(x, at, part, WIDTH: tl.constexpr, PART: tl.constexpr):
    """A part of the rows at those places; 0 where they are not used."""
    pointers, mask = _pointers(x, at, part, WIDTH, PART)
    return tl.load(pointers, mask=mask, other=0.0)


@triton.jit
def store_rows(x, at, rows, part, WIDTH: tl.constexpr, PART: tl.constexpr):
    pointers, mask = _pointers(x, at, part, WIDTH, PART)
    tl.store(pointers, rounded(rows, x.ptr.dtype.element_ty), mask=mask)


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """In that precision, to the nearest, ties to even: where the interpreter cuts bits off, what
    is missing is added first."""
    if INTERPRETED and dtype == tl.bfloat16 and x.dtype == tl.float32:
        bits = x.to(tl.int32, bitcast=True)
        x = (bits + 0x7FFF + ((bits >> 16) & 1)).to(tl.float32, bitcast=True)
    return x.to(dtype)


@triton.jit
def dot(a, b, ACC: tl.constexpr, PRECISION: tl.constexpr):
    """Matrix product, of a in b's precision; the interpreter would multiply bfloat16's bits."""
    a = rounded(a, b.dtype)
    if INTERPRETED:
        a, b = a.to(ACC), b.to(ACC)
    return tl.dot(a, b, input_precision=PRECISION, out_dtype=ACC)


@triton.jit
def products(
    x, x_at, x_first, y, y_at, y_first,
    WIDTH: tl.constexpr, PART: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Inner products of rows of x and y at those places, whose first parts are loaded, and used
    where they are all. Else a loop, for then registers hold one part at a time."""
    if WIDTH <= PART:
        total = dot(x_first, tl.trans(y_first), ACC, PRECISION)
    else:
        total = tl.zeros([x_first.shape[0], y_first.shape[0]], ACC)
        for part in tl.range(0, (WIDTH + PART - 1) // PART):
            left = load_rows(x, x_at, part, WIDTH, PART)
            right = load_rows(y, y_at, part, WIDTH, PART)
            total += dot(left, tl.trans(right), ACC, PRECISION)
    return total


@triton.jit
def logits_of(inner, of, queries, keys, length, WIDTH: tl.constexpr, QUERIES: tl.constexpr):
    """Logits of a tile, -inf where a key is not seen, by inner products; QUERIES: their axis."""
    KEYS: tl.constexpr = 1 - QUERIES
    SCALE: tl.constexpr = WIDTH**-0.5 * LOG2_E
    asks, _, low, high = queries
    (b, h, token, used), slot = keys
    logits, bias = inner * SCALE, of.bias
    if bias is not None:
        of_key = tl.load(bias.ptr + b * bias.b + h * bias.h + token * bias.n, mask=used, other=0.0)
        logits += tl.expand_dims(of_key.to(inner.dtype) * LOG2_E, QUERIES)
    slot = tl.expand_dims(slot, QUERIES)
    seen = (slot >= tl.expand_dims(low, KEYS)) & (slot < tl.expand_dims(high, KEYS))
    if of.least is not None:
        least = load_index(of.least, asks[0], asks[1], asks[2], length).to(inner.dtype) * LOG2_E
        seen = seen & (logits >= tl.expand_dims(least, KEYS))
    return tl.where(seen, logits, float("-inf"))


@triton.jit
def kept(of, row, queries, keys, length, QUERIES: tl.constexpr):
    """1 / (1 - dropout) where a weight is kept, 0 where it is dropped; by its place alone. Seven
    rounds of Philox are the fewest that pass all tests of randomness (Salmon et al., 2011)."""
    query = tl.expand_dims(row * length + queries[1], 1 - QUERIES)
    key = tl.expand_dims(keys[1], QUERIES)
    low, high = (query * 0 + key).to(tl.uint32), (query + key * 0).to(tl.uint32)
    bits, _, _, _ = tl.philox(tl.load(of.seed), low, high, low * 0, low * 0, n_rounds=7)
    uniform = tl.uint_to_uniform_float(bits)
    return tl.where(uniform >= of.dropout, 1.0 / (1.0 - of.dropout), 0.0)
