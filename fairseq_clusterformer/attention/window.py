"""Attention by position: ``full`` (every token) and ``window`` (the nearest W)."""

from ..clustering import State
from .kind import Assignment, Kind, Tokens, register_attention
from .options import Options, WindowOptions


@register_attention("window", WindowOptions)
class Window(Kind):
    """A query sees the last W tokens with its own; not causal: W on either side and its own."""

    reads_qk = False

    def assign(self, tokens: Tokens, state: State) -> tuple[Assignment, State]:
        return Assignment(), state


@register_attention("full", Options)
class Full(Window):
    """Every query sees every key; causal: every key up to itself."""

    window = None
