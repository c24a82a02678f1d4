"""Clusters of queries and of keys, and how sure each key is of its own, chunk by chunk, or on a
CPU in C++. The backward pass gets a cluster and a number for each key, not scores [B, H, N, K]."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..kernels.cpu.library import can_run, run
from ..precision import full_float32
from .fuzzy import NORM_EPS, TIE, Similarity, chunks, largest_few
from .report import cluster_sizes

#: from how many scores on C++ computes them, but in steps: for fewer, a build takes longer
CPP_FROM = 1 << 16


class Scores(NamedTuple):
    """What scores [B, H, N, K] are made of, ``x . vector - offset`` of x that is scaled first. Of
    keys also what p(c) is made of, the share of each cluster: the softmax over clusters of a key's
    scores less the log of each cluster's mass in this batch, times how surely the key is held."""

    x: Tensor  # [B, H, N, E], anything at padding
    vectors: Tensor  # of the centroids, divided by the temperature [H, K, E]
    offsets: Tensor | None  # [H, K]; of shares, the logs of masses, None if they are not known
    padding_mask: Tensor | None  # bool [B, N], True where a token is padding
    similarity: Similarity  # how x is scaled
    log_held: Tensor | None = None  # of how surely each key is held, [B, H, N]; None: all are

    def for_cpp(self, impl: str) -> "Scores | None":
        """The same in one dtype, float32 or float64, and in rows; None: torch computes them."""
        few, x = self.x[..., 0].numel() * self.vectors.size(1) < CPP_FROM, self.x
        if few or not _has_cpp(x := x.to(self.vectors.dtype), impl):
            return None
        return self._replace(x=x if x.stride(-1) == 1 else x.contiguous(), log_held=None)

    def run(self, source: str, function: str, **values: Any) -> None:
        """Run a function of shares.cpp or scouts.cpp, with the struct of scores.h among others."""
        unit, x = self.similarity.kind == "cosine", self.x
        given = dict(zip(("batch", "heads", "length"), x.shape, strict=False)) | self._asdict()
        del given["similarity"]
        given |= {"num_clusters": self.vectors.size(1), "smallest": NORM_EPS, "unit": unit}
        given |= {"scale": 1.0 if unit else self.similarity.scale(x)}
        run(source, function, x.dtype, x.size(-1), **(given | values))

    def of(self, part: slice) -> tuple[Tensor, Tensor | float, Tensor]:
        """Of a slice: scaled vectors [B, H, n, E], 0 at padding, scales, scores [B, H, n, K]."""
        chunk = self.x[:, :, part].to(self.vectors.dtype)
        if self.padding_mask is not None:
            chunk = chunk.masked_fill(self.padding_mask[:, None, part, None], 0.0)
        scale = self.similarity.scale(chunk)
        unit = chunk * scale
        return unit, scale, (unit @ self.vectors.mT).sub_(self.offsets.unsqueeze(1))

    def shares(self) -> Tensor:
        """p(c) of keys [B, H, N, K], by torch, differentiable."""
        scores = self.similarity.vectors(self.x) @ self.vectors.transpose(-1, -2)
        real = scores if self.log_held is None else scores + self.log_held.unsqueeze(-1)
        if self.padding_mask is not None:  # finite, where a batch is padding alone
            hidden = torch.finfo(scores.dtype).min / 2
            real = real.masked_fill(self.padding_mask[:, None, :, None], hidden)
        shares = (scores - log_sum_over_tokens(real).unsqueeze(1)).softmax(-1)
        return shares if self.log_held is None else shares * self.log_held.exp().unsqueeze(-1)

    @torch.no_grad()
    def shares_for_cpp(self, impl: str) -> "Scores | None":
        """What C++ computes p(c) from; None: torch does."""
        none = torch.zeros_like(self.vectors[..., 0])
        scores, masses = self._replace(offsets=none).for_cpp(impl), self.offsets
        if scores is None or scores.x.dtype != self.x.dtype:
            return None
        if masses is None:
            masses = _in_cpp(scores, log_weights=self.log_held).log_mass
        # finite, where a batch is padding alone
        return scores._replace(offsets=masses.clamp(min=torch.finfo(masses.dtype).min / 2))


