"""Spherical K-Means by a moving average over training batches (Routing Transformer, Roy et al.
2021).

Shape letters: B batch, H heads, N tokens, E head width, K clusters.
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..precision import at_least_float32, full_float32
from .fuzzy import lowest_argmax, nearest_by_cosine
from .learner import Learner
from .report import cluster_sizes


class SphericalMeans(Learner):
    """K centroids of length 1 for each head, [H, K, E], fixed while a batch runs; no gradient
    reaches them. The paper's ``momentum``, 0.999, is for hundreds of thousands of updates."""

    def __init__(
        self, num_heads: int, num_clusters: int, head_dim: int, *, momentum: float = 0.99
    ):
        super().__init__()
        self.momentum = momentum
        centroids = torch.randn(num_heads, num_clusters, head_dim)
        self.register_buffer("centroids", normalize(centroids, dim=-1))
        # Seen since the last update: the sum of each cluster's vectors, and how many there were.
        self.register_buffer("pending", torch.zeros(num_heads, num_clusters, head_dim + 1))

    @torch.no_grad()
    @full_float32()
    def forward(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest centroid of vectors of any length [B, H, N, E], int64 [B, H, N], and the
        cosines to all, at least float32 [B, H, N, K]."""
        unit = normalize(at_least_float32(vectors), dim=-1)
        cosines = unit @ self.centroids.to(unit.dtype).mT
        return lowest_argmax(cosines), cosines

    def nearest(self, vectors: Tensor) -> Tensor:
        """The nearest centroids alone, as of ``forward``."""
        return nearest_by_cosine(vectors, self.centroids)

    @torch.no_grad()
    def sums(self, vectors: Tensor, clusters: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Of each cluster's unit vectors over a batch, and their number, [H, K, E + 1]."""
        heads, num_clusters, width = self.centroids.shape
        unit = normalize(at_least_float32(vectors), dim=-1)
        if padding_mask is not None:
            unit = unit.masked_fill(padding_mask[:, None, :, None], 0.0)
        sums = unit.new_zeros(heads * num_clusters, width)
        first = num_clusters * torch.arange(heads, device=clusters.device)
        index = clusters + first.unsqueeze(-1)
        sums.index_add_(0, index.flatten(), unit.flatten(0, 2))
        count = cluster_sizes(clusters, num_clusters, padding_mask).to(sums.dtype)
        return torch.cat([sums.view(heads, num_clusters, width), count.unsqueeze(-1)], dim=-1)

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
