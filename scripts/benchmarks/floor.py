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
    """What a machine reached in one precision.

    Attributes:
        operations: floating-point operations per second of a large matrix product.
        bytes: bytes per second, read and written, of a large copy.
    """

    operations: float
    bytes: float


def measure_ceilings(
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    size: int | None = None,
    copy_bytes: int | None = None,
    repeats: int = 10,
) -> Ceilings:
    """Time a matrix product and a copy, which is of more than caches hold; the fastest counts.

    Args:
        size: rows and columns of the matrices; default: 2048, on CUDA 8192.
        copy_bytes: that are read, and as many written; default: 256 MiB, on CUDA 2 GiB.
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
    run()  # the first call touches the memory
    return min(seconds_of(run, device) for _ in range(repeats))


def attention_floor(
    ceilings: Ceilings, pairs: int, vectors: int, width: int, dtype: torch.dtype
) -> float:
    """Seconds that softmax attention takes at least, forward and backward.

    Args:
        pairs: visible query-key pairs, over batch and heads. A pair costs two products of E
            numbers forward and five backward; a product is 2 E operations.
        vectors: queries over batch and heads, B H N; there are as many keys and values. Forward
            reads q, k, v and writes the output; backward reads q, k, v, the output and its
            gradient, and writes three gradients.
        width: E.
        dtype: of all tensors.
    """
    operations = pairs * width * 2 * (2 + 5)
    num_bytes = vectors * width * dtype.itemsize * (4 + 8)
    return max(operations / ceilings.operations, num_bytes / ceilings.bytes)
