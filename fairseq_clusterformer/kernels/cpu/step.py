"""One token of each row in C++: what it attends to, and what is kept behind it; ``step.cpp`` has
the method. States are changed in place.

Shape letters as in ``step.cpp``: B batch, H heads, J heads of keys, E width, C numbers of an
entry.
G groups of heads of keys share rings, and Q groups of queries read the same ones. L layouts, R
rings of each, P of them that a query reads, W slots of a ring.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .library import can_run, run


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
    """Whether there is a library for such queries; widths are no constants there."""
    return can_run("step", q, width=0)


def step(
    q: Tensor, rings: InRings, sinks: Tensor | None = None, means: InMeans | None = None
) -> Tensor:
    """Values [B, H, 1, E] that queries attend to. All floating point is float32, or float64.

    Args:
        q: [B, H, 1, E].
        sinks: [B, J, S, C], all of them seen; None: there are none.
    """
    batch, heads, _, width = q.shape
    groups, window, entry_width = rings.kept.size(1), *rings.kept.shape[-2:]
    out = q.new_empty(q.shape)
    given: dict[str, Any] = rings._asdict() | {"q": q, "out": out}
    given["own"], given["own_bias"] = rings.own_bias is not None, rings.own_bias or 0.0
    given |= (
        {"near": None}
        if rings.near is None
        else dict(
            zip(("near", "near_ring", "before"), rings.near, strict=True),
            room=rings.near[0].size(-2),
        )
    )
    if sinks is not None:
        given |= {"sinks": sinks, "number_of_sinks": sinks.size(-2)}
    if means is not None:
        chunks, clusters = means.sums.shape[2:4]
        given |= means._asdict() | {"chunks": chunks, "clusters": clusters}
        given["looks"] = means.looked_into.size(2)
    for name in ("kept", "seen", "near", "near_ring", "sums"):  # which are changed
        if given.get(name) is not None and not given[name].is_contiguous():
            raise ValueError(f"{name} is not contiguous; allowed: states as steps return them")
    for name in ("read", "written", "looked_into", "cluster"):  # which are places in memory
        if name in given and (given[name].dtype, len(given[name])) != (torch.long, batch):
            shape = f"{given[name].dtype} {list(given[name].shape)}"
            raise ValueError(f"{name} is {shape}; allowed: int64 with a batch of {batch}")
    # In memory until the end, each as the pointer to it says.
    given = {n: x.contiguous() if isinstance(x, Tensor) else x for n, x in given.items()}
    sizes = {"batch": batch, "heads": heads, "width": width, "entry_width": entry_width}
    sizes |= {"key_heads": groups * rings.kept.size(3), "groups": groups, "window": window}
    sizes |= {"query_groups": rings.read.size(1), "probes": rings.read.size(3)}
    run("step", "step", q.dtype, 0, layouts=rings.written.size(2), **sizes, **given)
    return out
