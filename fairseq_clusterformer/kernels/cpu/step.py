"""One token of each row in C++: what it attends to, and what is kept behind it; ``step.cpp`` has
the method. States are changed in place.

Shape letters as in ``step.cpp``: B batch, H heads, J heads of keys, G groups of these that share
rings, Q groups of queries that read the same rings, E width, L layouts, R rings of each, P of them
that a query reads, W slots of a ring, C numbers of an entry.
"""

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from . import threads
from .library import functions, why_missing

_DTYPES = torch.float32, torch.float64
_ARRAYS = (
    "q entry out kept seen read written near near_ring before sinks sums looked_into cluster "
    "since ends"
).split()
_NUMBERS = (
    "batch heads key_heads groups query_groups width entry_width layouts rings probes window room "
    "number_of_sinks clusters chunks looks own threads"
).split()


class _Step(ctypes.Structure):
    """Mirrors Step in step.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in _ARRAYS),
        *((name, ctypes.c_int64) for name in _NUMBERS),
        ("own_bias", ctypes.c_double),
    ]


class InRings(NamedTuple):
    """Keys in rings, those near, and the token's own, for :func:`step`.

    Attributes:
        entry: of the token, [B, G, 1, J / G, 1, C]: its key, a bias if there are any, its value.
        kept: [B, G, L * R, J / G, W, C].
        seen: tokens that each ring was given, int64 [B, G, L * R].
        read, written: rings that are read, int64 [B, Q, L, P], and that take the token [B, G, L].
        rings: R.
        own_bias: of the token's own key; None: it is seen in its ring alone.
        near: entries [B, G, J / G, M, C], in which rings they will be, int64 [B, G, L, M], and how
            many tokens there were, int64 [B, 1]; None: a key enters its ring at once.
    """

    entry: Tensor
    kept: Tensor
    seen: Tensor
    read: Tensor
    written: Tensor
    rings: int
    own_bias: float | None
    near: tuple[Tensor, Tensor, Tensor] | None


class InMeans(NamedTuple):
    """Sums of clusters, for :func:`step`.

    Attributes:
        sums: [B, J, chunks, K, 2 E + 1].
        looked_into: clusters of which a query sees no mean, int64 [B, H, P].
        cluster: of the token's keys, int64 [B, J].
        since, ends: the chunk that it counts from, and above 0 if its own ends, int64 [B].
    """

    sums: Tensor
    looked_into: Tensor
    cluster: Tensor
    since: Tensor
    ends: Tensor


def can_step(q: Tensor) -> bool:
    """Whether there is a library for such queries."""
    known = q.device.type == "cpu" and q.dtype in _DTYPES
    return known and why_missing(q.dtype, 0, "step") is None  # widths are no constants there


def step(
    q: Tensor, rings: InRings, sinks: Tensor | None = None, means: InMeans | None = None
) -> Tensor:
    """Values [B, H, 1, E] that queries attend to. All floating point is float32, or float64.

    Args:
        q: [B, H, 1, E].
        sinks: [B, J, S, C], all of them seen; None: there are none.
    """
    batch, heads, _, width = q.shape
    groups, layouts, window = rings.kept.size(1), rings.written.size(2), rings.kept.size(-2)
    out = q.new_empty(q.shape)
    arrays = {"q": q, "out": out, "entry": rings.entry, "kept": rings.kept, "seen": rings.seen}
    arrays |= {"read": rings.read, "written": rings.written}
    numbers = {
        "batch": batch,
        "heads": heads,
        "key_heads": groups * rings.kept.size(3),
        "groups": groups,
        "query_groups": rings.read.size(1),
        "width": width,
        "entry_width": rings.kept.size(-1),
        "layouts": layouts,
        "rings": rings.rings,
        "probes": rings.read.size(3),
        "window": window,
        "own": rings.own_bias is not None,
        "threads": threads(),
    }
    if rings.near is not None:
        arrays |= dict(zip(("near", "near_ring", "before"), rings.near, strict=True))
        numbers["room"] = rings.near[0].size(-2)
    if sinks is not None:
        arrays["sinks"], numbers["number_of_sinks"] = sinks, sinks.size(-2)
    if means is not None:
        arrays |= means._asdict()
        numbers["chunks"], numbers["clusters"] = means.sums.shape[2:4]
        numbers["looks"] = means.looked_into.size(2)
    for name in ("kept", "seen", "near", "near_ring", "sums"):  # which are changed
        if name in arrays and not arrays[name].is_contiguous():
            raise ValueError(f"{name} is not contiguous; allowed: states as steps return them")
    for name in ("read", "written", "looked_into", "cluster"):  # which are places in memory
        if name in arrays and (arrays[name].dtype, len(arrays[name])) != (torch.long, batch):
            shape = f"{arrays[name].dtype} {list(arrays[name].shape)}"
            raise ValueError(f"{name} is {shape}; allowed: int64 with a batch of {batch}")
    arrays = {name: t.contiguous() for name, t in arrays.items()}  # in memory until the end
    problem = _Step(**{name: t.data_ptr() for name, t in arrays.items()}, **numbers)
    problem.own_bias = rings.own_bias or 0.0
    functions(q.dtype, 0, "step").run_step(ctypes.byref(problem))
    return out
