"""Transformer-XL's attention (Dai et al. 2019): segments, each with a memory before it, of states
that the layer below made of the tokens before, and that are taught nothing. They do not depend on
the later segment, so all segments of a row are attended at once: their own tokens, and, as a
second set of keys, the tokens before."""

from dataclasses import dataclass, replace

from torch.nn.functional import pad

from ...clustering import State
from ..kind import Kind, Sight, Text, Traits
from ..layout import recent_layouts
from ..options import OptionError, WindowOptions, option, register_attention
from ..tokens import Assignment, Shape, Tokens


@dataclass(frozen=True)
class XLOptions(WindowOptions):
    segment: int | None = option(
        None, "tokens of an xl segment (default: W / 2)", flag="xl_segment", at_least=1
    )
    memory: int | None = option(
        None, "tokens before it that it sees (default: a segment)", flag="xl_memory", at_least=1
    )

    @property
    def sizes(self) -> tuple[int, int]:
        """S and M."""
        segment = self.segment or self.window // 2
        return segment, self.memory or segment


@register_attention("xl", XLOptions)
class XL(Kind):
    """A query sees its segment of S tokens (causal: up to its own), and the M tokens before the
    segment, whose states get no gradient. Each layer reaches M tokens further back."""

    @staticmethod
    def declare(options: XLOptions, shape: Shape) -> Traits:
        if options.segment is None and options.window < 2:
            raise OptionError("window", options.window, "2 or more, half of it a segment")
        return Traits(window=sum(options.sizes), reads_qk=False, reads_constants=True)

    def assign(self, tokens: Tokens, state: State) -> tuple[Assignment, State]:
        segment, memory = self.options.sizes
        return Assignment(latest=memory + 1 + tokens.positions % segment), state

    def sight(self, text: Text, assignment: Assignment) -> Sight:
        key = "segments", *self.options.sizes, self.rule.causal
        return text.batch.cached(key, lambda: self._segments(text))

    def _segments(self, text: Text) -> Sight:
        (size, memory), batch = self.options.sizes, text.batch
        (before,) = text.window(None, causal=True)  # up to each query
        positions = text.tokens.positions + self.rule.sinks  # which are seen apart
        positions = pad(positions.clamp(min=0), (text.past, 0)).unsqueeze(1)
        into = positions % size + 1  # tokens of its segment, up to it
        if before.query_order is not None:
            into = into.expand_as(before.query_order).gather(-1, before.query_order)
        begin = (before.hi - into).maximum(before.lo)  # padding has an empty range
        constant = replace(before, lo=before.lo.maximum(begin - memory), hi=begin)
        if self.rule.causal:
            own = replace(before, lo=begin)
        else:
            count = text.length // size + 1
            (own,) = recent_layouts(positions // size, count, size, causal=False, batch=batch)
        return Sight((own,), constant=(constant,))
