"""Transformer-XL's attention (Dai et al. 2019): segments, each with the memory of the one before.

A layer reads the memory from the states that the layer below made of the segment before, and
teaches those states nothing. They do not depend on the later segment, so all segments of a row are
attended at once: their own tokens, and, as a second set of keys, the tokens of the one before.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..clustering import State
from ..kernels import Layout
from .kind import Assignment, Kind, Shape, Tokens, register_attention
from .layout import recent_layouts
from .options import OptionError, WindowOptions
from .parts import QKV, Part
from .ranged import attend_layouts


@dataclass(frozen=True)
class XLOptions(WindowOptions):
    """Options of ``xl``: segments of W / 2 tokens, and a memory as long."""


class Segments(Part):
    """Of a batch: the segment of a query, and the one before as memory."""

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
    """A query sees its segment of S = W / 2 tokens (causal: up to its own), and the S tokens
    before the segment, whose states get no gradient. Each layer reaches S tokens further back."""

    reads_qk = False

    def __init__(self, options: XLOptions, shape: Shape):
        if options.window < 2:
            raise OptionError("window", options.window, "2 or more, half of it a segment")
        super().__init__(options, shape)

    @property
    def segment(self) -> int:
        """S."""
        return self.options.window // 2

    @property
    def window(self) -> int:
        """Keys that a query sees at most: those of a segment and of its memory."""
        return 2 * self.segment

    def assign(self, tokens: Tokens, state: State) -> tuple[Assignment, State]:
        return Assignment(latest=self.segment + 1 + tokens.positions % self.segment), state

    def parts(
        self, tokens: Tokens, assignment: Assignment, state: State | None = None
    ) -> list[Part]:
        if state is not None:
            return super().parts(tokens, assignment, state)
        key = ("segments", self.segment, self.causal)
        layouts = tokens.batch.cached(key, lambda: self._layouts(tokens))
        return [Segments(tokens, *layouts)]

    def _layouts(self, tokens: Tokens) -> tuple[Layout, Layout]:
        size, batch = self.segment, tokens.batch
        if batch.is_plain:
            slot = torch.arange(tokens.x.size(1), device=tokens.x.device).view(1, 1, -1)
            begin = slot - slot % size
            end = slot + 1 if self.causal else (begin + size).clamp(max=slot.size(-1))
            memory = Layout((begin - size).clamp(min=0), begin, reach=size)
            return Layout(begin, end, reach=size), memory
        positions = tokens.positions + self.sinks  # which tokens that are seen apart do not count
        number = (positions.clamp(min=0) // size).unsqueeze(1).expand(len(tokens.x), -1, -1)
        count = tokens.x.size(1) // size + 2
        (own,) = recent_layouts(number, count, size, causal=self.causal, batch=batch)
        (memory,) = recent_layouts(
            number, count, size, causal=True, batch=batch, key_clusters=number + 1
        )
        return own, memory
