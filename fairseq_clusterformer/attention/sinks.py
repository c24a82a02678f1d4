"""Attention sinks: the first tokens of a document, which all of its queries see.

Softmax must put its mass somewhere, and decoders learn to put it on their first tokens
(StreamingLLM, Xiao et al. 2024). No other part shows these, so none counts twice.

StreamingLLM also counts positions among the tokens that it keeps: the sinks, and right behind them
the window. There the distances within a window are those in the text, and a query that stands
further on than the last place meets sinks as if it stood there.

Shape letters as in :mod:`~fairseq_clusterformer.attention.rings`; H heads, N tokens, S sinks.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..clustering import State
from ..kernels import Own
from ..precision import at_least_float32
from .assignment import Assignment, Seeing, Tokens
from .layout import sink_layout
from .parts import QKV, Part
from .projections import rotated
from .ranged import attend_layouts
from .rings import Entries, entries_of
from .rules import own_bias


class Sinks(Part):
    """The first S tokens of a query's document, up to its own.

    State: ``sinks`` [B, J, S, C], by position; 0 where a document has had fewer tokens.

    Args:
        kind, tokens, assignment: who sees whom; ``tokens`` are all, sinks included.
        state: of the tokens before; None: a batch.
    """

    def __init__(
        self, kind: Seeing, tokens: Tokens, assignment: Assignment, state: State | None = None
    ):
        self.number, self.groups, self.tokens = kind.sinks, assignment.groups, tokens
        self.state, self.bias = state, own_bias(kind)
        self.beyond = None  # how far the queries stand behind the last place
        if kind.last_place is not None:
            self.beyond = (tokens.positions - kind.last_place).clamp(min=0)
        self.biased = self.bias != 0.0
        if state is not None:
            return
        batch, itself = tokens.batch, not self.biased
        self.layouts = (
            batch.cached(
                ("sinks", self.number, itself),
                lambda: sink_layout(tokens.positions, self.number, itself=itself, batch=batch),
            ),
        )
        if self.biased:
            self.own = Own(self.bias, hidden=(tokens.positions >= self.number).unsqueeze(1))

    def attend(self, qkv: QKV, joined: bool) -> list[tuple[Tensor, Tensor]]:
        if self.beyond is not None:
            qkv = qkv._replace(q=rotated(qkv.q, -self.beyond, qkv.rotary))
        if self.state is None:
            return attend_layouts(qkv, self.tokens, self.layouts, self.own, joined)
        self._store(qkv)
        q, slot = at_least_float32(qkv.q), torch.arange(self.number, device=qkv.q.device)
        kept = at_least_float32(self.kept.repeat_interleave(q.size(1) // self.kept.size(1), dim=1))
        width = q.size(-1)
        k, v = kept[..., :width], kept[..., -width:]
        logits = q @ k.mT * width**-0.5  # [B, H, N, S]
        place = self.tokens.positions.clamp(min=0)[:, None, :, None]
        logits = logits + torch.where(slot == place, self.bias, 0.0).to(logits.dtype)
        logits = logits.masked_fill(slot > place, -torch.inf)
        return [(logits.softmax(-1) @ v, logits.logsumexp(-1))]

    def look(self, qkv: QKV) -> list[Entries]:
        self._store(qkv)
        entries, place = self.kept, self.tokens.positions  # [B, 1]
        slot, width = torch.arange(self.number, device=place.device), qkv.q.size(-1)
        if self.biased or self.beyond is not None:
            entries = entries.clone()
        if self.beyond is not None:  # the query is one for all parts: keys come nearer instead
            entries[..., :width] = rotated(entries[..., :width], self.beyond, qkv.rotary)
        if self.biased:
            entries[..., width] = torch.where(slot == place, self.bias, 0.0).unsqueeze(1)
        hidden = (slot > place)[:, None, None].expand(-1, self.groups, -1, -1)
        return [Entries(entries.flatten(0, 1), hidden, some=True)]

    def for_cpu_step(self, q: Tensor) -> bool:
        kept = self.state.get("sinks")
        if self.beyond is not None or kept is None or kept.dtype != q.dtype:
            return False
        return bool((self.tokens.positions >= self.number).all())

    def in_cpu_step(self, qkv: QKV) -> dict[str, Tensor]:
        self.kept = self.state["sinks"]
        return {"sinks": self.kept}

    def keep(self, qkv: QKV) -> State:
        return {"sinks": self.kept}

    def _store(self, qkv: QKV) -> None:
        """Keep those of the new tokens that are sinks, each at its position."""
        place = self.tokens.positions.clamp(max=self.number)
        if self.tokens.padding_mask is not None:
            place = place.masked_fill(self.tokens.padding_mask, self.number)
        bias = qkv.k.new_zeros(1, 1, 1) if qkv.biased else None
        new = entries_of(qkv.k, qkv.v, bias, 1)[:, 0, 0]  # [B, J, N, C]
        kept = self.state.get("sinks")
        if kept is None:
            kept = new.new_zeros(*new.shape[:2], self.number, new.size(-1))
        at = place[:, None, :, None].expand(*new.shape)
        # One slot more, which is dropped, takes what is no sink.
        self.kept = pad(kept, (0, 0, 0, 1)).scatter(2, at, new)[:, :, :-1].contiguous()
