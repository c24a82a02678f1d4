"""Attention by locality-sensitive hashing (Reformer, Kitaev et al. 2020).

Shape letters: B batch, H heads, N tokens, E head width, K buckets, R rounds.
"""

import torch
from torch import Tensor, nn

from ..clustering import Report, State, cluster_sizes
from ..clustering.fuzzy import lowest_argmax
from ..precision import Float32Buffers, at_least_float32
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
from .layout import LAST_RESORT, chunk_layout, cluster_layout, own_layout, without_own


@register_attention("lsh")
class Lsh(Float32Buffers, Router):
    """A query sees keys of its own bucket, of which there are ``num_clusters``, in each round.

    A token's query and key are one vector, the key at length 1; so that its own key does not
    outweigh all others, it counts only where nothing else is seen. A key that shares a bucket
    with the query in several rounds counts that often.

    Rule "recent": the W latest of the bucket; not causal: the W nearest on either side. Rule
    "chunk": the tokens sorted by bucket and cut into K chunks, a query sees its own chunk and the
    one before, whatever their buckets (as the package reformer-pytorch does by default; the paper
    also hides keys of other buckets, and counts a key once).

    Each training step draws its rotations anew, from torch's generator, whose state activation
    checkpoints replay; evaluation and decoding use those of the checkpoint.
    """

    own_apart = True

    def __init__(
        self, config: AttentionConfig, *, num_heads: int, head_dim: int, causal: bool, **kwargs
    ):
        super().__init__(config, num_heads=num_heads, head_dim=head_dim, causal=causal, **kwargs)
        check_rule("lsh", config.cluster_rule, causal=causal)
        self.window = config.window
        self.num_rings = config.num_clusters
        directions = -(-config.num_clusters // 2)  # two buckets each, or one of the last
        self.register_buffer(
            "rotations", torch.randn(config.hash_rounds, num_heads, head_dim, directions)
        )

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        shared = shared_vector(q, k)
        return shared, nn.functional.normalize(at_least_float32(shared), dim=-1).to(shared.dtype)

    def forward(
        self,
        x: Tensor,
        q: Tensor,
        k: Tensor,
        padding_mask: Tensor | None = None,
        centroids: Tensor | None = None,
    ) -> Routing:
        num_buckets, window = self.config.num_clusters, self.config.window
        rounds = self._buckets(k)
        layouts: list = []
        for buckets in rounds:
            if self.config.cluster_rule == "chunk":
                layouts += without_own(
                    chunk_layout(buckets, num_buckets, padding_mask=padding_mask)
                )
                continue
            layout = cluster_layout(
                buckets,
                num_buckets,
                window,
                causal=self.causal,
                own=not self.causal,
                padding_mask=padding_mask,
            )
            layouts += [layout] if self.causal else without_own(layout)
        own = own_layout(
            x, key_bias=x.new_full((1, 1, x.size(1)), LAST_RESORT), padding_mask=padding_mask
        )
        sizes = cluster_sizes(torch.cat(rounds, dim=1), num_buckets, padding_mask)
        return Routing((*layouts, own), Report(cluster_sizes=sizes, clusters=rounds[0]))

    def step(
        self, x: Tensor, q: Tensor, k: Tensor, state: State, padding_mask: Tensor | None = None
    ) -> Step:
        rings = [buckets.squeeze(-1) for buckets in self._buckets(k)]
        own_bias = x.new_full((x.size(0), 1), LAST_RESORT)
        return Step(tuple(Ring(ring, ring) for ring in rings), state, own_bias=own_bias)

    @torch.no_grad()
    def _buckets(self, k: Tensor) -> list[Tensor]:
        """The bucket of each token in each round, int64 [B, H, N] in [0, K)."""
        rotations = torch.randn_like(self.rotations) if self.training else self.rotations
        with torch.autocast(k.device.type, enabled=False):
            k = at_least_float32(k)
            rounds = [k @ rotation for rotation in rotations.to(k.dtype)]
            # Of an odd number of buckets, the last direction has one.
            return [
                lowest_argmax(torch.cat([r, -r], dim=-1)[..., : self.config.num_clusters])
                for r in rounds
            ]
