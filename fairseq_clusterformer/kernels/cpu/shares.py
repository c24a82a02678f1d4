"""Clusters of tokens and their shares in C++: scores [B, H, N, K] never exist; ``shares.cpp`` has
the method. Results do not depend on the number of threads.

Shape letters: B batch, H heads, N tokens, E width, K clusters.
"""

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from . import _Tensor, library, threads
from .library import functions, why_missing


class _Scores(ctypes.Structure):
    """Mirrors Scores in scores.h."""

    _fields_ = [
        ("x", _Tensor),
        *((name, ctypes.c_void_p) for name in ("vectors", "offsets", "padding")),
        *((name, ctypes.c_int64) for name in "batch heads length clusters unit".split()),
        *((name, ctypes.c_double) for name in ("scale", "smallest")),
    ]


_TENSORS = "log_weights explored clusters log_share log_total d_log_share d_x".split()
_ARRAYS = "log_mass sizes d_vectors".split()
_NUMBERS = "probes probe_stride threads".split()


class _Shares(ctypes.Structure):
    """Mirrors Shares in shares.cpp."""

    _fields_ = [
        ("of", _Scores),
        *((name, _Tensor) for name in _TENSORS),
        *((name, ctypes.c_void_p) for name in _ARRAYS),
        *((name, ctypes.c_int64) for name in _NUMBERS),
        ("tie", ctypes.c_double),
    ]


class Scoring(NamedTuple):
    """What scores are made of: ``x . vector - offset`` of x that is scaled first.

    Attributes:
        x: float32 or float64 [B, H, N, E]; anything at padding.
        vectors, offsets: [H, K, E] and [H, K], of the same dtype.
        padding_mask: bool [B, N], True where a token is padding; None: none is.
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

    def mirrored(self) -> _Scores:
        """Valid while these tensors are."""
        x, scale, mask = self.x, self.scale, self.padding_mask
        return _Scores(
            x=_Tensor.of(x, *x.shape[:2]),
            vectors=self.vectors.data_ptr(),
            offsets=self.offsets.data_ptr(),
            padding=None if mask is None else mask.data_ptr(),
            batch=x.size(0),
            heads=x.size(1),
            length=x.size(2),
            clusters=self.vectors.size(1),
            unit=scale is None,
            scale=1.0 if scale is None else scale,
            smallest=self.smallest,
        )


class Found(NamedTuple):
    """What :func:`assign` finds; as in :class:`~fairseq_clusterformer.clustering.shares.Assigned`.
    Without shares or mass these are None."""

    clusters: Tensor  # int64 [probes, B, H, N]
    sizes: Tensor  # [H, K]
    log_mass: Tensor | None  # of the scores, offsets taken off, [H, K]
    log_share: Tensor | None  # [B, H, N]
    log_total: Tensor | None  # log of the sum of exp(score) of each token [B, H, N]


def can_assign(x: Tensor) -> bool:
    """Whether there is a library for such x."""
    known = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    return known and why_missing(x.dtype, x.size(-1), "shares") is None


def is_loaded(x: Tensor) -> bool:
    """Whether nobody has to wait for that library."""
    return library.is_loaded(x.dtype, x.size(-1), "shares")


def assign(
    scoring: Scoring,
    *,
    probes: int = 1,
    mass: bool = True,
    shares: bool = False,
    explored: Tensor | None = None,
    log_weights: Tensor | None = None,
) -> Found:
    """The nearest clusters of each token. ``explored``: the cluster that was drawn instead, -1 for
    none, int64 [B, H, N]; ``log_weights``: how much each token counts in the mass [B, H, N]."""
    x, (heads, clusters) = scoring.x, scoring.vectors.shape[:2]
    found = Found(
        torch.empty(probes, *x.shape[:3], dtype=torch.long),
        x.new_empty(heads, clusters),
        x.new_empty(heads, clusters) if mass else None,
        *(x.new_empty(x.shape[:3]) if shares else None for _ in range(2)),
    )
    others = {"explored": explored, "log_weights": log_weights}
    stride = found.clusters.stride(0)
    results = {**found._asdict(), "clusters": found.clusters[0]}
    _run("shares", scoring, probes=probes, probe_stride=stride, **results, **others)
    return found


def backward(
    scoring: Scoring, clusters: Tensor, log_total: Tensor, d_log_share: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of x and of vectors, from those of shares [B, H, N]."""
    d_x, d_vectors = torch.empty_like(scoring.x), torch.empty_like(scoring.vectors)
    given = {"clusters": clusters, "log_total": log_total, "d_log_share": d_log_share}
    _run("shares_backward", scoring, probes=1, d_x=d_x, d_vectors=d_vectors, **given)
    return d_x, d_vectors


def _run(name: str, scoring: Scoring, probes: int, probe_stride: int = 0, **tensors) -> None:
    x = scoring.x
    problem = _Shares(
        of=scoring.mirrored(),
        probes=probes,
        probe_stride=probe_stride,
        threads=threads(),
        tie=scoring.tie,
    )
    for field, t in tensors.items():
        if t is not None and field in _ARRAYS:
            setattr(problem, field, t.data_ptr())
        elif t is not None:
            setattr(problem, field, _Tensor.of(t, *x.shape[:2]))
    getattr(functions(x.dtype, x.size(-1), "shares"), f"run_{name}")(ctypes.byref(problem))
