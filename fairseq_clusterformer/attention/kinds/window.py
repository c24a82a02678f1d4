"""Attention by position: ``full`` (every token) and ``window`` (the nearest W)."""

from dataclasses import dataclass

from ...clustering import State
from ..kind import Kind, Traits
from ..options import Options, WindowOptions, option, register_attention
from ..tokens import Assignment, Shape, Tokens


@dataclass(frozen=True)
class SlidingOptions(WindowOptions):
    cache_positions: bool = option(
        False,
        "window heads count rotary positions among the tokens that a query sees: sinks stand "
        "right before its window, however long the text is, as in StreamingLLM",
    )


@register_attention("window", SlidingOptions)
class Window(Kind):
    """A query sees the last W tokens with its own; not causal: W on either side and its own."""

    @staticmethod
    def declare(options: SlidingOptions, shape: Shape) -> Traits:
        last_place = options.sinks + options.window - 1 if options.cache_positions else None
        return Traits(reads_qk=False, last_place=last_place)

    def assign(self, tokens: Tokens, state: State) -> tuple[Assignment, State]:
        return Assignment(), state


@register_attention("full", Options)
class Full(Window):
    """Every query sees every key; causal: every key up to itself."""

    @staticmethod
    def declare(options: Options, shape: Shape) -> Traits:
        return Traits(reads_qk=False)
