"""Attention by K-Means of queries and keys (Routing Transformer, Roy et al. 2021)."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import layer_norm

from ...clustering import Report, State, cluster_sizes
from ...clustering.fuzzy import nearest_by_cosine
from ...clustering.learner import SphericalMeans
from ...precision import at_least_float32
from ..kind import Kind, Sight, Text, Traits
from ..layout import top_layout
from ..options import IndexOptions, register_attention, rule_option
from ..tokens import Assignment, Shape, Tokens


@dataclass(frozen=True)
class RoutingOptions(IndexOptions):
    rule: str = rule_option("recent", "chunk")


@register_attention("routing", RoutingOptions)
class RoutingAttention(Kind):
    """Each head has centroids of its own, which follow its queries and keys. These are
    layer-normalised without scale, as in the paper, so that all have length sqrt(E). In a causal
    model both are one vector, as there; a token's own key, which would outweigh all others, counts
    only where nothing else is seen; not causal, where the cluster has no key. Rule "chunk" (the
    paper's, for encoders): see :func:`~fairseq_clusterformer.attention.layout.top_layout`."""

    @staticmethod
    def declare(options: RoutingOptions, shape: Shape) -> Traits:
        return Traits(own="fallback" if shape.causal or not options.gap else "always")

    def __init__(self, options: RoutingOptions, shape: Shape):
        super().__init__(options, shape)
        self.means = SphericalMeans(shape.num_heads, options.clusters, shape.head_dim)

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if not self.rule.causal:
            return _on_sphere(q), _on_sphere(k)
        shared = _on_sphere((q + k) * 0.5**0.5)  # of the variance of one
        return shared, shared

    def assign(self, tokens: Tokens, state: State) -> tuple[Assignment, State]:
        mask, keys = tokens.padding_mask, None
        clusters = nearest_by_cosine(tokens.q, self.means.centroids)
        if tokens.decoding:
            return Assignment.once(clusters), state
        assigned = [(tokens.q, clusters)]
        if not self.rule.causal:
            keys = nearest_by_cosine(tokens.k, self.means.centroids)
            assigned.append((tokens.k, keys))
        sizes = sum(cluster_sizes(c, self.options.clusters, mask) for _, c in assigned)
        observation = None
        if self.training:
            seen = (self.means.sums(vectors, c, mask) for vectors, c in assigned)
            observation = sum(seen).flatten()
        report = Report(cluster_sizes=sizes, clusters=clusters, observation=observation)
        return Assignment.once(clusters, keys, report=report), state

    def chunks(self, text: Text) -> Sight:
        ((clusters,), _), mask = text.rounds[0], text.batch.padding_mask
        return Sight((top_layout(clusters, self.means(text.tokens.k), padding_mask=mask),))


def _on_sphere(x: Tensor) -> Tensor:
    return layer_norm(at_least_float32(x), x.shape[-1:]).to(x.dtype)
