"""Attention within clusters that K-Means finds from time to time (CF20)."""

from torch import Tensor

from ..clustering import KMeansClustering, Report, State, cluster_sizes
from .base import AttentionConfig, Ring, Router, Routing, Step, check_rule, register_attention
from .layout import cluster_layout, own_chunk_layout


@register_attention("kmeans")
class KMeans(Router):
    """One clustering of the layer's input, shared by the heads; queries and keys alike.

    Rule "chunk" (the paper's, for encoders): the tokens sorted by cluster and cut into chunks of
    W; a query sees its own chunk. Rule "recent": the W latest tokens of its cluster; not causal:
    the W nearest on either side.
    """

    observes_alone = True

    def __init__(self, config: AttentionConfig, *, embed_dim: int, causal: bool, **kwargs):
        super().__init__(config, embed_dim=embed_dim, causal=causal, **kwargs)
        check_rule("kmeans", config.cluster_rule, causal=causal)
        self.window = config.window
        self.num_rings = config.num_clusters
        self.clustering = KMeansClustering(
            embed_dim,
            config.num_clusters,
            bank_size=config.kmeans_bank_size,
            interval=config.kmeans_interval,
        )

    def forward(
        self,
        x: Tensor,
        q: Tensor,
        k: Tensor,
        padding_mask: Tensor | None = None,
        centroids: Tensor | None = None,
    ) -> Routing:
        num_clusters, window = self.config.num_clusters, self.config.window
        clusters = self.clustering(x).unsqueeze(1)
        if self.config.cluster_rule == "recent":
            layout = cluster_layout(
                clusters, num_clusters, window, causal=self.causal, padding_mask=padding_mask
            )
        else:
            layout = own_chunk_layout(clusters, num_clusters, window, padding_mask=padding_mask)
        sizes = cluster_sizes(clusters, num_clusters, padding_mask)[0]
        observation = self.clustering.observation(x, padding_mask) if self.training else None
        report = Report(cluster_sizes=sizes, clusters=clusters, observation=observation)
        return Routing((layout,), report)

    def step(
        self, x: Tensor, q: Tensor, k: Tensor, state: State, padding_mask: Tensor | None = None
    ) -> Step:
        clusters = self.clustering(x)
        return Step((Ring(clusters, clusters),), state)

    def observe(self, observation: Tensor) -> None:
        self.clustering.observe(observation)

    def commit(self) -> None:
        self.clustering.commit()
