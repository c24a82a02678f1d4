"""One token of each row in C++: what it attends to, and what is kept behind it; ``step.cpp`` has
the method."""

from typing import Any

import torch
from torch import Tensor

from .library import can_run, run

#: sizes of the struct in ``step.cpp``: each is that of a dimension of a tensor, 0 without it
_SIZES = {
    "batch": ("q", 0),
    "heads": ("q", 1),
    "width": ("q", 3),
    "groups": ("kept", 1),
    "window": ("kept", -2),
    "entry_width": ("kept", -1),
    "query_groups": ("read", 1),
    "layouts": ("read", 2),
    "probes": ("read", 3),
    "room": ("near", -2),
    "number_of_sinks": ("sinks", -2),
    "chunks": ("sums", 2),
    "clusters": ("sums", 3),
    "looks": ("looked_into", 2),
}


def can_step(q: Tensor) -> bool:
    """Whether there is a library for such queries; widths are no constants there."""
    return can_run("step", q, width=0)


def step(q: Tensor, **given: Any) -> Tensor:
    """Values [B, H, 1, E] that queries [B, H, 1, E] attend to; states are changed in place.

    ``given`` are fields of the struct in ``step.cpp``, which says what they are, but for sizes.
    Dimensions of length 1 may stand between, and heads of keys J be divided into G groups. All
    floating point is float32, or float64. Raises ValueError: a state that is no memory of its own,
    or places that are no int64 of this batch.
    """
    given |= {"q": q, "out": q.new_empty(q.shape)}
    for name in ("kept", "seen", "near", "near_ring", "sums"):  # which are changed
        if name in given and not given[name].is_contiguous():
            raise ValueError(f"{name} is not contiguous; allowed: states as steps return them")
    for name in ("read", "written", "looked_into", "cluster"):  # which are places in memory
        if name in given and (given[name].dtype, len(given[name])) != (torch.long, len(q)):
            shape = f"{given[name].dtype} {list(given[name].shape)}"
            raise ValueError(f"{name} is {shape}; allowed: int64 with a batch of {len(q)}")
    sizes = {size: given[of].size(dim) for size, (of, dim) in _SIZES.items() if of in given}
    sizes["key_heads"] = sizes["groups"] * given["kept"].size(3)
    # In memory until the end, each as the pointer to it says.
    given = {n: x.contiguous() if isinstance(x, Tensor) else x for n, x in given.items()}
    run("step", "step", q.dtype, 0, **sizes, **given)
    return given["out"]
