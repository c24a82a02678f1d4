"""Attention by position modulo a stride (Sparse Transformer, Child et al. 2019)."""

import torch
from torch import Tensor

from ..clustering import State
from .base import AttentionConfig, Ring, Router, Routing, Step, register_attention
from .layout import LAST_RESORT, cluster_layout, own_layout


@register_attention("strided")
class Strided(Router):
    """Positions count real tokens only, from 0, wherever padding stands.

    Pattern "strided": a query sees the W latest tokens whose position is its own modulo the
    stride; not causal: W on either side. With the stride of a window's length it sees the same
    place of each window.

    Pattern "fixed": it sees itself, and the W latest tokens that end a block of ``stride``
    tokens; not causal: W on either side. Those are Child et al.'s summary positions, with c = 1.

    What is near is for another head: ``window+strided`` is the paper's pair.
    """

    def __init__(self, config: AttentionConfig, **kwargs):
        super().__init__(config, **kwargs)
        self.window = config.window
        self.stride = config.stride or config.num_clusters
        self.fixed = config.strided_pattern == "fixed"
        self.own_apart = self.fixed
        self.num_rings = 2 if self.fixed else self.stride

    def forward(
        self,
        x: Tensor,
        q: Tensor,
        k: Tensor,
        padding_mask: Tensor | None = None,
        centroids: Tensor | None = None,
    ) -> Routing:
        real = x.new_ones(x.shape[:2], dtype=torch.long)
        if padding_mask is not None:
            real = (~padding_mask).long()
        queries, keys = self._classes(real.cumsum(1).unsqueeze(1) - 1)
        layout = cluster_layout(
            queries,
            self.num_rings,
            self.window,
            causal=self.causal,
            own=not (self.causal and self.fixed),
            padding_mask=padding_mask,
            key_clusters=keys if self.fixed else None,
        )
        if not self.fixed:
            return Routing((layout,))
        # Not causal: a block's last token has seen itself already, and must not see it twice.
        bias = None if self.causal else torch.where(keys == 0, LAST_RESORT, 0.0)
        return Routing((layout, own_layout(x, key_bias=bias, padding_mask=padding_mask)))

    def step(
        self, x: Tensor, q: Tensor, k: Tensor, state: State, padding_mask: Tensor | None = None
    ) -> Step:
        position = state.get("position", x.new_zeros(x.size(0), 1, dtype=torch.long))
        real = 1 if padding_mask is None else (~padding_mask).long()
        return Step((Ring(*self._classes(position)),), {"position": position + real})

    def _classes(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """What stands in one class is seen by the queries of that class: of queries, of keys."""
        place = position % self.stride
        if self.fixed:
            return torch.zeros_like(place), (place != self.stride - 1).long()
        return place, place
