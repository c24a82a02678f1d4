"""Ranged attention in C++ for CPUs: fused, forward and backward; ``attention.cpp`` has the method.

Beyond its inputs and outputs it takes the keys' gradients in float32 for the rows and heads at
work. Results do not depend on the number of threads.

This folder has all C++ of the project, since it shares registers, scores and the build.
``attention`` attends and ``step`` decodes. ``shares`` assigns tokens to clusters, and is called by
``clustering/shares.py``; ``scouts`` computes what the loss of the kind ``taught`` needs, and is
called by ``attention/kinds/taught/scouts.py``.
"""

import math

import torch
from torch import Tensor

from ..kernel import Carry, Gradients, Kernel, empty_like
from ..layout import TENSORS, Call
from .library import run, why_missing


def _computed_in(dtype: torch.dtype) -> torch.dtype:
    """float16 is computed in float32: not every compiler knows it."""
    return torch.float32 if dtype == torch.float16 else dtype


def _sums_in(q: Tensor) -> torch.dtype:
    return torch.promote_types(q.dtype, torch.float32)


def _run(direction: str, call: Call, adds: bool, **tensors: Tensor | None) -> None:
    """Run attention.cpp; the last dimension of tensors of q's shape has stride 1."""
    q, own = tensors["q"], call.own
    batch, heads, length, width = q.shape
    if own is not None:
        tensors |= {"own_hidden": own.hidden, "own_drops": own.drops}
    run(
        "attention",
        direction,
        q.dtype,
        width,
        batch=batch,
        heads=heads,
        length=length,
        slots=call.layout.slots,
        seed=0 if call.seed is None else int(call.seed),
        dropout=call.dropout,
        adds=adds,
        own=own is not None,
        own_bias=0.0 if own is None else own.bias / math.log(2),
        **{name: getattr(call.layout, name) for name in TENSORS},
        **tensors,
    )


def _in_rows(x: Tensor) -> Tensor:
    """x as the kernel reads it."""
    x = x.to(_computed_in(x.dtype))
    return x if x.stride(-1) == 1 else x.contiguous()


def _inputs(call: Call) -> dict[str, Tensor | None]:
    bias = None if call.key_bias is None else call.key_bias.to(_sums_in(call.q))
    return {"q": _in_rows(call.q), "k": _in_rows(call.k), "v": _in_rows(call.v), "key_bias": bias}


class Cpu(Kernel):
    """See :class:`..kernel.Kernel`."""

    def obstacle(self, q: Tensor) -> tuple[str, str] | None:
        if q.device.type != "cpu":
            problem = f"the kernel is cpu, and q is on {q.device}"
            return problem, "allowed: tensors on cpu; the kernel blocks takes any device"
        if (reason := why_missing(_computed_in(q.dtype), q.size(-1))) is not None:
            return f"the kernel is cpu, which {reason}", "allowed: blocks, reference"
        return None

    def forward(self, call: Call, carry: Carry | None = None) -> Carry:
        """The carry of several calls is to be in the precision that q is computed in."""
        inputs, q, dtype, adds = _inputs(call), call.q, _sums_in(call.q), carry is not None
        if carry is None:
            numbers = (q.new_empty(q.shape[:-1], dtype=dtype) for _ in range(3))
            carry = Carry(empty_like(inputs["q"]), *numbers)
        _run("forward", call, adds, **inputs, **carry._asdict())
        return carry._replace(out=carry.out.to(q.dtype))

    def backward(self, call, wanted, carry, into=None) -> Gradients:
        inputs, key_bias = _inputs(call), call.key_bias
        peak, total = carry.in_log2()
        adds = into is not None and _computed_in(call.q.dtype) == call.q.dtype
        found = into if adds else [empty_like(inputs[name]) for name in "qkv"]
        d_bias = None if key_bias is None else torch.empty_like(carry.lse)
        results = {"out": _in_rows(carry.out), "peak": peak, "total": total, "d_bias": d_bias}
        results |= {"d_out": _in_rows(wanted.out), "d_lse": wanted.lse}
        results |= dict(zip(("d_q", "d_k", "d_v"), found, strict=True))
        _run("backward", call, adds, **inputs, **results)
        if d_bias is not None:
            d_bias = d_bias.sum_to_size(key_bias.shape).to(key_bias.dtype)
        gradients = Gradients(*(x.to(call.q.dtype) for x in found), d_bias)
        return gradients if adds else gradients.added(into)
