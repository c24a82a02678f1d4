"""What the Triton kernels share: how tensors are handed to them and read, and which tiles they
work in."""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

INTERPRETED = tl.constexpr(knobs.runtime.interpret)


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


def precision_of(dtype: torch.dtype) -> str:
    """How tensor cores multiply float32: as three products of TensorFloat32, which lose two to
    four times what float32's own would, or as one where torch allows that (``fp32_precision``)."""
    if dtype == torch.float64:
        return "ieee"
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "tf32x3"


def work_class(length: int, reach: int | None) -> int:
    """What tiles are timed for: powers of 2 of the length, 128 to 8,192, and of the reach, from
    32. 0 where they are not timed, but fixed: see :func:`tuned`."""
    fixed = os.environ.get("CLUSTERFORMER_FIXED_TILES") == "1"
    if INTERPRETED or fixed or torch.are_deterministic_algorithms_enabled():
        return 0
    reach = 0 if reach is None else max(min(reach, length).bit_length(), 5)
    return 32 * min(max(length.bit_length(), 7), 14) + min(reach, 14)


def tuned(tiles: dict[tuple[int, int], list[tuple[int, int, int, int]]]) -> Callable:
    """Decorator of a kernel: its tiles are chosen by timing them once for each kind of work, and
    what was fastest is kept in Triton's cache on disk.

    Other tiles round differently. Training that is to be the same bits every time takes the first
    ones, untimed: with ``CLUSTERFORMER_FIXED_TILES=1`` in the environment, or after
    ``torch.use_deterministic_algorithms(True)``.

    Args:
        tiles: choices of query slots, key slots, warps and stages. The key is the bytes of a
            number and the width of a head (64, 128); a head in several parts has twice a part's.
    """
    choices = {
        tile: triton.Config({"BLOCK_M": tile[0], "BLOCK_N": tile[1]}, *tile[2:])
        for tile in sorted(set().union(*tiles.values()))
    }

    def fitting(_configs, named: dict, **others) -> list[triton.Config]:
        values = named | others
        part = max(values["PART"], 64)
        fit = tiles[values["NUMBER_BYTES"], part if values["WIDTH"] <= part else 2 * part]
        return [choices[tile] for tile in fit[: None if values["work"] else 1]]

    return triton.autotune(
        list(choices.values()),
        key=["WIDTH", "NUMBER_BYTES", "PRECISION", "work"],
        prune_configs_by={"early_config_prune": fitting},
        cache_results=True,
    )


def part_of(width: int, number_bytes: int) -> int:
    """Columns of a head that a program holds at once: a power of 2, as many as leave its threads
    enough of their 255 registers."""
    most = 128 if number_bytes == 2 else 64
    if number_bytes == 4 and width > 64:  # held as two numbers each
        most = 32
    return min(max(16, triton.next_power_of_2(width)), most)


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
def load_rows(x, b, h, token, used, part, WIDTH: tl.constexpr, PART: tl.constexpr):
    """A part of the rows of those tokens [len(token), PART]; 0 where they are not used."""
    column = part * PART + tl.arange(0, PART)
    mask = used[:, None]
    if WIDTH % PART != 0:
        mask = mask & (column < WIDTH)[None, :]
    pointers = x.ptr + b * x.b + h * x.h + token[:, None] * x.n + column[None, :] * x.e
    return tl.load(pointers, mask=mask, other=0.0)


@triton.jit
def store_rows(x, b, h, token, rows, exists, part, WIDTH: tl.constexpr, PART: tl.constexpr):
    column = part * PART + tl.arange(0, PART)
    mask = exists[:, None]
    if WIDTH % PART != 0:
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
def dot(a, b, ACC: tl.constexpr, PRECISION: tl.constexpr):
    """Matrix product; the interpreter would multiply the bits of bfloat16."""
    if INTERPRETED:
        a, b = a.to(ACC), b.to(ACC)
    return tl.dot(a, b, input_precision=PRECISION, out_dtype=ACC)


@triton.jit
def products(
    x, x_token, x_used, x_first, y, y_token, y_used, y_first, b, h,
    WIDTH: tl.constexpr, PART: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Inner products of rows of x and y [len(x_token), len(y_token)], whose first parts are
    loaded, and used where they are all. Else a loop, for then registers hold one part at a time.
    """
    if WIDTH <= PART:
        total = dot(x_first, tl.trans(y_first), ACC, PRECISION)
    else:
        total = tl.zeros([x_token.shape[0], y_token.shape[0]], ACC)
        for part in tl.range(0, (WIDTH + PART - 1) // PART):
            left = load_rows(x, b, h, x_token, x_used, part, WIDTH, PART)
            right = load_rows(y, b, h, y_token, y_used, part, WIDTH, PART)
            total += dot(left, tl.trans(right), ACC, PRECISION)
    return total


@triton.jit
def kept(seed, query, key, dropout):
    """1 / (1 - dropout) where a weight is kept, 0 where it is dropped; by its place alone. Seven
    rounds of Philox are the fewest that pass all tests of randomness (Salmon et al., 2011)."""
    low, high = (query * 0 + key).to(tl.uint32), (query + key * 0).to(tl.uint32)
    bits, _, _, _ = tl.philox(seed, low, high, low * 0, low * 0, n_rounds=7)
    uniform = tl.uint_to_uniform_float(bits)
    return tl.where(uniform >= dropout, 1.0 / (1.0 - dropout), 0.0)
