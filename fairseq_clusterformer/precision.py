"""The precision that routing and attention weights are computed in."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import wraps

import torch
from torch import Tensor, nn

from .products import linear

HALF = (torch.float16, torch.bfloat16)
# How float32 matrix products are computed, on each kind of device.
_PRODUCTS = {"cuda": torch.backends.cuda.matmul, "cpu": torch.backends.mkldnn.matmul}


def at_least_float32(x: Tensor) -> Tensor:
    """x in float32 if it is in half precision, else as it is."""
    return x.float() if x.dtype in HALF else x


def is_exact(x: Tensor) -> bool:
    """Whether x, if it is a matrix product, was computed in full float32 or float64: false in
    half precision, and for float32 where products may be of TF32 or bfloat16."""
    if x.dtype == torch.float32:
        return not _reduced(x.device.type)
    return x.dtype not in HALF


class full_float32:  # noqa: N801  a context manager, as torch.no_grad
    """Context, or decorator, in which products of float32 matrices are computed in float32 even
    where TF32 or bfloat16 is allowed, and autocast is off. The last to leave, of all threads,
    restores what was. A compiled graph cannot hold the setting, and breaks where it is needed."""

    _lock, _users, _before = threading.Lock(), 0, ExitStack()  # of all, as the setting is

    def __enter__(self) -> None:
        self._within = ExitStack()
        for device in _PRODUCTS:
            if torch.is_autocast_enabled(device):
                self._within.enter_context(torch.autocast(device, enabled=False))
        if not torch.compiler.is_compiling() or _any_reduced():
            self._forbid_less()
            self._within.callback(self._restore)

    def __exit__(self, *error) -> None:
        self._within.close()

    def __call__(self, function: Callable) -> Callable:
        def within(*args, **kwargs):
            with full_float32():
                return function(*args, **kwargs)

        left_out = not_compiled(within)

        @wraps(function)
        def run(*args, **kwargs):
            if _any_reduced():
                return left_out(*args, **kwargs)
            # a step of decoding enters often, where there is nothing to set
            idle = not (self._users or any(map(torch.is_autocast_enabled, _PRODUCTS)))
            return (function if idle else within)(*args, **kwargs)

        return run

    @classmethod
    def _forbid_less(cls) -> None:
        with cls._lock:
            cls._users += 1
            if cls._users > 1 or not _any_reduced():
                return
            for of_device in _PRODUCTS.values():
                precision = of_device.fp32_precision
                cls._before.callback(setattr, of_device, "fp32_precision", precision)
            with suppress(RuntimeError):  # of what was set by the newer interface
                older = torch.get_float32_matmul_precision()
                torch.set_float32_matmul_precision("highest")
                cls._before.callback(torch.set_float32_matmul_precision, older)
            for of_device in _PRODUCTS.values():
                of_device.fp32_precision = "ieee"

    @classmethod
    def _restore(cls) -> None:
        with cls._lock:
            cls._users -= 1
            if not cls._users:
                cls._before.close()


def autocast_off(x: Tensor) -> AbstractContextManager:
    """Context without autocast on a tensor's device, and nothing where there is none."""
    on = torch.is_autocast_enabled(x.device.type)
    return torch.autocast(x.device.type, enabled=False) if on else nullcontext()


def not_compiled(function: Callable) -> Callable:
    """Decorator: what is left out of a compiled graph, which breaks there once."""

    def left_out(*args, **kwargs):
        return torch.compiler.disable(function)(*args, **kwargs)

    # What the compiler's own decorator says; it takes long to import.
    left_out._torchdynamo_disable = True

    @wraps(function)
    def run(*args, **kwargs):
        return (left_out if torch.compiler.is_compiling() else function)(*args, **kwargs)

    return run


def _reduced(device: str) -> bool:
    """Whether float32 products on such a device may be of less than float32."""
    return device in _PRODUCTS and _PRODUCTS[device].fp32_precision not in ("ieee", "none")


# as torch.compiler.assume_constant_result, which would import the compiler
_reduced._dynamo_marked_constant = True


def _any_reduced() -> bool:
    return _reduced("cuda") or _reduced("cpu")


def exact_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``linear`` in float32 or more; the backward pass keeps what it needs as it was given."""
    if x.dtype == weight.dtype not in HALF and not torch.is_autocast_enabled(x.device.type):
        return linear(x, weight, bias)
    if x.dtype in HALF and not torch.compiler.is_compiling():
        return _ExactLinear.apply(x, weight, bias)
    return _linear(x, weight, bias)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    x = at_least_float32(x)
    with autocast_off(x):
        bias = None if bias is None else bias.to(x.dtype)
        return nn.functional.linear(x, weight.to(x.dtype), bias)


class _ExactLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        ctx.of_bias = None if bias is None else bias.dtype
        return _linear(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out):
        x, weight = ctx.saved_tensors
        d_x = d_weight = d_bias = None
        with autocast_off(d_out):
            if ctx.needs_input_grad[0]:
                d_x = (d_out @ weight.to(d_out.dtype)).to(x.dtype)
            d_out = d_out.flatten(0, -2)
            if ctx.needs_input_grad[1]:
                d_weight = (d_out.T @ x.flatten(0, -2).to(d_out.dtype)).to(weight.dtype)
            if ctx.needs_input_grad[2]:
                d_bias = d_out.sum(0).to(ctx.of_bias)
        return d_x, d_weight, d_bias


class ExactLinear(nn.Linear):
    """A linear map in float32 or more. What quantises ``nn.Linear`` alone leaves it as it is."""

    def forward(self, x: Tensor) -> Tensor:
        return exact_linear(x, self.weight, self.bias)


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
