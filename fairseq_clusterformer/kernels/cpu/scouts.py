"""What scouts find in C++: nothing of scouts by tokens, or of tokens by clusters, is kept.
``scouts.cpp`` has the method. Results do not depend on the number of threads.

Shape letters: B batch, H heads, J heads of keys that route, N tokens, S scouts, W width of a head,
R width of what routes, K clusters.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .library import run
from .shares import Scores


class Looking(NamedTuple):
    """Scouts, and the keys that they see.

    Attributes:
        q, shares: of scouts, [B, H, S, W] and [B, H, S, K].
        k: [B, H, N, W]; the last dimension of these three has stride 1.
        scores: of what routes keys [B, J, N, R]; offsets are the logs of the clusters' masses.
        log_held: of how surely each key is held [B, J, N]; None: all are.
        key_order: token at each key slot, int64 [B, 1 or H, N] (1 unless J is H); None: identity.
        lo, hi: key slots that scouts see, int64 [ranges, B, H, S], contiguous.

    Floating point alike, float32 or float64.
    """

    q: Tensor
    shares: Tensor
    k: Tensor
    scores: Scores
    log_held: Tensor | None
    key_order: Tensor | None
    lo: Tensor
    hi: Tensor


def find(given: Looking) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What each scout's attention finds, what all that it sees has, and the largest logit and the
    sum of its softmax; [B, H, S]."""
    names = "lands", "in_sight", "peak", "total"
    results = {name: torch.empty_like(given.lo[0], dtype=given.q.dtype) for name in names}
    _run("scouts", given, **results)
    return tuple(results.values())


def backward(
    given: Looking, peak: Tensor, total: Tensor, d_lands: Tensor, d_in_sight: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of the scouts' shares, of what routes keys, of the vectors that score it, and of
    ``log_held``; also by way of the clusters' masses."""
    d_shares = torch.empty_like(given.shares)
    d_x, d_vectors = torch.zeros_like(given.scores.x), torch.empty_like(given.scores.vectors)
    d_held = None if given.log_held is None else torch.zeros_like(given.log_held)
    tensors = {"peak": peak, "total": total, "d_lands": d_lands, "d_in_sight": d_in_sight}
    tensors |= {"d_shares": d_shares, "d_x": d_x, "d_vectors": d_vectors, "d_log_held": d_held}
    _run("scouts_backward", given, **tensors)
    return d_shares, d_x, d_vectors, d_held


def _run(function: str, given: Looking, **tensors: Tensor | None) -> None:
    x, (_, heads, number, width) = given.scores.x, given.q.shape
    values: dict[str, Any] = {**given._asdict(), **tensors}
    values |= values.pop("scores").fields()
    values |= {"query_heads": heads, "scouts": number, "width": width, "ranges": len(given.lo)}
    run("scouts", function, x.dtype, x.size(-1), **values)
