"""Clusters of queries and of keys, and how sure each key is of its own, chunk by chunk. The
backward pass gets a cluster and a number for each key, not scores [B, H, N, K].

Shape letters: B batch, H heads, N tokens, E head width, K clusters.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..precision import full_float32
from .fuzzy import Similarity, chunks, largest_few
from .report import cluster_sizes


class Assigned(NamedTuple):
    """Floating point as it was computed; shapes of :func:`assign_both` (or, where these differ, of
    :func:`assign_with_shares`)."""

    queries: Tensor  # cluster of each query, int64 [B, H, N]
    keys: Tensor  # cluster of each key, the same: where it lies, if it explores
    #: log of the sum of exp(s) over the real tokens of a batch: of keys, weighed, [H, K] (or of
    #: queries and of keys, [2, H, K])
    log_mass: Tensor
    sizes: Tensor  # real queries and keys nearest to each cluster [2, H, K], exploring or not
    tokens: Tensor  # number of real tokens, a scalar
    probes: tuple[Tensor, ...] = ()  # the clusters of each query that are next, as ``queries``
    #: log of each key's share of its cluster [B, H, N], differentiable in keys and centroids; of a
    #: key that explores, of value 0 and with the gradient of the log
    log_share: Tensor | None = None


@torch.no_grad()
@full_float32()
def assign_both(
    q: Tensor,
    k: Tensor,
    centroids: Tensor,
    *,
    similarity: Similarity,
    temperature: float,
    log_normalizer: Tensor,
    padding_mask: Tensor | None = None,
    probes: int = 1,
    log_weights: Tensor | None = None,
) -> Assigned:
    """Assign queries, each to the largest s, and keys, each to the largest of
    ``s - log_normalizer``, as :func:`assign_with_shares` does, with no gradient. Keys spread over
    the clusters. Queries may crowd: each sees W keys, whatever others see.

    Args:
        log_normalizer: of keys, [H, K].
        probes: clusters of each query, the nearest included.
        log_weights: log of how much each key counts in the mass [B, H, N]; None: all alike.
    """
    dtype = torch.promote_types(k.dtype, torch.float32)
    vectors = similarity.vectors(centroids.to(dtype)) / temperature
    offsets = log_normalizer.to(dtype).unsqueeze(1)
    rest, none = (similarity, padding_mask), torch.zeros_like(offsets)
    (queries, *more), _, of_queries = _assign(q, vectors, none, *rest, probes=probes, mass=False)
    (keys,), log_mass, of_keys = _assign(k, vectors, offsets, *rest, log_weights=log_weights)
    sizes = torch.stack([of_queries, of_keys])
    tokens = _number_of(k, padding_mask)
    return Assigned(queries, keys, log_mass, sizes, tokens, probes=tuple(more))


@full_float32()
def assign_with_shares(
    q: Tensor,
    k: Tensor,
    centroids: Tensor,
    *,
    similarity: Similarity,
    temperature: float,
    log_normalizer: Tensor,
    padding_mask: Tensor | None = None,
    exploration: float = 0.0,
) -> Assigned:
    """Assign queries and keys, each to the largest of ``s - log_normalizer``, where the exponents
    s are those of CF22 eq. 2; a key's shares are their softmax over clusters. Computed in full
    float32 (float64 for float64), in any precision of the model and in autocast.

    Args:
        q, k: [B, H, N, E], of any floating dtype; anything at padding.
        centroids: [H, K, E].
        similarity, temperature: phi of eq. 2, and what divides it.
        log_normalizer: of queries, and of keys, [2, H, K].
        padding_mask: bool [B, N], True where a token is padding.
        exploration: share of the keys that are put into a cluster drawn at random (by torch's
            generator of the device, so that an activation checkpoint draws the same).
    """
    dtype = torch.promote_types(k.dtype, torch.float32)
    vectors = similarity.vectors(centroids.to(dtype)) / temperature
    offsets = log_normalizer.to(dtype).unsqueeze(2)
    explored = None  # the cluster that was drawn, -1: none
    if exploration > 0:
        shape = k.shape[:3]
        drawn = torch.rand(shape, device=k.device) < exploration
        cluster = torch.randint(vectors.size(1), shape, device=k.device)
        explored = cluster.masked_fill(~drawn, -1)
    args = (similarity, padding_mask)
    with torch.no_grad():  # only an argmax is taken of the scores of queries
        (queries,), *of_queries = _assign(q, vectors, offsets[0], *args)
    log_share, keys, *of_keys = _LogShares.apply(k, vectors, offsets[1], *args, explored)
    log_mass, sizes = (torch.stack(both) for both in zip(of_queries, of_keys, strict=True))
    tokens = _number_of(k, padding_mask)
    return Assigned(queries, keys, log_mass, sizes, tokens, log_share=log_share)


def _number_of(k: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Real tokens of k [B, H, N, E], as a floating point scalar."""
    number = k.size(0) * k.size(2) if padding_mask is None else (~padding_mask).sum()
    dtype = torch.promote_types(k.dtype, torch.float32)
    return torch.as_tensor(number, device=k.device, dtype=dtype)


