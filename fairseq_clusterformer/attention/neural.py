"""Neural clustering attention (CF22): a query sees tokens of its own, learned cluster."""

from torch import Tensor

from ..clustering import NeuralClustering, State
from .base import AttentionConfig, Ring, Router, Routing, Step, register_attention
from .layout import chunk_layout, cluster_layout


@register_attention("neural")
class Neural(Router):
    """One clustering of the layer's input, shared by the heads; queries and keys alike."""

    def __init__(self, config: AttentionConfig, *, embed_dim: int, causal: bool, **kwargs):
        super().__init__(config, embed_dim=embed_dim, causal=causal, **kwargs)
        if causal and config.cluster_rule == "chunk":
            raise ValueError(
                "the cluster rule is 'chunk', which is not causal: where a chunk begins depends "
                "on later tokens; allowed in a causal model: recent, or leaking-chunk to compare"
            )
        if not causal and config.cluster_rule == "leaking-chunk":
            raise ValueError(
                "the cluster rule is 'leaking-chunk', which is for causal models only; "
                "allowed in an encoder: chunk, recent"
            )
        if causal and not config.own_centroids:
            raise ValueError(
                "centroids handed on from layer to layer sum over later tokens; "
                "allowed in a causal model: each layer owns its centroids"
            )
        self.needs_centroids = not config.own_centroids
        self.window = config.window
        self.num_rings = config.num_clusters
        self.can_step = causal and config.cluster_rule == "recent"
        self.clustering = NeuralClustering(
            embed_dim,
            config.num_clusters,
            similarity=config.cluster_similarity,
            temperature=config.temperature(0.1),
            # What depends on later tokens anyway uses the normaliser of the paper.
            normalizer=(config.cluster_normalizer if self.can_step else "sentence"),
            own_centroids=config.own_centroids,
        )

    def forward(
        self,
        x: Tensor,
        q: Tensor,
        k: Tensor,
        padding_mask: Tensor | None = None,
        centroids: Tensor | None = None,
    ) -> Routing:
        clusters, report = self.clustering(x, padding_mask, centroids)
        clusters = clusters.unsqueeze(1)
        if self.config.cluster_rule == "recent":
            layout = cluster_layout(
                clusters,
                self.config.num_clusters,
                self.config.window,
                causal=self.causal,
                padding_mask=padding_mask,
            )
        else:
            layout = chunk_layout(
                clusters,
                self.config.num_clusters,
                earlier_only=self.causal,
                padding_mask=padding_mask,
            )
        return Routing((layout,), report._replace(clusters=clusters))

    @property
    def why_no_steps(self) -> str:
        if not self.causal:
            return super().why_no_steps
        return (
            f"the cluster rule is {self.config.cluster_rule!r}: it lets later tokens change "
            "earlier outputs, so text cannot be generated with it; train with the rule recent"
        )

    def step(
        self, x: Tensor, q: Tensor, k: Tensor, state: State, padding_mask: Tensor | None = None
    ) -> Step:
        clusters, state = self.clustering.step(x, state, padding_mask)
        return Step((Ring(clusters, clusters),), state)

    def nothing_observed(self) -> Tensor | None:
        return self.clustering.nothing_observed()

    def observe(self, observation: Tensor) -> None:
        self.clustering.observe(observation)

    def commit(self) -> None:
        self.clustering.commit()
