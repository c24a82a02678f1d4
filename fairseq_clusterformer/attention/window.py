"""Attention by position: ``full`` (every token) and ``window`` (the nearest W)."""

from dataclasses import dataclass

from ..clustering import State
from .kind import Assignment, Kind, Tokens, register_attention
from .options import Options, WindowOptions, option


@dataclass(frozen=True)
class SlidingOptions(WindowOptions):
    """Options of ``window``."""

    cache_positions: bool = option(
        False,
        "window heads count rotary positions among the tokens that a query sees: sinks stand "
        "right before its window, however long the text is, as in StreamingLLM",
    )


@register_attention("window", SlidingOptions)
class Window(Kind):
    """A query sees the last W tokens with its own; not causal: W on either side and its own."""

    reads_qk = False

    @property
    def last_place(self) -> int | None:
        in_cache = getattr(self.options, "cache_positions", False)
        return self.sinks + self.window - 1 if in_cache else None

    def assign(self, tokens: Tokens, state: State) -> tuple[Assignment, State]:
        return Assignment(), state


@register_attention("full", Options)
class Full(Window):
    """Every query sees every key; causal: every key up to itself."""

    window = None