class _LogShares(torch.autograd.Function):
    @staticmethod
    def forward(ctx, k, vectors, offsets, similarity, padding_mask, explored):
        log_total = torch.empty(k.shape[:3], dtype=vectors.dtype, device=k.device)
        log_share = torch.empty_like(log_total)

        def share(part: slice, scores: Tensor, nearest: Tensor) -> None:
            if explored is not None:
                of_chunk = explored[:, :, part]
                nearest = torch.where(of_chunk < 0, nearest, of_chunk)
            of_own = scores.gather(-1, nearest.unsqueeze(-1)).squeeze(-1)
            largest = scores.amax(-1, keepdim=True)
            # log-sum-exp over the clusters, the largest taken out
            total = (scores - largest).exp_().sum(-1).log_().add_(largest.squeeze(-1))
            log_total[:, :, part] = total
            log_share[:, :, part] = of_own.sub_(total)

        (keys,), log_mass, sizes = _assign(k, vectors, offsets, similarity, padding_mask, share)
        if explored is not None:
            keys = torch.where(explored < 0, keys, explored)
            log_share.masked_fill_(explored >= 0, 0.0)
        ctx.save_for_backward(k, vectors, offsets, padding_mask, log_total, keys)
        ctx.similarity = similarity
        ctx.mark_non_differentiable(keys, log_mass, sizes)
        return log_share, keys, log_mass, sizes

    @staticmethod
    @torch.autograd.function.once_differentiable
    @full_float32()
    def backward(ctx, d_log_share, *_):
        k, vectors, offsets, padding_mask, log_total, keys = ctx.saved_tensors
        d_k, d_vectors = torch.empty_like(k), torch.zeros_like(vectors)
        for part in chunks(k, vectors.size(1)):
            unit, scale, scores = _scores(k, vectors, offsets, ctx.similarity, padding_mask, part)
            gradient = d_log_share[:, :, part].unsqueeze(-1)
            # of s_own - log(sum of exp(s)): 1 at the own cluster, less each cluster's share
            d_scores = scores.sub_(log_total[:, :, part].unsqueeze(-1)).exp_().mul_(-gradient)
            d_scores.scatter_add_(-1, keys[:, :, part].unsqueeze(-1), gradient)
            d_vectors += (d_scores.transpose(-1, -2) @ unit).sum(0)  # [H, K, E]
            d_part = ctx.similarity.backward(d_scores @ vectors, unit, scale)
            if padding_mask is not None:
                d_part.masked_fill_(padding_mask[:, None, part, None], 0.0)
            d_k[:, :, part] = d_part
        return d_k, d_vectors, None, None, None, None


def _assign(
    x: Tensor,
    vectors: Tensor,
    offsets: Tensor,
    similarity: Similarity,
    padding_mask: Tensor | None,
    with_chunk: Callable[[slice, Tensor, Tensor], None] | None = None,
    log_weights: Tensor | None = None,
    probes: int = 1,
    mass: bool = True,
) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """The nearest ``probes`` clusters of x, int64 [B, H, N] each; of each cluster, the log of the
    sum of exp(s), times ``log_weights``, over real tokens (without ``mass``: 0), and their number
    [H, K]. ``with_chunk`` gets each slice of tokens, their ``s - offsets``, and their clusters."""
    clusters = tuple(
        torch.empty(x.shape[:3], dtype=torch.long, device=x.device) for _ in range(probes)
    )
    log_mass = torch.full(vectors.shape[:2], -math.inf, dtype=vectors.dtype, device=x.device)
    for part in chunks(x, vectors.size(1)):
        _, _, scores = _scores(x, vectors, offsets, similarity, padding_mask, part)
        for one, found in zip(clusters, largest_few(scores, probes, offsets), strict=True):
            one[:, :, part] = found
        if with_chunk is not None:
            with_chunk(part, scores, clusters[0][:, :, part])
        if not mass:
            continue
        if log_weights is not None:
            scores.add_(log_weights[:, :, part].unsqueeze(-1))
        if padding_mask is not None:
            scores.masked_fill_(padding_mask[:, None, part, None], -math.inf)
        log_mass = torch.logaddexp(log_mass, log_sum_over_tokens(scores))
    sizes = cluster_sizes(clusters[0], vectors.size(1), padding_mask)
    return clusters, log_mass + offsets.squeeze(1), sizes.to(log_mass.dtype)


def log_sum_over_tokens(scores: Tensor) -> Tensor:
    """Of each cluster, the log of the sum of exp(scores) [B, H, N, K], [H, K]."""
    peak = scores.detach().amax(2).amax(0)  # both at once takes a processor 50 times as long
    peak = peak.clamp(min=torch.finfo(peak.dtype).min)  # of -inf alone
    return (scores - peak.unsqueeze(1)).exp().sum((0, 2)).log() + peak


def _scores(
    x: Tensor,
    vectors: Tensor,
    offsets: Tensor,
    similarity: Similarity,
    padding_mask: Tensor | None,
    part: slice,
) -> tuple[Tensor, Tensor | float, Tensor]:
    """Of a slice of tokens (0 at padding): vectors [B, H, n, E], what these were multiplied by,
    and the exponents of eq. 2 less offsets [B, H, n, K]."""
    chunk = x[:, :, part].to(vectors.dtype)
    if padding_mask is not None:
        chunk = chunk.masked_fill(padding_mask[:, None, part, None], 0.0)
    scale = similarity.scale(chunk)
    unit = chunk * scale
    return unit, scale, (unit @ vectors.transpose(-1, -2)).sub_(offsets)