class Found(NamedTuple):
    """What :func:`_assign` finds; None: what was not asked for."""

    clusters: Tensor  # int64 [probes, B, H, N]
    sizes: Tensor | None  # [H, K]
    log_mass: Tensor | None  # of each cluster, log of the sum of exp(s) over real tokens [H, K]
    log_share: Tensor | None = None  # [B, H, N]
    log_total: Tensor | None = None  # log of the sum of exp(score) of each token [B, H, N]


class Assigned(NamedTuple):
    """What :func:`assign_both` finds; floating point as it was computed."""

    queries: Tensor  # cluster of each query, int64 [B, H, N]
    keys: Tensor  # cluster of each key, int64 [B, J, N]: where it lies, if it explores
    #: log of the sum of exp(s) over the real tokens of a batch: of keys, weighed, [J, K]; or of
    #: queries and of keys, [2, H, K], as they are normalised
    log_mass: Tensor | None
    #: real queries and keys nearest to each cluster [2, H, K], exploring or not
    sizes: Tensor | None
    tokens: Tensor | None  # number of real tokens, a scalar
    probes: tuple[Tensor, ...] = ()  # the clusters of each query that are next, as ``queries``
    #: log of each key's share of its cluster [B, H, N], differentiable in keys and centroids; of a
    #: key that explores, of value 0 and with the gradient of the log
    log_share: Tensor | None = None


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
    counted: bool = True,
    exploration: float | None = None,
    impl: str = "auto",
) -> Assigned:
    """Assign queries and keys, each to the largest of ``s - log_normalizer``, s as in CF22 eq. 2.
    So keys spread over the clusters; queries may crowd, and have no normaliser, for each sees W
    keys whatever others see. In full float32 (float64), in any precision of the model.
    Similarity and temperature are phi of eq. 2, and what divides it; ``impl`` is as of
    :func:`~fairseq_clusterformer.kernels.ranged_attention`.

    Args:
        q, k, centroids: [B, H, N, E], [B, J, N, E], anything at padding; [J, K, E]; J divides H.
        log_normalizer: of keys [J, K]; or of queries and of keys [2, H, K].
        probes: clusters of each query, the nearest included.
        log_weights: log of how much each key counts in the mass [B, J, N]; None: all alike.
        counted: whether the mass, sizes and tokens are wanted; else they are None.
        exploration: share of the keys that are put into a cluster drawn at random (by torch's
            generator of the device: an activation checkpoint draws the same); log_share is found
            as well. None: it is not.
    """
    dtype = torch.promote_types(k.dtype, torch.float32)
    few = not counted and k.size(2) == 1 and exploration is None and log_normalizer.dim() == 2
    if few and _has_cpp(k.to(dtype), impl):  # in decoding, where all else would take longer
        q, k, *given = (t.to(dtype) for t in (q, k, centroids, log_normalizer))
        q = q.reshape(*k.shape[:2], -1, q.size(-1))  # as tokens, the key behind them
        scores = Scores(torch.cat([q, k], dim=2), *given, None, similarity)
        how = {"free": q.size(2), "temperature": temperature, "probes": probes, "threads": 1}
        found = _in_cpp(scores, mass=False, **how).clusters
        first, *more = found[..., :-1].flatten(2).unsqueeze(-1).unbind()
        return Assigned(first, found[0, ..., -1:], None, None, None, tuple(more))
    vectors, offsets = similarity.vectors(centroids.to(dtype)) / temperature, log_normalizer
    both, sharing, rest = offsets.dim() == 3, q.size(1) // k.size(1), (padding_mask, similarity)
    of_each = vectors if sharing == 1 else vectors.repeat_interleave(sharing, dim=0)
    of_queries, of_keys = offsets if both else (torch.zeros_like(of_each[..., 0]), offsets)
    queries = Scores(q, of_each, of_queries.to(dtype), *rest)
    keys = Scores(k, vectors, of_keys.to(dtype), *rest)
    with torch.no_grad():  # only an argmax is taken of scores, but for shares
        found = _assign(queries, impl, probes=probes, mass=both and counted, counted=counted)
        if exploration is None:
            how = {"mass": counted, "counted": counted, "log_weights": log_weights}
            of_keys = _assign(keys, impl, **how)
    if exploration is not None:
        explored = None  # the cluster that was drawn, -1: none
        if exploration > 0:
            drawn = torch.rand(k.shape[:3], device=k.device) < exploration
            cluster = torch.randint(vectors.size(1), drawn.shape, device=k.device)
            explored = cluster.masked_fill(~drawn, -1)
        cluster, *others = _LogShares.apply(explored, impl, *keys[:5])
        of_keys = Found(cluster.unsqueeze(0), *others)
    (first, *more), (key,) = found.clusters, of_keys.clusters
    if not counted:
        return Assigned(first, key, None, None, None, tuple(more))
    number = q.size(0) * q.size(2) if padding_mask is None else (~padding_mask).sum()
    mass = torch.stack([found.log_mass, of_keys.log_mass]) if both else of_keys.log_mass
    sizes = torch.stack([found.sizes, of_keys.sizes.repeat_interleave(sharing, dim=0)])
    tokens = torch.as_tensor(number, device=k.device, dtype=dtype)
    return Assigned(first, key, mass, sizes, tokens, tuple(more), of_keys.log_share)


