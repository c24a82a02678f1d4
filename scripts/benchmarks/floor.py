"""How fast attention could be at best here: two measured ceilings, and the least work there is.

    ceilings = measure_ceilings("cpu", torch.float32)
    seconds = attention_floor(ceilings, pairs, batch * heads * length, width, torch.float32)

The floor is the least time for computing each visible query-key pair, and for reading and writing
each tensor once. Softmax, masks, routing and sorting are not counted: they are overhead.
"""

from dataclasses import dataclass

import torch

from scripts.benchmarks.common import seconds_of


@dataclass(frozen=True)
class Ceilings:
    """What a machine reached in one precision."""

    operations: float  # floating-point operations per second of a large matrix product
    bytes: float  # bytes per second, read and written, of a large copy


def measure_ceilings(
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    size: int | None = None,
    copy_bytes: int | None = None,
    repeats: int = 10,
) -> Ceilings:
    """Time a product of matrices of ``size`` rows and a copy, which is of more than caches hold;
    the fastest counts."""
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
    run()  # the first call touches the memory
    return min(seconds_of(run, device) for _ in range(repeats))


def attention_floor(
    ceilings: Ceilings, pairs: int, vectors: int, width: int, dtype: torch.dtype
) -> float:
    """Seconds that softmax attention takes at least, forward and backward, for so many visible
    pairs and queries over batch and heads; there are as many keys and values as queries."""
    # A pair is two products of E numbers forward and five backward, of 2 E operations each.
    operations = pairs * width * 2 * (2 + 5)
    # q, k, v and the output; then these four again, a gradient to read and three to write.
    num_bytes = vectors * width * dtype.itemsize * (4 + 8)
    return max(operations / ceilings.operations, num_bytes / ceilings.bytes)
