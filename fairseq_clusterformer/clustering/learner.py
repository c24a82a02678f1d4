"""What learns from data other than by gradient."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from ..precision import Float32Buffers, at_least_float32, full_float32


class Learner(Float32Buffers, ABC):
    """It stays as it is while a batch runs, or activation checkpointing would compute the batch
    twice in different ways: :meth:`observe` stores what it holds, once the forward pass is over,
    and :meth:`commit` applies it before the next update, given what all workers observed."""

    #: whether workers exchange observations; else each keeps its own, or there are none
    exchanges = True

    @abstractmethod
    def observe(self, observation: Tensor) -> None:
        """Remember a training batch's observation; may be repeated."""

    def take(self) -> Tensor:
        """What was observed since the last update, as one observation; it is forgotten here."""
        raise NotImplementedError

    @abstractmethod
    def commit(self) -> None:
        """Apply what was observed since the last update, if anything was. What is not finite (an
        overflow that a loss scaler skips) is dropped."""


class AverageNormalizer(Learner):
    """A normaliser of eq. 2 that no later token changes: keeps, for each cluster, the log of a
    moving average of exp(s) over the tokens seen in training, ``log_normalizer``, float32, of a
    ``shape``, the clusters last (None: nothing is kept, or observed). So many ``others``, numbers,
    are averaged as well, weighed by tokens, as ``average``, float32."""

    def __init__(self, shape: tuple[int, ...] | None, *, momentum: float = 0.9, others: int = 0):
        super().__init__()
        self.exchanges, self.momentum = shape is not None, momentum
        if shape is None:
            return
        self.register_buffer("log_normalizer", torch.zeros(shape))
        # Seen since the last update: a log-sum-exp, and the number of tokens.
        self.register_buffer("pending_log_mass", torch.full(shape, -math.inf))
        self.register_buffer("pending_tokens", torch.zeros(()))
        for name in ("average", "pending_sums"):
            self.register_buffer(name, torch.zeros(others), persistent=others > 0)
        self.register_buffer("updates", torch.zeros(()))  # floating point: models are averaged

    def observation(
        self, log_mass: Tensor, tokens: Tensor, others: Tensor | None = None
    ) -> Tensor | None:
        """What :meth:`observe` takes (None if nothing is kept) of a batch: the log of the sum of
        exp(s), of ``shape``, the number of tokens, and sums of the other numbers over them."""
        if not self.exchanges:
            return None
        sums = [] if others is None else [others.to(log_mass.dtype)]
        return torch.cat([log_mass.flatten(), *sums, tokens.view(1)])

    @torch.no_grad()
    def take(self) -> Tensor:
        taken = self.observation(self.pending_log_mass, self.pending_tokens, self.pending_sums)
        self._forget()
        return taken

    @torch.no_grad()
    def observe(self, observation: Tensor) -> None:
        mass, sums = self.pending_log_mass, self.pending_sums
        log_mass, of_others, tokens = observation.to(mass).split([mass.numel(), len(sums), 1])
        mass.copy_(torch.logaddexp(mass, log_mass.view_as(mass)))
        sums += of_others
        self.pending_tokens += tokens.squeeze(0)

    @torch.no_grad()
    def commit(self) -> None:
        if not self.exchanges:
            return
        seen = self.pending_log_mass - self.pending_tokens.log()
        usable = torch.isfinite(seen).all() & (self.pending_tokens > 0)
        mean = self.pending_sums / self.pending_tokens
        # The first observation is taken as it is.
        share = torch.where(self.updates > 0, 1.0 - self.momentum, 1.0).to(seen.dtype)
        for kept, new in ((self.log_normalizer, seen), (self.average, mean)):
            good = usable & torch.isfinite(new).all()
            kept.copy_(torch.where(good, torch.lerp(kept, new, share), kept))
        self.updates += usable
        self._forget()

    def _forget(self) -> None:
        self.pending_log_mass.fill_(-math.inf)
        self.pending_tokens.zero_()
        self.pending_sums.zero_()


class SphericalMeans(Learner):
    """Spherical K-Means by a moving average over training batches (Routing Transformer, Roy et al.
    2021): K centroids of length 1 for each head, [H, K, E]; no gradient reaches them. The paper's
    ``momentum``, 0.999, is for hundreds of thousands of updates."""

    def __init__(self, num_heads: int, num_clusters: int, head_dim: int, momentum: float = 0.99):
        super().__init__()
        self.momentum = momentum
        centroids = torch.randn(num_heads, num_clusters, head_dim)
        self.register_buffer("centroids", normalize(centroids, dim=-1))
        # Seen since the last update: the sum of each cluster's vectors, and how many there were.
        self.register_buffer("pending", torch.zeros(num_heads, num_clusters, head_dim + 1))

    @torch.no_grad()
    @full_float32()
    def forward(self, vectors: Tensor) -> Tensor:
        """Cosines of vectors [B, H, N, E] and centroids, at least float32 [B, H, N, K]."""
        unit = normalize(at_least_float32(vectors), dim=-1)
        return unit @ self.centroids.to(unit.dtype).mT

    @torch.no_grad()
    def sums(self, vectors: Tensor, clusters: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Of each cluster's unit vectors over a batch, and their number, [H, K, E + 1]."""
        unit = pad(normalize(at_least_float32(vectors), dim=-1), (0, 1), value=1.0)
        if padding_mask is not None:
            unit = unit.masked_fill(padding_mask[:, None, :, None], 0.0)
        sums = torch.zeros_like(self.pending, dtype=unit.dtype)
        first = torch.arange(0, sums[..., 0].numel(), sums.size(1), device=clusters.device)
        index = (clusters + first.unsqueeze(-1)).flatten()
        sums.flatten(0, 1).index_add_(0, index, unit.flatten(0, 2))
        return sums

    @torch.no_grad()
    def take(self) -> Tensor:
        taken = self.pending.flatten().clone()
        self.pending.zero_()
        return taken

    @torch.no_grad()
    def observe(self, sums: Tensor) -> None:
        self.pending += sums.view_as(self.pending)

    @torch.no_grad()
    def commit(self) -> None:
        """Move each centroid towards the mean of what it was nearest to since the last update; one
        that was nearest to nothing, towards the mean of all, until it is nearest to something."""
        sums, count = self.pending[..., :-1], self.pending[..., -1:]
        seen = torch.where(count > 0, sums, sums.sum(1, keepdim=True))
        moved = torch.lerp(self.centroids, normalize(seen, dim=-1), 1.0 - self.momentum)
        usable = torch.isfinite(self.pending).all() & (count.sum() > 0)
        self.centroids.copy_(torch.where(usable, normalize(moved, dim=-1), self.centroids))
        self.pending.zero_()
