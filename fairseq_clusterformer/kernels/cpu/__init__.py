"""Ranged attention in C++ for CPUs: fused, forward and backward; ``attention.cpp`` has the method.

Beyond its inputs and outputs it takes the keys' gradients in float32 for the rows and heads at
work. Results do not depend on the number of threads.

This folder has all C++ of the project, since it shares registers, scores and the build.
``attention`` attends and ``step`` decodes. ``shares`` assigns tokens to clusters, and is called by
``clustering/shares.py``; ``scouts`` computes what the loss of the kind ``taught`` needs, and is
called by ``attention/kinds/taught/scouts.py``.
"""

import math
from typing import Any

import torch
from torch import Tensor

from ...precision import at_least_float32
from ..kernel import LOG2_E, Carry, Gradients, Kernel, empty_like
from ..layout import TENSORS, Call
from .library import run, why_missing


def _in_rows(x: Tensor) -> Tensor:
    """x as the kernel reads it: in float32 or float64, the last dimension with stride 1."""
    x = at_least_float32(x)
    return x if x.stride(-1) == 1 else x.contiguous()


def _given(call: Call, adds: bool) -> dict[str, Any]:
    """Fields of the struct in attention.cpp that are the call's."""
    layout, own = call.layout, call.own
    given = {name: getattr(layout, name) for name in TENSORS}
    given |= {name: _in_rows(x) for name, x in zip("qkv", call[:3], strict=True)}
    given |= dict(zip(("batch", "heads", "length"), call.q.shape, strict=False))
    given |= {"slots": layout.slots, "dropout": call.dropout, "adds": adds}
    if call.key_bias is not None:
        given["key_bias"] = call.key_bias.to(given["q"].dtype)
    if call.seed is not None:
        given["seed"] = int(call.seed)
    if own is not None:
        given |= {"own": True, "own_bias": own.bias / math.log(2)}
        given |= {"own_hidden": own.hidden, "own_drops": own.drops}
    return given


def _run(direction: str, given: dict[str, Any], **results: Tensor | None) -> None:
    q = given["q"]
    run("attention", direction, q.dtype, q.size(-1), **given, **results)


class Cpu(Kernel):
    """See :class:`..kernel.Kernel`."""

    def obstacle(self, q: Tensor) -> tuple[str, str] | None:
        if q.device.type != "cpu":
            problem = f"the kernel is cpu, and q is on {q.device}"
            return problem, "allowed: tensors on cpu; the kernel blocks takes any device"
        if (reason := why_missing(at_least_float32(q[:0]).dtype, q.size(-1))) is not None:
            return f"the kernel is cpu, which {reason}", "allowed: blocks, reference"
        return None

    def forward(self, call: Call, carry: Carry | None = None) -> Carry:
        given = _given(call, adds=carry is not None)
        if carry is None:
            numbers = (given["q"].new_empty(call.q.shape[:-1]) for _ in range(3))
            carry = Carry(empty_like(given["q"]), *numbers)
        _run("forward", given, **carry._asdict())
        return carry

    def backward(self, call, d_out, d_lse, carry, into=None) -> Gradients:
        given, peak, total = _given(call, adds=into is not None), carry.peak, carry.total
        if peak is None:  # as if one key had all the weight
            peak, total = carry.lse * LOG2_E, carry.lse.isfinite().to(carry.lse.dtype)
        found = [empty_like(given[name]) for name in "qkv"] if into is None else into
        d_bias = None if call.key_bias is None else torch.empty_like(carry.lse)
        results = dict(zip(("d_q", "d_k", "d_v"), found, strict=True))
        results |= {"out": _in_rows(carry.out), "peak": peak, "total": total, "d_bias": d_bias}
        _run("backward", given, d_out=_in_rows(d_out), d_lse=d_lse, **results)
        if d_bias is not None:
            d_bias = d_bias.sum_to_size(call.key_bias.shape).to(call.key_bias.dtype)
        return Gradients(*found, d_bias)
