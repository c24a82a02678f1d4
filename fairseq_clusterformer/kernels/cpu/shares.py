"""Clusters of tokens and their shares in C++: scores [B, H, N, K] never exist; ``shares.cpp`` has
the method. Results do not depend on the number of threads.

Shape letters: B batch, H heads, N tokens, E width, K clusters.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .library import run


class Scores(NamedTuple):
    """What scores are made of: ``x . vector - offset`` of x that is scaled first.

    Attributes:
        x: float32 or float64 [B, H, N, E], the last dimension has stride 1; anything at padding.
        vectors, offsets: [H, K, E] and [H, K], of the same dtype, contiguous.
        padding_mask: bool [B, N], contiguous, True where a token is padding; None: none is.
        scale: of x; None: to length 1.
        tie, smallest: scores this close, relative to the largest magnitude, are a tie; and the
            least length that is divided by.
    """

    x: Tensor
    vectors: Tensor
    offsets: Tensor
    padding_mask: Tensor | None
    scale: float | None
    tie: float
    smallest: float

    def fields(self) -> dict[str, Any]:
        """Of the struct in scores.h."""
        batch, heads, length, _ = self.x.shape
        return {
            "x": self.x,
            "vectors": self.vectors,
            "offsets": self.offsets,
            "padding": self.padding_mask,
            "batch": batch,
            "heads": heads,
            "length": length,
            "num_clusters": self.vectors.size(1),
            "unit": self.scale is None,
            "scale": 1.0 if self.scale is None else self.scale,
            "smallest": self.smallest,
        }


class Found(NamedTuple):
    """What :func:`assign` finds; as in :class:`~fairseq_clusterformer.clustering.shares.Assigned`.
    Without shares or mass these are None."""

    clusters: Tensor  # int64 [probes, B, H, N]
    sizes: Tensor  # [H, K]
    log_mass: Tensor | None  # of the scores, offsets taken off, [H, K]
    log_share: Tensor | None  # [B, H, N]
    log_total: Tensor | None  # log of the sum of exp(score) of each token [B, H, N]


def assign(
    scores: Scores,
    *,
    probes: int = 1,
    mass: bool = True,
    shares: bool = False,
    explored: Tensor | None = None,
    log_weights: Tensor | None = None,
) -> Found:
    """The nearest clusters of each token. ``explored``: the cluster that was drawn instead, -1 for
    none, int64 [B, H, N]; ``log_weights``: how much each token counts in the mass [B, H, N]."""
    x, (heads, clusters) = scores.x, scores.vectors.shape[:2]
    found = Found(
        torch.empty(probes, *x.shape[:3], dtype=torch.long),
        x.new_empty(heads, clusters),
        x.new_empty(heads, clusters) if mass else None,
        *(x.new_empty(x.shape[:3]) if shares else None for _ in range(2)),
    )
    others = {"explored": explored, "log_weights": log_weights, "probes": probes}
    others["probe_stride"] = found.clusters.stride(0)
    _run("shares", scores, **{**found._asdict(), "clusters": found.clusters[0]}, **others)
    return found


def backward(
    scores: Scores, clusters: Tensor, log_total: Tensor, d_log_share: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of x and of vectors, from those of shares [B, H, N]."""
    d_x, d_vectors = torch.empty_like(scores.x), torch.empty_like(scores.vectors)
    given = {"clusters": clusters, "log_total": log_total, "d_log_share": d_log_share}
    _run("shares_backward", scores, d_x=d_x, d_vectors=d_vectors, probes=1, **given)
    return d_x, d_vectors


def _run(function: str, scores: Scores, **values: Any) -> None:
    x = scores.x
    run("shares", function, x.dtype, x.size(-1), tie=scores.tie, **scores.fields(), **values)
