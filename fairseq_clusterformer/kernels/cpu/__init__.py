"""Ranged attention in C++ for CPUs: ``attention.cpp``, fused, forward and backward, and
``step.cpp``, one token in decoding. Results do not depend on the number of threads.

This folder has all C++ of the project, since it shares registers, scores and the build: ``shares``
is for ``clustering/shares.py``, ``scouts`` and ``means`` for ``attention/kinds/taught``.
"""

import math
from typing import Any

import torch
from torch import Tensor

from ...precision import at_least_float32
from ..kernel import LOG2_E, TENSORS, Call, Carry, Gradients, Kernel, Listed, empty_like
from .library import can_run, run, why_missing  # noqa: F401


def _given(call: Call, adds: bool) -> dict[str, Any]:
    """Fields of the struct in attention.cpp that are the call's."""
    layout, own = call.layout, call.own
    given = {name: getattr(layout, name) for name in TENSORS}
    given |= {name: at_least_float32(x) for name, x in zip("qkv", call[:3], strict=True)}
    given |= {"slots": layout.slots, "dropout": call.dropout, "adds": adds}
    given["key_bias"] = call.key_bias
    if call.seed is not None:
        given["seed"] = int(call.seed)
    if own is not None:
        given |= {"own": True, "own_bias": own.bias / math.log(2)}
        given |= {"own_hidden": own.hidden, "own_drops": own.drops}
    return given


class Cpu(Kernel):
    def obstacle(self, q: Tensor) -> tuple[str, str] | None:
        if q.device.type != "cpu":
            problem = f"the kernel is cpu, and q is on {q.device}"
            return problem, "allowed: tensors on cpu; the kernel blocks takes any device"
        dtype = torch.promote_types(q.dtype, torch.float32)
        if (reason := why_missing(dtype, q.size(-1))) is not None:
            return f"the kernel is cpu, which {reason}", "allowed: blocks, reference"
        return None

    def forward(self, call: Call, carry: Carry | None = None) -> Carry:
        given = _given(call, adds=carry is not None)
        q = given["q"]
        if carry is None:
            carry = Carry(empty_like(q), *(q.new_empty(q.shape[:-1]) for _ in range(3)))
        run("attention", "forward", q.dtype, q.size(-1), **given, **carry._asdict())
        return carry

    def backward(self, call, d_out, d_lse, carry, into=None) -> Gradients:
        given, peak, total = _given(call, adds=into is not None), carry.peak, carry.total
        if peak is None:  # as if one key had all the weight
            peak, total = carry.lse * LOG2_E, carry.lse.isfinite().to(carry.lse.dtype)
        if into is None:
            q, *others = (empty_like(given[name]) for name in "qkv")
            into = q, *(x.zero_() for x in others)  # a key has a gradient of each segment
        d_bias = None if call.key_bias is None else torch.zeros_like(carry.lse)
        results = dict(zip(("d_q", "d_k", "d_v"), into, strict=True))
        results |= {"out": carry.out, "peak": peak, "total": total}
        results |= {"d_out": d_out, "d_lse": d_lse, "d_bias": d_bias}
        q = given["q"]
        run("attention", "backward", q.dtype, q.size(-1), **given, **results)
        if d_bias is not None:
            d_bias = d_bias.sum_to_size(call.key_bias.shape).to(call.key_bias.dtype)
        return Gradients(*into, d_bias)


def index(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    lists: Listed,
    number: int,
    slack: float,
    with_rest: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor | None]:
    """What :func:`~fairseq_clusterformer.kernels.attend.largest` does; ``slack``: by how much
    rounding may change a logit, to one of size 1."""
    least, probes = q.new_empty(q.shape[:3]), lists.queries.size(-1)
    rest = q.new_empty(*q.shape[:3], probes) if with_rest else None
    out, lse = (None, None) if v is None else (empty_like(q), torch.empty_like(least))
    given = {"key_heads": k.size(1), "groups": lists.keys.size(1), "clusters": lists.number}
    given |= {"probes": probes, "sides": lists.places.size(1) // 2, "number": number}
    given |= {"queries": lists.queries, "keys": lists.keys, "places": lists.places}
    given |= {"out": out, "lse": lse, "least": least, "rest": rest, "tokens": k.size(2)}
    given |= {"key_bias": lists.key_bias, "slack": slack}
    run("index", "index", q.dtype, q.size(-1), q=q, k=k, v=v, **given)
    return out, lse, least, rest


def means(
    q: Tensor, sums: Tensor, chunk: Tensor, looked: Tensor, rest: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Values and log-sum-exp of queries [B, H, N, E] that see means, without gradients: those of
    the sums [B, J, M, K, 2 E + 1] of the chunk of each, int64 [B, N]; nothing in chunk M. The mean
    of each cluster ``looked`` into [B, H, N, P] has the logit ``rest``; None: it is hidden."""
    q = at_least_float32(q)
    given = {"key_heads": sums.size(1), "chunks": sums.size(2), "clusters": sums.size(3)}
    given |= {"chunk": chunk.unsqueeze(1), "looked": looked, "probes": looked.size(-1)}
    given |= {"sums": sums.flatten(2, 3), "out": empty_like(q), "lse": q.new_empty(q.shape[:3])}
    run("means", "means", q.dtype, q.size(-1), q=q, rest=rest, **given)
    return given["out"], given["lse"]


#: sizes of the struct in ``step.cpp``, each that of a tensor's dimension, 0 without it
_SIZES = {
    "kept": {"groups": 1, "window": -2, "entry_width": -1},
    "read": {"query_groups": 1, "layouts": 2, "probes": 3},
    "near": {"room": -2},
    "sinks": {"number_of_sinks": -2},
    "sums": {"chunks": 2, "clusters": 3},
}


def step(q: Tensor, **given: Any) -> Tensor:
    """Values [B, H, 1, E] that queries [B, H, 1, E] attend to; states are changed in place.
    ``given`` are the fields of ``step.cpp``'s struct but sizes; dimensions of length 1 may stand
    between, and J be divided into G groups. All floating point is float32, or float64. Raises
    ValueError: a state that is no memory of its own, or places that are no int64 of this batch."""
    given |= {"q": q, "out": q.new_empty(q.shape)}
    for name in ("kept", "seen", "near", "near_ring", "sums", "lists"):
        if name in given and not given[name].is_contiguous():
            raise ValueError(f"{name} is not contiguous; allowed: states as steps return them")
    for name in ("read", "written", "place"):  # places in memory
        if name in given and (given[name].dtype, given[name].size(0)) != (torch.long, q.size(0)):
            shape = f"{given[name].dtype} {list(given[name].shape)}"
            raise ValueError(f"{name} is {shape}; allowed: int64 with a batch of {q.size(0)}")
    if "lists" in given and given["lists"].dtype != torch.int32:
        raise ValueError(f"lists is {given['lists'].dtype}; allowed: int32, as steps return them")
    known = ((given[of], dims) for of, dims in _SIZES.items() if of in given)
    sizes = {size: x.size(dim) for x, dims in known for size, dim in dims.items()}
    sizes["key_heads"] = sizes["groups"] * given["kept"].size(3)
    run("step", "step", q.dtype, q.size(-1), **sizes, **given)
    return given["out"]
