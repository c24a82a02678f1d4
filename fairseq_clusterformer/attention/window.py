"""Attention by position: ``full`` (every token) and ``window`` (the nearest W)."""

from torch import Tensor

from .base import AttentionConfig, Router, Routing, register_attention
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


@register_attention("window")
class Window(Full):
    """A query sees the last W tokens with its own; not causal: W on either side and its own."""

    def __init__(self, config: AttentionConfig, **kwargs):
        super().__init__(config, **kwargs)
        self.window = config.window