class _LogShares(torch.autograd.Function):
    @staticmethod
    def forward(ctx, explored, impl, *scores):
        scores = Scores(*scores)
        ctx.given = impl, scores.similarity
        found = _assign(scores, impl, shares=True, explored=explored)
        clusters = found.clusters[0]
        ctx.save_for_backward(*scores[:4], found.log_total, clusters)
        ctx.mark_non_differentiable(clusters, found.sizes, found.log_mass)
        return clusters, found.sizes, found.log_mass, found.log_share

    @staticmethod
    @torch.autograd.function.once_differentiable
    @full_float32()
    def backward(ctx, *gradients):
        (*tensors, log_total, keys), d_log_share = ctx.saved_tensors, gradients[-1]
        impl, similarity = ctx.given
        scored, (k, vectors, _, padding_mask) = Scores(*tensors, similarity), tensors
        if (scores := scored.for_cpp(impl)) is not None:
            d_k, d_vectors = torch.zeros_like(scores.x), torch.empty_like(scores.vectors)
            given = {"clusters": keys, "log_total": log_total, "d_log_share": d_log_share}
            given |= {"d_x": d_k, "d_vectors": d_vectors, "probes": 1, "tie": TIE}
            scores.run("shares", "shares_backward", **given)
            return None, None, d_k.to(k.dtype), d_vectors, None, None, None
        d_k, d_vectors = torch.empty_like(k), torch.zeros_like(vectors)
        for part in chunks(k, vectors.size(1)):
            unit, scale, scores = scored.of(part)
            gradient = d_log_share[:, :, part].unsqueeze(-1)
            # of s_own - log(sum of exp(s)): 1 at the own cluster, less each cluster's share
            d_scores = scores.sub_(log_total[:, :, part].unsqueeze(-1)).exp_().mul_(-gradient)
            d_scores.scatter_add_(-1, keys[:, :, part].unsqueeze(-1), gradient)
            d_vectors += (d_scores.transpose(-1, -2) @ unit).sum(0)  # [H, K, E]
            d_part = similarity.backward(d_scores @ vectors, unit, scale)
            if padding_mask is not None:
                d_part.masked_fill_(padding_mask[:, None, part, None], 0.0)
            d_k[:, :, part] = d_part
        return None, None, d_k, d_vectors, None, None, None


