"""The precision that routing and attention weights are computed in."""

from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor, nn

HALF = (torch.float16, torch.bfloat16)


def at_least_float32(x: Tensor) -> Tensor:
    """x in float32 if it is in half precision, else as it is."""
    return x.float() if x.dtype in HALF else x


def without_autocast(backward: Callable) -> Callable:
    """Decorator of an autograd function's ``backward(ctx, gradient, ...)``.

    Who calls ``loss.backward()`` inside autocast would have its products in half precision, and
    what they are added to in float32.
    """

    @wraps(backward)
    def run(ctx, gradient, *others):
        with torch.autocast(gradient.device.type, enabled=False):
            return backward(ctx, gradient, *others)

    return run


class Float32Buffers(nn.Module):
    """Mixin: its own buffers keep the bits that half precision would drop."""

    def _apply(self, fn, recurse=True):
        before = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)
        for name, value in before.items():
            moved = getattr(self, name)
            if moved.dtype in HALF:
                setattr(self, name, value.to(moved.device))
        return self
