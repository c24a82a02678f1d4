"""Attention by K-Means of queries and keys (Routing Transformer, Roy et al. 2021).

Shape letters: B batch, H heads, N tokens, E head width, K clusters.
"""

from torch import Tensor
from torch.nn.functional import layer_norm

from ..clustering import Report, State
from ..clustering.spherical import SphericalMeans
from ..precision import at_least_float32
from .base import (
    AttentionConfig,
    Ring,
    Router,
    Routing,
    Step,
    check_rule,
    register_attention,
    shared_vector,
)
from .layout import LAST_RESORT, cluster_layout, own_layout, top_layout


@register_attention("routing")
class RoutingAttention(Router):
    """Each head has centroids of its own, which follow its queries and keys.

    Queries and keys are layer-normalised without scale, as in the paper, so that all have length
    sqrt(E). In a causal model both are one vector, as there; a token's own key, which would
    outweigh all others, counts only where nothing else is seen.

    Rule "recent": a query sees the W latest keys of its cluster; not causal: the W nearest on
    either side, or itself where the cluster has no key. Rule "chunk" (the paper's, for encoders):
    see :func:`~fairseq_clusterformer.attention.layout.top_layout`.
    """

    def __init__(
        self, config: AttentionConfig, *, num_heads: int, head_dim: int, causal: bool, **kwargs
    ):
        super().__init__(config, num_heads=num_heads, head_dim=head_dim, causal=causal, **kwargs)
        check_rule("routing", config.cluster_rule, causal=causal)
        self.window = config.window
        self.num_rings = config.num_clusters
        self.own_apart = causal
        self.means = SphericalMeans(num_heads, config.num_clusters, head_dim)

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if not self.causal:
            return _on_sphere(q), _on_sphere(k)
        shared = _on_sphere(shared_vector(q, k))
        return shared, shared

    def forward(
        self,
        x: Tensor,
        q: Tensor,
        k: Tensor,
        padding_mask: Tensor | None = None,
        centroids: Tensor | None = None,
    ) -> Routing:
        clusters, _ = self.means(q)
        sums = self.means.sums(q, clusters, padding_mask)
        key_clusters = cosines = None
        if not self.causal:
            key_clusters, cosines = self.means(k)
            sums = sums + self.means.sums(k, key_clusters, padding_mask)
        report = Report(cluster_sizes=sums[..., -1], clusters=clusters, observation=sums.flatten())
        if self.config.cluster_rule == "chunk":
            return Routing((top_layout(clusters, cosines, padding_mask=padding_mask),), report)
        layout = cluster_layout(
            clusters,
            self.config.num_clusters,
            self.window,
            causal=self.causal,
            own=not self.causal,
            padding_mask=padding_mask,
            key_clusters=key_clusters,
        )
        bias = x.new_full((1, 1, x.size(1)), LAST_RESORT)
        return Routing((layout, own_layout(x, key_bias=bias, padding_mask=padding_mask)), report)

    def step(
        self, x: Tensor, q: Tensor, k: Tensor, state: State, padding_mask: Tensor | None = None
    ) -> Step:
        ring = self.means(q)[0].squeeze(-1)
        own_bias = x.new_full((x.size(0), 1), LAST_RESORT)
        return Step((Ring(ring, ring),), state, own_bias=own_bias)

    def nothing_observed(self) -> Tensor:
        return self.means.pending.new_zeros(self.means.pending.numel())

    def observe(self, observation: Tensor) -> None:
        self.means.observe(observation)

    def commit(self) -> None:
        self.means.commit()


def _on_sphere(x: Tensor) -> Tensor:
    return layer_norm(at_least_float32(x), x.shape[-1:]).to(x.dtype)
