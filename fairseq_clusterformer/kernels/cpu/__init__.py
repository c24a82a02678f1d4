"""Ranged attention in C++ for CPUs: fused, forward and backward; ``attention.cpp`` has the method.

Beyond its inputs and outputs it takes the keys' gradients in float32 for the rows and heads at
work. Results do not depend on the number of threads.
"""

import ctypes
import os

import torch
from torch import Tensor

from ..layout import Layout
from .library import functions, why_missing

__all__ = ["can_attend", "cpu_attention", "obstacle"]

# Not a fork: the threads of OpenMP do not follow into one, and waiting for them would not end.
_PROCESS = os.getpid()


def can_attend(q: Tensor) -> bool:
    """Whether q is on a CPU, and the kernel can be built."""
    return obstacle(q) is None


def obstacle(q: Tensor) -> tuple[str, str] | None:
    """See :func:`fairseq_clusterformer.kernels.obstacle`."""
    if q.device.type != "cpu":
        problem = f"the kernel is cpu, and q is on {q.device}"
        return problem, "allowed: tensors on cpu; the kernel blocks takes any device"
    if (reason := why_missing(_computed_in(q.dtype), q.size(-1))) is not None:
        return f"the kernel is cpu, which {reason}", "allowed: blocks, reference"
    return None


def _computed_in(dtype: torch.dtype) -> torch.dtype:
    """Not in float16, which not every compiler knows."""
    return torch.float32 if dtype == torch.float16 else dtype


def cpu_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    *,
    key_bias: Tensor | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """See :func:`fairseq_clusterformer.kernels.ranged_attention`."""
    dtype = q.dtype
    q, k, v = (x.to(_computed_in(dtype)) for x in (q, k, v))
    # One number from the global generator names this call's dropout masks, so that the backward
    # pass draws them again and activation checkpointing replays them.
    seed = int(torch.randint(1 << 62, ())) if dropout > 0.0 else 0
    out, lse = _CPUAttention.apply(q, k, v, key_bias, layout, dropout, seed)
    return out.to(dtype), lse


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("strides", ctypes.c_int64 * 3)]


_ORDERS = ("lo", "hi", "query_order", "key_order", "num_queries", "num_keys")
_RESULTS = ("out", "lse", "peak", "total", "d_out", "d_lse", "d_q", "d_k", "d_v", "d_bias")
_TENSORS = ("q", "k", "v", "key_bias", *_ORDERS, *_RESULTS)
_NUMBERS = ("batch", "heads", "length", "slots", "earlier_only", "seed", "threads")


class _Problem(ctypes.Structure):
    """Mirrors Problem in attention.cpp."""

    _fields_ = [
        *((name, _Tensor) for name in _TENSORS),
        *((name, ctypes.c_int64) for name in _NUMBERS),
        ("dropout", ctypes.c_double),
    ]


def _run(direction: str, layout: Layout, dropout: float, seed: int, **tensors: Tensor | None):
    """Call attention.cpp; tensors of q's shape have numbers of a row next to each other."""
    q = tensors["q"]
    batch, heads, length, width = q.shape
    tensors.update({name: getattr(layout, name) for name in _ORDERS})
    problem = _Problem(
        batch=batch,
        heads=heads,
        length=length,
        slots=length if layout.key_order is None else layout.key_order.size(-1),
        earlier_only=layout.earlier_only,
        seed=seed,
        threads=torch.get_num_threads() if os.getpid() == _PROCESS else 1,
        dropout=dropout,
    )
    for name, tensor in tensors.items():
        if tensor is not None:
            strides = tensor.expand(batch, heads, *tensor.shape[2:]).stride()
            strides = (ctypes.c_int64 * 3)(*strides[:3])
            setattr(problem, name, _Tensor(tensor.data_ptr(), strides))
    getattr(functions(q.dtype, width), f"run_{direction}")(ctypes.byref(problem))


def _in_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _like(x: Tensor) -> Tensor:
    """New memory for as many heads, token by token as projections have them."""
    return x.new_empty(x.size(0), x.size(2), x.size(1), x.size(3)).transpose(1, 2)


class _CPUAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, key_bias, layout, dropout, seed):
        q, k, v = map(_in_rows, (q, k, v))
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        bias = None if key_bias is None else key_bias.to(dtype)
        out = _like(q)
        lse, peak, total = (q.new_empty(q.shape[:-1], dtype=dtype) for _ in range(3))
        tensors = {"q": q, "k": k, "v": v, "key_bias": bias, "out": out}
        tensors.update(peak=peak, total=total)
        _run("forward", layout, dropout, seed, lse=lse, **tensors)
        ctx.save_for_backward(*tensors.values())
        ctx.names = tuple(tensors)
        ctx.of_bias = None if key_bias is None else (key_bias.shape, key_bias.dtype)
        ctx.layout, ctx.dropout, ctx.seed = layout, dropout, seed
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out, d_lse):
        tensors = dict(zip(ctx.names, ctx.saved_tensors, strict=True))
        gradients = {f"d_{name}": _like(tensors[name]) for name in "qkv"}
        tensors.update(gradients, d_out=_in_rows(d_out), d_lse=d_lse)
        if ctx.of_bias is not None:
            tensors["d_bias"] = torch.empty_like(tensors["total"])
        _run("backward", ctx.layout, ctx.dropout, ctx.seed, **tensors)
        d_bias = None
        if ctx.of_bias is not None:
            shape, dtype = ctx.of_bias
            d_bias = tensors["d_bias"].sum_to_size(shape).to(dtype)
        return *gradients.values(), d_bias, None, None, None
