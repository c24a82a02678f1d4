"""What scouts find in C++: nothing of scouts by tokens, or of tokens by clusters, is kept.
``scouts.cpp`` has the method. Results do not depend on the number of threads.

Shape letters: B batch, H heads, J heads of keys that route, N tokens, S scouts, W width of a head,
R width of what routes, K clusters.
"""

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from . import _Tensor, threads
from .library import functions, why_missing
from .shares import Scoring, _Scores

_TENSORS = (
    "q shares k key_order log_held lands chance peak total d_lands d_chance "
    "d_x d_shares d_log_held"
).split()


class _Scouting(ctypes.Structure):
    """Mirrors Scouting in scouts.cpp."""

    _fields_ = [
        ("of", _Scores),
        *((name, _Tensor) for name in _TENSORS),
        *((name, ctypes.c_void_p) for name in ("lo", "hi", "d_vectors")),
        *((name, ctypes.c_int64) for name in "heads scouts width ranges threads".split()),
    ]


class Looking(NamedTuple):
    """Scouts, and the keys that they see.

    Attributes:
        q, shares: of scouts, [B, H, S, W] and [B, H, S, K].
        k: [B, H, N, W]; the last dimension of these three has stride 1.
        scoring: of what routes keys [B, J, N, R]; offsets are the logs of the clusters' masses.
        log_held: of how surely each key is held [B, J, N]; None: all are.
        key_order: token at each key slot, int64 [B, 1 or H, N] (1 unless J is H); None: identity.
        lo, hi: key slots that scouts see, int64 [ranges, B, H, S].

    Floating point alike, float32 or float64.
    """

    q: Tensor
    shares: Tensor
    k: Tensor
    scoring: Scoring
    log_held: Tensor | None
    key_order: Tensor | None
    lo: Tensor
    hi: Tensor


def can_find(x: Tensor) -> bool:
    """Whether there is a library for such x, which routes keys and can be scored."""
    return why_missing(x.dtype, x.size(-1), "scouts") is None


def find(given: Looking) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What each scout's attention finds, what all that it sees has, and the largest logit and the
    sum of its softmax; [B, H, S]."""
    results = [torch.empty_like(given.lo[0], dtype=given.q.dtype) for _ in range(4)]
    _run("scouts", given, **dict(zip(("lands", "chance", "peak", "total"), results, strict=True)))
    return tuple(results)


def backward(
    given: Looking, peak: Tensor, total: Tensor, d_lands: Tensor, d_chance: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of the scouts' shares, of what routes keys, of the vectors that score it, and of
    ``log_held``; also by way of the clusters' masses."""
    d_shares = torch.empty_like(given.shares)
    d_x, d_vectors = torch.zeros_like(given.scoring.x), torch.empty_like(given.scoring.vectors)
    d_held = None if given.log_held is None else torch.zeros_like(given.log_held)
    tensors = {"peak": peak, "total": total, "d_lands": d_lands, "d_chance": d_chance}
    tensors |= {"d_shares": d_shares, "d_x": d_x, "d_log_held": d_held}
    _run("scouts_backward", given, d_vectors=d_vectors.data_ptr(), **tensors)
    return d_shares, d_x, d_vectors, d_held


def _run(name: str, given: Looking, d_vectors: int | None = None, **tensors) -> None:
    x, (batch, heads, number, width) = given.scoring.x, given.q.shape
    problem = _Scouting(
        of=given.scoring.mirrored(),
        lo=given.lo.data_ptr(),
        hi=given.hi.data_ptr(),
        d_vectors=d_vectors,
        heads=heads,
        scouts=number,
        width=width,
        ranges=len(given.lo),
        threads=threads(),
    )
    of_keys = {"log_held": given.log_held, "key_order": given.key_order}
    of_keys |= {field: tensors.pop(field) for field in ("d_x", "d_log_held") if field in tensors}
    for field, t in of_keys.items():
        if t is not None:
            setattr(problem, field, _Tensor.of(t, *x.shape[:2]))
    for field, t in {"q": given.q, "shares": given.shares, "k": given.k, **tensors}.items():
        setattr(problem, field, _Tensor.of(t, batch, heads))
    getattr(functions(x.dtype, x.size(-1), "scouts"), f"run_{name}")(ctypes.byref(problem))
