"""Attention by position: ``full`` (every token), ``window`` (the nearest W), and ``strided`` (one
of so many; Sparse Transformer, Child et al. 2019)."""

from dataclasses import dataclass

import torch

from ...clustering import State
from ..kind import Kind, Traits
from ..options import ClusterOptions, Options, WindowOptions, option, register_attention
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
    def declare(options: Options, shape: Shape) -> Traits:
        last_place = options.sinks + options.window - 1 if options.cache_positions else None
        return Traits(reads_qk=False, last_place=last_place)

    def assign(self, tokens: Tokens, state: State) -> tuple[Assignment, State]:
        return Assignment(), state


@register_attention("full", Options)
class Full(Window):
    """Every query sees every key; causal: every key up to itself."""


@dataclass(frozen=True)
class StridedOptions(ClusterOptions):
    stride: int = option(0, "stride of strided heads; 0: as many as clusters", at_least=0)
    pattern: str = option(
        "strided",
        "what strided heads see: every stride-th token, or the last of each block of so many",
        flag="strided_pattern",
        choices=("strided", "fixed"),
    )

    @property
    def period(self) -> int:
        """Tokens from one of a cluster to the next."""
        return self.stride or self.clusters


@register_attention("strided", StridedOptions)
class Strided(Kind):
    """Positions count the real tokens of a document, from 0. Pattern "strided": a query sees the W
    latest tokens whose position is its own modulo the stride; not causal: W on either side.
    Pattern "fixed": it sees itself, and the latest tokens that end a block of ``stride`` tokens;
    not causal: W on either side. Those are Child et al.'s summary positions, with c = 1.

    What is near is for another head, ``window+strided`` is the paper's pair, or for a gap.
    """

    @staticmethod
    def declare(options: StridedOptions, shape: Shape) -> Traits:
        if options.pattern == "fixed":  # cluster 0 is of keys that end a block
            return Traits(own="always", clusters=2, reads_qk=False)
        return Traits(clusters=options.period, reads_qk=False)

    def assign(self, tokens: Tokens, state: State) -> tuple[Assignment, State]:
        stride = self.options.period
        place = (tokens.positions % stride).unsqueeze(1).expand(len(tokens.x), -1, -1)
        if self.options.pattern == "strided":
            return Assignment.once(place), state
        ends = (place != stride - 1).long()
        return Assignment.once(torch.zeros_like(place), ends), state