def _assign(scores: Scores, impl: str, *, counted: bool = True, mass: bool = True, **how) -> Found:
    """By C++ or by torch. ``counted``, ``mass`` and ``shares``: whether sizes, masses and shares
    are wanted; ``probes``: clusters of each token; ``explored``: that which was drawn instead, -1
    for none, int64 [B, H, N]; ``log_weights``: of each token in the mass [B, H, N]."""
    given = scores.for_cpp(impl)
    found = _in_cpp(given, mass, **how) if given else _by_torch(scores, counted, mass, **how)
    return found._replace(log_mass=found.log_mass + scores.offsets) if mass else found


def _has_cpp(x: Tensor, impl: str) -> bool:
    return impl in ("auto", "cpu") and not torch.compiler.is_compiling() and can_run("shares", x)


def _in_cpp(
    scores: Scores, mass: bool = True, *, probes: int = 1, shares: bool = False, **given: Any
) -> Found:
    """The same in C++, but the mass is of the scores, offsets taken off."""
    x, (heads, clusters) = scores.x, scores.vectors.shape[:2]
    found = Found(
        torch.empty(probes, *x.shape[:3], dtype=torch.long),
        x.new_empty(heads, clusters),
        x.new_empty(heads, clusters) if mass else None,
        *(x.new_empty(x.shape[:3]) if shares else None for _ in range(2)),
    )
    given |= found._asdict() | {"clusters": found.clusters[0], "probes": probes, "tie": TIE}
    scores.run("shares", "shares", probe_stride=found.clusters.stride(0), **given)
    return found


def _by_torch(
    scores: Scores,
    counted: bool,
    mass: bool,
    *,
    probes: int = 1,
    shares: bool = False,
    explored: Tensor | None = None,
    log_weights: Tensor | None = None,
) -> Found:
    """The same as :func:`_in_cpp` by torch, on any device."""
    mask, number, parts = scores.padding_mask, scores.vectors.size(1), []
    for part in chunks(scores.x, number):
        of_part, log_share, total, log_mass = scores.of(part)[-1], None, None, None
        nearest = largest_few(of_part, probes, scores.offsets.unsqueeze(1))
        if shares:
            own = nearest[0]
            if explored is not None:
                own = torch.where(explored[:, :, part] < 0, own, explored[:, :, part])
            total = of_part.logsumexp(-1)
            log_share = of_part.gather(-1, own.unsqueeze(-1)).squeeze(-1) - total
        if mass:
            if log_weights is not None:
                of_part.add_(log_weights[:, :, part].unsqueeze(-1))
            if mask is not None:
                of_part.masked_fill_(mask[:, None, part, None], -math.inf)
            log_mass = log_sum_over_tokens(of_part)
        parts.append((log_mass, *nearest, log_share, total))
    log_mass, *clusters, log_share, total = map(_whole, zip(*parts, strict=True))
    sizes = cluster_sizes(clusters[0], number, mask).to(scores.vectors.dtype) if counted else None
    if explored is not None:
        clusters = [torch.where(explored < 0, clusters[0], explored)]
        log_share.masked_fill_(explored >= 0, 0.0)
    return Found(torch.stack(clusters), sizes, log_mass, log_share, total)


def _whole(parts: Sequence[Tensor | None]) -> Tensor | None:
    """What parts of the tokens have, [B, H, n]; of masses [H, K], their sum."""
    if len(parts) == 1 or parts[0] is None:
        return parts[0]
    return torch.stack(parts).logsumexp(0) if parts[0].dim() == 2 else torch.cat(parts, dim=-1)


def log_sum_over_tokens(scores: Tensor) -> Tensor:
    """Of each cluster, the log of the sum of exp(scores) [B, H, N, K], [H, K]."""
    peak = scores.detach().amax(2).amax(0)  # both at once takes a processor 50 times as long
    peak = peak.clamp(min=torch.finfo(peak.dtype).min)  # of -inf alone
    return (scores - peak.unsqueeze(1)).exp().sum((0, 2)).log() + peak
