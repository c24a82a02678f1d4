"""Which kernel attends."""

import logging
from functools import cache

from torch import Tensor

from .blocks import Blocks
from .cpu import Cpu
from .kernel import Kernel
from .reference import Reference
from .triton import Triton

logger = logging.getLogger(__name__)
KERNELS: dict[str, Kernel] = {
    "reference": Reference(),
    "blocks": Blocks(),
    "triton": Triton(),
    "cpu": Cpu(),
}
FASTEST = {"cpu": "cpu", "cuda": "triton"}
"""What "auto" takes on a device, unless there is an obstacle."""


def chosen(impl: str, q: Tensor) -> str:
    """The name of the implementation that attends q.

    "auto" takes the fastest one on q's device, or blocks if that one has an obstacle, which is
    logged once. Raises ValueError: an unknown name, or an obstacle.
    """
    if impl == "auto":
        impl = FASTEST.get(q.device.type, "blocks")
        if (found := KERNELS[impl].obstacle(q)) is None:
            return impl
        _warn(found[0])
        return "blocks"
    if impl not in KERNELS:
        raise ValueError(f"impl is {impl!r}; allowed: auto, {', '.join(KERNELS)}")
    if (found := KERNELS[impl].obstacle(q)) is not None:
        raise ValueError("; ".join(found))
    return impl


@cache
def _warn(problem: str) -> None:
    logger.warning("%s; blocks takes its place", problem)
