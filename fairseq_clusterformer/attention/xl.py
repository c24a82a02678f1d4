"""Transformer-XL's attention (Dai et al. 2019): segments, each with a memory before it.

A layer reads the memory from the states that the layer below made of the tokens before a segment,
and teaches those states nothing. They do not depend on the later segment, so all segments of a row
are attended at once: their own tokens, and, as a second set of keys, the tokens before.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from ..clustering import State
from ..kernels import Layout
from .kind import Assignment, Kind, Shape, Tokens, register_attention
from .layout import recent_layouts, window_layouts
from .options import OptionError, WindowOptions, option
from .parts import QKV, Part
from .ranged import attend_layouts


@dataclass(frozen=True)
class XLOptions(WindowOptions):
    """Options of ``xl``: by default segments of W / 2 tokens, and a memory as long."""

    segment: int | None = option(
        None, "tokens of an xl segment (default: W / 2)", flag="xl_segment", at_least=1
    )
    memory: int | None = option(
        None, "tokens before it that it sees (default: a segment)", flag="xl_memory", at_least=1
    )


class Segments(Part):
    """Of a batch: the segment of a query, and the tokens before it as memory."""

    def __init__(self, tokens: Tokens, segment: Layout, memory: Layout):
        self.tokens, self.layouts = tokens, (segment, memory)

    def attend(self, qkv: QKV, joined: bool) -> list[tuple[Tensor, Tensor]]:
        segment, memory = self.layouts
        past = qkv._replace(**dict(zip("kv", qkv.detached(), strict=True)))
        return [
            *attend_layouts(qkv, self.tokens, [segment], None, True),
            *attend_layouts(past.repeated(), self.tokens, [memory], None, True),
        ]


@register_attention("xl", XLOptions)
class XL(Kind):
    """A query sees its segment of S tokens (causal: up to its own), and the M tokens before the
    segment, whose states get no gradient. Each layer reaches M tokens further back."""

    reads_qk = False

    def __init__(self, options: XLOptions, shape: Shape):
        if options.segment is None and options.window < 2:
            raise OptionError("window", options.window, "2 or more, half of it a segment")
        super().__init__(options, shape)

    @property
    def segment(self) -> int:
        """S."""
        return self.options.segment or self.options.window // 2

    @property
    def memory(self) -> int:
        """M."""
        return self.options.memory or self.segment

    @property
    def window(self) -> int:
        """Keys that a query sees at most: those of a segment and of its memory."""
        return self.segment + self.memory

    def assign(self, tokens: Tokens, state: State) -> tuple[Assignment, State]:
        return Assignment(latest=self.memory + 1 + tokens.positions % self.segment), state

    def parts(
        self, tokens: Tokens, assignment: Assignment, state: State | None = None
    ) -> list[Part]:
        if state is not None:
            return super().parts(tokens, assignment, state)
        key = ("segments", self.segment, self.memory, self.causal)
        layouts = tokens.batch.cached(key, lambda: self._layouts(tokens))
        return [Segments(tokens, *layouts)]

    def _layouts(self, tokens: Tokens) -> tuple[Layout, Layout]:
        size, batch = self.segment, tokens.batch
        (before,) = window_layouts(tokens.x, None, causal=True, batch=batch)  # up to each query
        positions = tokens.positions + self.sinks  # which are seen apart
        into = (positions.clamp(min=0) % size + 1).unsqueeze(1)  # of them, its segment's
        if before.query_order is not None:
            into = into.expand_as(before.query_order).gather(-1, before.query_order)
        begin = (before.hi - into).maximum(before.lo)  # padding has an empty range
        memory = replace(
            before, lo=before.lo.maximum(begin - self.memory), hi=begin, reach=self.memory
        )
        if self.causal:
            return replace(before, lo=begin, reach=size), memory
        if batch.is_plain:
            end = (begin + size).clamp(max=tokens.x.size(1))
            return replace(before, lo=begin, hi=end, reach=size), memory
        number = (positions.clamp(min=0) // size).unsqueeze(1)
        count = tokens.x.size(1) // size + 1
        (own,) = recent_layouts(number, count, size, causal=False, batch=batch)
        return own, memory
