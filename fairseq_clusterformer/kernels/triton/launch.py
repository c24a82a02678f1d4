"""What the Triton kernels share: how tensors are handed to them, and how rows are read."""

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

INTERPRETED = tl.constexpr(knobs.runtime.interpret)
SHORTEST_CLASS, LONGEST_CLASS = 7, 14
WIDEST = 256


class Rows(NamedTuple):
    """A tensor [B, H, N, E] and its strides."""

    ptr: Any
    b: Any
    h: Any
    n: Any
    e: Any


class Index(NamedTuple):
    """A contiguous integer tensor [B or 1, H or 1, N], and how far apart its rows are, in rows."""

    ptr: Any
    b: Any
    h: Any


def rows_of(x: Tensor) -> Rows:
    return Rows(x, *x.stride())


def index_of(x: Tensor | None) -> Index | None:
    if x is None:
        return None
    x = x.contiguous()
    return Index(x, x.size(1) if x.size(0) > 1 else 0, 1 if x.size(1) > 1 else 0)


def check_width(q: Tensor) -> None:
    """Raises ValueError where a head is wider than the kernels are made for."""
    if q.size(-1) > WIDEST:
        raise ValueError(
            f"a head is {q.size(-1)} wide; allowed for the kernel triton: up to {WIDEST}; "
            "the kernel blocks takes any width"
        )


def size_class(length: int) -> int:
    """Kernels are tuned once for each power of 2 from 128 to 8,192, what is beyond included."""
    return min(max(length.bit_length(), SHORTEST_CLASS), LONGEST_CLASS)


def configs(*choices: tuple[int, int, int, int]) -> list[triton.Config]:
    """BLOCK_M, BLOCK_N, warps and stages to choose from; the interpreter takes the first."""
    if INTERPRETED:
        choices = choices[:1]
    return [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=warps, num_stages=stages)
        for m, n, warps, stages in choices
    ]


@triton.jit
def place_of(tiles):
    """The row, int64, and the tile of this program: one axis of the grid, for a second one ends
    at 65,535."""
    return (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles


@triton.jit
def load_index(x, b, h, place, size):
    """Numbers int64 at those places of a row of that size; the places themselves without a
    tensor. 0 beyond the end."""
    if x is None:
        number = tl.where(place < size, place, 0).to(tl.int64)
    else:
        number = tl.load(x.ptr + (b * x.b + h * x.h) * size + place, mask=place < size, other=0)
    return number


@triton.jit
def load_count(x, b, h):
    return tl.load(x.ptr + b * x.b + h * x.h)


@triton.jit
def load_rows(x, b, h, token, used, WIDTH: tl.constexpr, BLOCK_E: tl.constexpr):
    """The rows of those tokens [len(token), BLOCK_E]; 0 where they are not used."""
    column = tl.arange(0, BLOCK_E)
    mask = used[:, None]
    if WIDTH < BLOCK_E:
        mask = mask & (column < WIDTH)[None, :]
    pointers = x.ptr + b * x.b + h * x.h + token[:, None] * x.n + column[None, :] * x.e
    return tl.load(pointers, mask=mask, other=0.0)


@triton.jit
def store_rows(x, b, h, token, rows, exists, WIDTH: tl.constexpr, BLOCK_E: tl.constexpr):
    column = tl.arange(0, BLOCK_E)
    mask = exists[:, None]
    if WIDTH < BLOCK_E:
        mask = mask & (column < WIDTH)[None, :]
    pointers = x.ptr + b * x.b + h * x.h + token[:, None] * x.n + column[None, :] * x.e
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
def dot(a, b, ACC: tl.constexpr):
    """Matrix product in full precision; the interpreter would multiply the bits of bfloat16."""
    if INTERPRETED:
        a, b = a.to(ACC), b.to(ACC)
    return tl.dot(a, b, input_precision="ieee", out_dtype=ACC)


@triton.jit
def kept(seed, place, dropout):
    """1 / (1 - dropout) where a weight is kept, 0 where it is dropped; by its place alone."""
    return tl.where(tl.rand(seed, place) >= dropout, 1.0 / (1.0 - dropout), 0.0)
