"""Gated clustering: clusters that the task teaches.

In the papers one clustering serves a token as query and as key, and no gradient of the task
reaches it. Here a query and a key of a head are assigned apart, and how sure a key was of its
cluster weighs what it gives there: with p the softmax over clusters of the key's scores,

    logit of an earlier key = q . k / sqrt(E) + log p(cluster of the key)

so a key that helps nobody in its cluster is pushed out of it, until it comes to where it helps.
Queries of another cluster never see a key that would help them, so it gets no gradient. In
training some keys are therefore put into a cluster drawn at random, as if they were sure of it: a
bias of 0 there, with the gradient of log p. One that helps there is drawn to it.
A query's own key, which may lie in another cluster, is always seen, with q . k / sqrt(E).

Shape letters: B batch, H heads, N tokens, E head width, K clusters.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from ..clustering import AverageNormalizer, Report, State
from ..clustering.fuzzy import Similarity, lowest_argmax
from ..precision import at_least_float32
from .base import AttentionConfig, Ring, Router, Routing, Step, register_attention
from .layout import cluster_layout, own_layout


@register_attention("gated")
class Gated(Router):
    """Each head clusters its queries and its keys, apart, around the same centroids.

    Whatever the model's precision, assignments are made in float32 (float64 for float64).

    Parameters learn from the task alone: the losses of CF22 (eq. 6 and 11) are not for this kind.
    """

    own_apart = True

    def __init__(self, config: AttentionConfig, *, num_heads: int, head_dim: int, **kwargs):
        super().__init__(config, num_heads=num_heads, head_dim=head_dim, **kwargs)
        self.window = config.window
        self.num_rings = config.num_clusters
        self.similarity = Similarity(config.cluster_similarity)
        self.temperature = config.temperature(0.2)
        self.exploration = config.cluster_exploration
        shape = (num_heads, config.num_clusters)
        self.centroids = nn.Parameter(torch.randn(*shape, head_dim) * head_dim**-0.5)
        self.normalizer = AverageNormalizer((2, *shape))  # of queries, and of keys

    def forward(
        self,
        x: Tensor,
        q: Tensor,
        k: Tensor,
        padding_mask: Tensor | None = None,
        centroids: Tensor | None = None,
    ) -> Routing:
        scores = self._scores(q, k, padding_mask)
        clusters, log_shares = self._assign(scores)
        report = self._report(scores, clusters, padding_mask)
        queries, keys = clusters
        log_share = _of(keys, log_shares)
        if self.training and self.exploration > 0:
            keys, log_share = self._explore(keys, log_shares)
        layout = cluster_layout(
            queries,
            self.num_rings,
            self.window,
            causal=self.causal,
            own=not self.causal,
            padding_mask=padding_mask,
            key_clusters=keys,
        )
        own = own_layout(
            x,
            # Not causal: a query sees its own key among those of its cluster, if it lies there.
            hidden=None if self.causal else queries == keys,
            padding_mask=padding_mask,
        )
        return Routing((replace(layout, key_bias=log_share), own), report)

    def step(
        self, x: Tensor, q: Tensor, k: Tensor, state: State, padding_mask: Tensor | None = None
    ) -> Step:
        (query, key), log_shares = self._assign(self._scores(q, k, padding_mask))
        log_share = _of(key, log_shares)
        return Step((Ring(query.squeeze(-1), key.squeeze(-1), log_share.squeeze(-1)),), state)

    def nothing_observed(self) -> Tensor | None:
        return self.normalizer.nothing_observed()

    def observe(self, observation: Tensor) -> None:
        self.normalizer.observe(observation)

    def commit(self) -> None:
        self.normalizer.commit()

    def _scores(self, q: Tensor, k: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Exponents of CF22 eq. 2 of queries and keys [2, B, H, N, K]."""
        with torch.autocast(q.device.type, enabled=False):
            # No gradient reaches queries here: an argmax is all that is made of their scores.
            both = at_least_float32(torch.stack([q.detach(), k]))
            if padding_mask is not None:
                both = both.masked_fill(padding_mask[:, None, :, None], 0.0)
            centroids = self.similarity.vectors(self.centroids.to(both.dtype))
            vectors = self.similarity.vectors(both)
            return vectors @ centroids.transpose(-1, -2) / self.temperature

    def _assign(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Clusters of queries and keys, int64 [2, B, H, N], and the log of each key's share of
        every cluster [B, H, N, K]."""
        log_normalizer = self.normalizer.log_normalizer.to(scores.dtype)
        scores = scores - log_normalizer[:, None, :, None]
        return lowest_argmax(scores), scores[1].log_softmax(-1)

    def _explore(self, keys: Tensor, log_shares: Tensor) -> tuple[Tensor, Tensor]:
        """Clusters of keys [B, H, N], some of them drawn, and biases; of those that are drawn with
        the value 0 and the gradient of their log shares."""
        drawn = torch.rand(keys.shape, device=keys.device) < self.exploration
        explored = torch.where(drawn, torch.randint_like(keys, self.num_rings), keys)
        log_share = _of(explored, log_shares)
        return explored, torch.where(drawn, log_share - log_share.detach(), log_share)

    @torch.no_grad()
    def _report(self, scores: Tensor, clusters: Tensor, padding_mask: Tensor | None) -> Report:
        """Sizes of the clusters [2, H, K], and what the normaliser observes."""
        real = torch.ones_like(scores[0, :, 0, :, 0])  # [B, N]
        if padding_mask is not None:
            real = real.masked_fill(padding_mask, 0.0)
        log_mass = (scores + real.log()[:, None, :, None]).logsumexp((1, 3))
        observation = self.normalizer.observation(log_mass, real.sum())
        sizes = torch.zeros_like(log_mass)
        weight = real.unsqueeze(1).expand_as(clusters).transpose(1, 2)
        sizes.scatter_add_(-1, clusters.transpose(1, 2).flatten(2), weight.flatten(2))
        return Report(cluster_sizes=sizes, clusters=clusters[0], observation=observation)


def _of(clusters: Tensor, log_shares: Tensor) -> Tensor:
    """Each key's log share of its cluster [B, H, N]."""
    return log_shares.gather(-1, clusters.unsqueeze(-1)).squeeze(-1)
