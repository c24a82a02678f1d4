"""Neural clustering (CF22 section 3.1): fuzzy centroids that are learned with the task.

Shape letters: B batch, N tokens, D width, K clusters.
"""

import math

import torch
from torch import Tensor, nn

from ..precision import at_least_float32
from .average import AverageNormalizer
from .fuzzy import Similarity, cluster_sums, exponents, fuzzy_clusters, lowest_argmax
from .report import Report, State


class NeuralClustering(AverageNormalizer):
    """Assigns tokens to K centroids, and returns the losses that teach them.

    Equation numbers are CF22's. Everything is computed in float32 (float64 for a float64 model)
    whatever the model's precision.

    Args:
        embed_dim: D.
        num_clusters: K.
        similarity: phi: "dot" (the paper's), "scaled-dot" (divided by sqrt(D)) or "cosine".
        temperature: divides phi inside the exponent of eq. 2.
        normalizer: the denominator of eq. 2 when tokens are assigned. "sentence": over all tokens
            of the row, as in the paper; needs the whole row. "running": over the tokens so far.
            "average": an exponential moving average of the mean over training batches, a constant
            for each cluster. The last two keep an assignment independent of later tokens.
        momentum: of that average.
        own_centroids: False: the centroids are given to each ``forward``.

    Parameters learn through the two losses alone: the argmax of eq. 4 carries no gradient.
    """

    def __init__(
        self,
        embed_dim: int,
        num_clusters: int,
        *,
        similarity: str = "cosine",
        temperature: float = 0.1,
        normalizer: str = "sentence",
        momentum: float = 0.9,
        own_centroids: bool = True,
    ):
        super().__init__((num_clusters,) if normalizer == "average" else None, momentum=momentum)
        self.num_clusters = num_clusters
        self.similarity = Similarity(similarity)
        self.temperature = temperature
        self.normalizer = normalizer
        self.centroids = initial_centroids(num_clusters, embed_dim) if own_centroids else None
        self.w_c = nn.Linear(embed_dim, embed_dim, bias=False)
        nn.init.xavier_uniform_(self.w_c.weight)

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        centroids: Tensor | None = None,
    ) -> tuple[Tensor, Report]:
        """Assign the tokens of a batch.

        Args:
            x: [B, N, D].
            padding_mask: bool [B, N], True where a token is padding.
            centroids: [B, K, D] used instead of this module's own; needed if it owns none.

        Returns:
            The cluster of each token, int64 [B, N] (0 at padding), and a report: both losses, the
            cluster sizes, the updated centroids, and the observation for :meth:`observe`, if the
            normalizer is an average.

        Raises:
            ValueError: no centroids, owned or given.
        """
        if centroids is None and self.centroids is None:
            raise ValueError("this clustering owns no centroids, and was given none")
        with torch.autocast(x.device.type, enabled=False):
            x = at_least_float32(x)
            if padding_mask is not None:
                x = x.masked_fill(padding_mask.unsqueeze(-1), 0.0)
            centroids = self.centroids if centroids is None else centroids
            normalizer = self.normalizer
            if normalizer == "average":
                normalizer = self.log_normalizer
            clusters, log_mass, updated = fuzzy_clusters(
                self._keys(x),
                centroids.to(x.dtype),
                similarity=self.similarity,
                temperature=self.temperature,
                normalizer=normalizer,
                padding_mask=padding_mask,
            )
            return clusters, self._report(x, clusters, log_mass, updated, padding_mask)

    def step(
        self, x: Tensor, state: State, padding_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Assign one more token: x [B, 1, D] to clusters int64 [B, 1], as ``forward`` would."""
        with torch.autocast(x.device.type, enabled=False), torch.no_grad():
            x = at_least_float32(x)
            vectors = self.similarity.vectors(self.centroids.to(x.dtype))
            scores = exponents(self.similarity.vectors(self._keys(x)), vectors, self.temperature)
            if self.normalizer == "average":
                return lowest_argmax(
                    scores - self.log_normalizer.to(x.dtype), self.log_normalizer
                ), state
            log_sum = scores.double()
            if "log_sum" in state:
                log_sum = torch.logaddexp(state["log_sum"], log_sum)
            clusters = lowest_argmax(scores - log_sum, log_sum)
            if padding_mask is not None:
                before = state.get("log_sum", torch.full_like(log_sum, -math.inf))
                log_sum = torch.where(padding_mask.unsqueeze(-1), before, log_sum)
            return clusters, {"log_sum": log_sum}

    def _keys(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.w_c.weight.to(x.dtype))

    def _report(
        self,
        x: Tensor,
        clusters: Tensor,
        log_mass: Tensor,
        updated: Tensor,
        padding_mask: Tensor | None,
    ) -> Report:
        batch, length, _ = x.shape
        real = x.new_ones(batch, length)
        if padding_mask is not None:
            real = real.masked_fill(padding_mask, 0.0)
        tokens = real.sum()
        vectors = self.similarity.vectors(updated)

        # CF22 eq. 6: the sum over tokens of phi(x_j, c_{I_j}), cluster by cluster.
        sums = cluster_sums(
            x, clusters, self.num_clusters, similarity=self.similarity, weight=real
        )
        clustering_loss = -(sums * vectors).sum() / tokens.clamp(min=1.0)

        neighbours = (vectors * vectors.roll(1, dims=1)).sum(-1).mean(-1)  # the ring of eq. 11
        weight = real.sum(-1) / tokens.clamp(min=1.0)
        sorting_loss = -(neighbours * weight).sum()  # CF22 eq. 11

        with torch.no_grad():
            sizes = torch.zeros(self.num_clusters, device=x.device, dtype=x.dtype)
            sizes.index_add_(0, clusters.flatten(), real.flatten())
            observation = self.observation(torch.logsumexp(log_mass, dim=0), tokens)
        return Report(
            clustering_loss,
            sorting_loss,
            cluster_sizes=sizes,
            centroids=updated,
            observation=observation,
        )


def initial_centroids(num_clusters: int, embed_dim: int) -> nn.Parameter:
    """Random centroids [K, D] of length about 1."""
    return nn.Parameter(torch.randn(num_clusters, embed_dim) * embed_dim**-0.5)
