"""How fast attention could be at best here: two measured ceilings, and the least work there is.

    ceilings = measure_ceilings("cpu", torch.float32)
    pairs = batch * heads * causal_pairs(length, window)
    floor = attention_floor(ceilings, pairs, batch * heads * length, width, torch.float32)

Nothing that computes each visible query-key pair, and reads and writes each tensor once, can be
faster than the floor. Softmax, masks, routing and sorting are not counted: they are overhead.
"""

import time
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Ceilings:
    """What a machine reached in one precision.

    Attributes:
        operations: floating-point operations a second of a large matrix product.
        bytes: bytes a second, read and written, of a large copy.
    """

    operations: float
    bytes: float

    def floor(self, operations: float, num_bytes: float) -> float:
        """Seconds that so much work takes at least: the larger of the two times."""
        return max(operations / self.operations, num_bytes / self.bytes)


def measure_ceilings(
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    size: int | None = None,
    copy_bytes: int | None = None,
    repeats: int = 10,
) -> Ceilings:
    """Time a matrix product and a copy; the fastest of several counts.

    Args:
        device: "cpu" or "cuda".
        dtype: of the matrices and of what is copied.
        size: rows and columns of the matrices; default: 2048, on CUDA 8192.
        copy_bytes: that are read, and as many written; default: 256 MiB, on CUDA 2 GiB, more
            than caches hold.
    """
    on_gpu = device == "cuda"
    size = size or (8192 if on_gpu else 2048)
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    product = torch.empty_like(left)
    seconds = _fastest(lambda: torch.mm(left, right, out=product), device, repeats)
    operations = 2 * size**3 / seconds

    copy_bytes = copy_bytes or (2**31 if on_gpu else 2**28)
    source = torch.ones(copy_bytes // dtype.itemsize, dtype=dtype, device=device)
    target = torch.empty_like(source)
    seconds = _fastest(lambda: target.copy_(source), device, repeats)
    return Ceilings(operations, 2 * copy_bytes / seconds)


def _fastest(run, device: str, repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats + 1):  # the first touches the memory
        begin = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    return best


def causal_pairs(length: int, window: int | None = None) -> int:
    """Query-key pairs of one causal head: each of N queries sees its W latest keys (None: all)."""
    window = length if window is None else min(window, length)
    return window * (window + 1) // 2 + (length - window) * window


def attention_operations(pairs: int, width: int, *, backward: bool = True) -> float:
    """Least floating-point operations of softmax attention.

    Args:
        pairs: visible query-key pairs, over batch and heads.
        width: E. Forward, a pair costs two products of E numbers (2 E operations each); backward,
            five.
    """
    forward = pairs * width * 2 * 2
    return forward * (1 + 2.5) if backward else forward


def attention_bytes(
    vectors: int, width: int, dtype: torch.dtype, *, backward: bool = True
) -> float:
    """Least bytes moved: each input read once and each output written once, in each pass.

    Args:
        vectors: queries over batch and heads, B H N; as many keys and values.
        width: E.
    """
    # forward: q, k, v; out. backward: q, k, v, out, d_out; d_q, d_k, d_v.
    return vectors * width * dtype.itemsize * (12 if backward else 4)


def attention_floor(
    ceilings: Ceilings,
    pairs: int,
    vectors: int,
    width: int,
    dtype: torch.dtype,
    *,
    backward: bool = True,
) -> float:
    """Seconds that attention takes at least; arguments as above."""
    return ceilings.floor(
        attention_operations(pairs, width, backward=backward),
        attention_bytes(vectors, width, dtype, backward=backward),
    )
