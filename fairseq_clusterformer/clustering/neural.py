"""Neural clustering (CF22 section 3.1): fuzzy centroids that are learned with the task."""

import torch
from torch import Tensor, nn

from ..precision import ExactLinear, full_float32
from .fuzzy import ClusterSums, Similarity, fuzzy_clusters
from .learner import AverageNormalizer
from .report import Report, State, cluster_sizes


class NeuralClustering(AverageNormalizer):
    """Assigns tokens to K centroids, and returns the losses that teach them, which alone do: the
    argmax of eq. 4 carries no gradient. In float32, or float64, in any precision of the model.

    Args:
        embed_dim, num_clusters: D and K.
        similarity, temperature, normalizer: see :func:`.fuzzy.fuzzy_clusters`. "sentence" is the
            paper's. Independent of later tokens are "running" and "average": an exponential moving
            average of the mean over training batches, a constant for each cluster.
        own_centroids: False: the centroids are given to each call.
    """

    def __init__(
        self,
        embed_dim: int,
        num_clusters: int,
        *,
        similarity: str = "cosine",
        temperature: float = 0.1,
        normalizer: str = "sentence",
        own_centroids: bool = True,
    ):
        super().__init__((num_clusters,) if normalizer == "average" else None)
        self.num_clusters, self.normalizer = num_clusters, normalizer
        self.similarity, self.temperature = Similarity(similarity), temperature
        self.centroids = initial_centroids(num_clusters, embed_dim) if own_centroids else None
        self.w_c = ExactLinear(embed_dim, embed_dim, bias=False)
        nn.init.xavier_uniform_(self.w_c.weight)

    @full_float32()
    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        centroids: Tensor | None = None,
        state: State | None = None,
        *,
        reports: bool = True,
    ) -> tuple[Tensor, Report, State]:
        """Assign tokens x [B, N, D] of a batch, or those that follow on tokens assigned before.
        Returns the cluster of each, int64 [B, N] (0 at padding); a report, whose observation is
        for :meth:`observe`; and the state, which the normalizer "running" carries on.

        In evaluation without gradients nothing is computed that only teaches: the report has the
        cluster sizes alone, and the updated centroids if they are handed on; without ``reports``
        it is empty. ``centroids`` [B, K, D] replace the module's own, and are needed if it owns
        none; ``state`` is of the tokens before (None or empty: there are none)."""
        if centroids is None and self.centroids is None:
            raise ValueError("this clustering owns no centroids, and was given none")
        # An activation checkpoint trains without gradients at first.
        learns = reports and (self.training or torch.is_grad_enabled())
        state = {} if state is None else state
        if padding_mask is not None:
            x = x.masked_fill(padding_mask.unsqueeze(-1), 0.0)
        centroids = self.centroids if centroids is None else centroids
        keys = self.w_c(x)
        average = self.normalizer == "average"
        how = {"similarity": self.similarity, "temperature": self.temperature}
        how |= {"normalizer": self.log_normalizer if average else self.normalizer}
        how |= {"padding_mask": padding_mask, "so_far": state.get("log_sum")}
        how |= {"update": learns or self.centroids is None}
        found = fuzzy_clusters(keys, centroids.to(keys.dtype), **how)
        if self.normalizer == "running":
            state = state | {"log_sum": found.so_far}
        if not reports:
            return found.clusters, Report(), state
        sizes = cluster_sizes(found.clusters.unsqueeze(1), self.num_clusters, padding_mask)[0]
        report = Report(cluster_sizes=sizes, centroids=found.updated)
        if not learns:
            return found.clusters, report, state
        vectors = self.similarity.vectors(found.updated)
        real = vectors.new_ones(x.shape[:2])
        if padding_mask is not None:
            real = (~padding_mask).to(vectors)
        tokens = real.sum()
        some = tokens.clamp(min=1.0)
        # eq. 6: the sum over tokens of phi(x_j, c_{I_j}), cluster by cluster.
        sums = ClusterSums.apply(x, found.clusters, self.num_clusters, self.similarity, real)
        neighbours = (vectors * vectors.roll(1, dims=1)).sum(-1).mean(-1)  # the ring of eq. 11
        report = report._replace(
            clustering_loss=-(sums * vectors).sum() / some,
            sorting_loss=-(neighbours * (real.sum(-1) / some)).sum(),
            observation=self.observation(torch.logsumexp(found.log_mass, dim=0), tokens),
        )
        return found.clusters, report, state


def initial_centroids(num_clusters: int, embed_dim: int) -> nn.Parameter:
    """Random centroids [K, D] of length about 1."""
    return nn.Parameter(torch.randn(num_clusters, embed_dim) * embed_dim**-0.5)
