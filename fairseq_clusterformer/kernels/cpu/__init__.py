"""Ranged attention in C++ for CPUs: fused, forward and backward; ``attention.cpp`` has the method.

Beyond its inputs and outputs it takes the keys' gradients in float32 for the rows and heads at
work. Results do not depend on the number of threads.
"""

import ctypes
import math
import os
from collections.abc import Sequence

import torch
from torch import Tensor

from ..layout import TENSORS, Call, Own, add_to
from .library import functions, why_missing

__all__ = ["backward", "forward", "obstacle"]

# OpenMP threads do not survive fork(). A forked child runs on one thread, or it would deadlock.
_PROCESS = os.getpid()


def obstacle(q: Tensor) -> tuple[str, str] | None:
    """See :func:`fairseq_clusterformer.kernels.obstacle`."""
    if q.device.type != "cpu":
        problem = f"the kernel is cpu, and q is on {q.device}"
        return problem, "allowed: tensors on cpu; the kernel blocks takes any device"
    if (reason := why_missing(_computed_in(q.dtype), q.size(-1))) is not None:
        return f"the kernel is cpu, which {reason}", "allowed: blocks, reference"
    return None


def _computed_in(dtype: torch.dtype) -> torch.dtype:
    """float16 is computed in float32: not every compiler knows it."""
    return torch.float32 if dtype == torch.float16 else dtype


def _sums_in(q: Tensor) -> torch.dtype:
    return torch.promote_types(q.dtype, torch.float32)


def threads() -> int:
    """How many a kernel may start here."""
    return torch.get_num_threads() if os.getpid() == _PROCESS else 1


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("strides", ctypes.c_int64 * 3)]

    @classmethod
    def of(cls, x: Tensor, batch: int, heads: int) -> "_Tensor":
        """x [B, H, ...], broadcast over batch and heads by strides of 0."""
        strides = x.expand(batch, heads, *x.shape[2:]).stride()[:3]
        return cls(x.data_ptr(), (ctypes.c_int64 * 3)(*strides))


_RESULTS = ("out", "lse", "peak", "total", "d_out", "d_lse", "d_q", "d_k", "d_v", "d_bias")
_OWN = ("own_hidden", "own_drops")
_NUMBERS = ("batch", "heads", "length", "slots", "seed", "threads", "adds", "own")


class _Problem(ctypes.Structure):
    """Mirrors Problem in attention.cpp."""

    _fields_ = [
        *((name, _Tensor) for name in ("q", "k", "v", "key_bias", *TENSORS, *_RESULTS, *_OWN)),
        *((name, ctypes.c_int64) for name in _NUMBERS),
        *((name, ctypes.c_double) for name in ("dropout", "own_bias")),
    ]


def _run(direction: str, call: Call, adds: bool, own: Own | None, **tensors):
    """Run attention.cpp; the last dimension of tensors of q's shape has stride 1."""
    q, seed = tensors["q"], call.seed
    batch, heads, length, width = q.shape
    problem = _Problem(
        batch=batch,
        heads=heads,
        length=length,
        slots=call.layout.slots,
        seed=0 if seed is None else int(seed),
        threads=threads(),
        dropout=call.dropout,
        adds=adds,
        own=own is not None,
        own_bias=0.0 if own is None else own.bias / math.log(2),
    )
    if own is not None:
        tensors |= {"own_hidden": own.hidden, "own_drops": own.drops}
    tensors |= {name: getattr(call.layout, name) for name in TENSORS}
    for name, x in tensors.items():
        if x is not None:
            setattr(problem, name, _Tensor.of(x, batch, heads))
    getattr(functions(q.dtype, width), f"run_{direction}")(ctypes.byref(problem))


def _in_rows(x: Tensor) -> Tensor:
    """x as the kernel reads it."""
    x = x.to(_computed_in(x.dtype))
    return x if x.stride(-1) == 1 else x.contiguous()


def _like(x: Tensor) -> Tensor:
    """New memory of x's shape, with the heads of a token next to each other."""
    return x.new_empty(x.size(0), x.size(2), x.size(1), x.size(3)).transpose(1, 2)


def _inputs(call: Call) -> dict[str, Tensor | None]:
    bias = None if call.key_bias is None else call.key_bias.to(_sums_in(call.q))
    return {"q": _in_rows(call.q), "k": _in_rows(call.k), "v": _in_rows(call.v), "key_bias": bias}


Softmax = tuple[Tensor, Tensor, tuple[Tensor, Tensor]]


def forward(call: Call, before: Softmax | None = None, own: Own | None = None) -> Softmax:
    """See :mod:`..op`. Kept are each query's largest logit and its sum, which are rounded less
    than the log-sum-exp.

    Args:
        before: what this returned for other layouts of the same queries, in the precision that it
            is computed in: these go into one softmax, and its tensors are overwritten.
        own: each query also sees its own key.
    """
    inputs, q, dtype = _inputs(call), call.q, _sums_in(call.q)
    if before is None:
        out = _like(inputs["q"])
        lse, peak, total = (q.new_empty(q.shape[:-1], dtype=dtype) for _ in range(3))
    else:
        out, lse, (peak, total) = before
    results = {"out": out, "lse": lse, "peak": peak, "total": total}
    _run("forward", call, before is not None, own, **inputs, **results)
    return out.to(q.dtype), lse, (peak, total)


def backward(
    call: Call,
    d_out: Tensor,
    d_lse: Tensor | None,
    out: Tensor,
    lse: Tensor,
    kept: tuple[Tensor, Tensor] | None,
    into: Sequence[Tensor] | None = None,
    own: Own | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """See :mod:`..op`. With ``own``, the gradients by way of the own key, too."""
    if kept is None:
        *_, kept = forward(call)
    inputs, key_bias = _inputs(call), call.key_bias
    adds = into is not None and _computed_in(call.q.dtype) == call.q.dtype
    given = into if adds else [_like(inputs[name]) for name in "qkv"]
    gradients = dict(zip(("d_q", "d_k", "d_v"), given, strict=True))
    d_bias = None if key_bias is None else torch.empty_like(lse)
    results = {"out": _in_rows(out), "peak": kept[0], "total": kept[1], "d_lse": d_lse}
    results |= {"d_out": _in_rows(d_out), "d_bias": d_bias, **gradients}
    _run("backward", call, adds, own, **inputs, **results)
    if d_bias is not None:
        d_bias = d_bias.sum_to_size(key_bias.shape).to(key_bias.dtype)
    found = [x.to(call.q.dtype) for x in gradients.values()]
    return *(found if adds else add_to(into, found)), d_bias
