"""The precision that routing and attention weights are computed in."""

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)


def at_least_float32(x: Tensor) -> Tensor:
    """x in float32 if it is in half precision, else as it is."""
    return x.float() if x.dtype in HALF else x
