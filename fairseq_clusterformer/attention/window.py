"""Attention by position: ``full`` (every token) and ``window`` (the nearest W)."""

import torch
from torch import Tensor

from ..clustering import State
from .base import AttentionConfig, Ring, Router, Routing, Step, register_attention
from .layout import window_layout


@register_attention("full")
class Full(Router):
    """Every query sees every key; causal: every key up to itself."""

    window = None

    def forward(
        self,
        x: Tensor,
        q: Tensor,
        k: Tensor,
        padding_mask: Tensor | None = None,
        centroids: Tensor | None = None,
    ) -> Routing:
        layout = window_layout(
            x.size(1),
            self.window,
            causal=self.causal,
            padding_mask=padding_mask,
            device=x.device,
        )
        return Routing((layout,))

    def step(
        self, x: Tensor, q: Tensor, k: Tensor, state: State, padding_mask: Tensor | None = None
    ) -> Step:
        ring = x.new_zeros(x.size(0), 1, dtype=torch.long)
        return Step((Ring(ring, ring),), state)


@register_attention("window")
class Window(Full):
    """A query sees the last W tokens with its own; not causal: W on either side and its own."""

    def __init__(self, config: AttentionConfig, **kwargs):
        super().__init__(config, **kwargs)
        self.window = config.window
