"""The part that every kind has: keys of a query's cluster, those that are near, and its own.

Shape letters as in :mod:`~fairseq_clusterformer.attention.rings`; H heads, N new tokens, M keys
that were kept.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..clustering import State
from ..kernels import (
    Layout,
    Own,
    attend_own,
    joint_attention,
    ranged_attention,
)
from ..kernels.cpu.step import InRings
from ..precision import at_least_float32
from .assignment import Assignment, Seeing, Tokens
from .batch import Batch, any_padding
from .parts import QKV, Part
from .rings import (
    Entries,
    History,
    Keys,
    LocalWindow,
    Rings,
    entries_of,
    filled,
    for_each,
    opened,
)
from .rules import check_clusters, own_bias, recent, route
from .scouts import hidden_from, scout_layouts


def attend_layouts(
    qkv: QKV, tokens: Tokens, layouts: Sequence[Layout], own: Own | None, joined: bool
) -> list[tuple[Tensor, Tensor]]:
    """A result for each layout and one for the own key, or one of all."""
    (q, k, v), dtype = qkv[:3], qkv.k.dtype
    several = len(layouts) + (own is not None) > 1
    # rounded once, as in a step; CPUs compute in float32 anyway
    wide = (joined or several) and not q.is_cuda
    layouts = [
        # decoding keeps a bias with its key, rounded like it
        one if one.key_bias is None else replace(one, key_bias=one.key_bias.to(dtype))
        for one in layouts
    ]
    how = {"dropout": qkv.dropout, "impl": tokens.impl}
    own = None if own is None else own.within(tokens.padding_mask)
    plain = tokens.impl == "reference" or torch.compiler.is_compiling()
    if several and not plain and not any(one.earlier_only for one in layouts):
        return [joint_attention(q, k, v, layouts, own, wide=wide, **how)]
    if wide:
        q, k, v = map(at_least_float32, (q, k, v))
    results = [ranged_attention(q, k, v, one, **how) for one in layouts]
    return results if own is None else [*results, attend_own(q, k, v, own, qkv.dropout)]


class RangedKeys(Part):
    """Keys in ranges of an order, by cluster and by position, and the query's own key.

    In decoding (with the ``state`` of the tokens before), the latest keys of each cluster stand in
    rings. A portion is attended like a batch: cached keys are prepended to the new tokens as if
    they were a short text, each in the cluster of its ring.
    """

    def __init__(
        self, kind: Seeing, tokens: Tokens, assignment: Assignment, state: State | None = None
    ):
        self.kind, self.tokens, self.assignment, self.state = kind, tokens, assignment, state
        self.own_bias = own_bias(kind) if kind.gap else 0.0
        self.biased = self.own_bias != 0.0 or assignment.key_bias is not None
        self.near, self.stored = None, False
        if state is None:
            self.layouts, self.own, self.of_scouts = route(kind, tokens, assignment)

    def attend(self, qkv: QKV, joined: bool) -> list[tuple[Tensor, Tensor]]:
        if self.state is None:
            return attend_layouts(qkv, self.tokens, self.layouts, self.own, joined)
        return self._attend_portion(qkv, joined)

    def look(self, qkv: QKV) -> list[Entries]:
        self._open(qkv)
        gap = self.kind.gap
        if gap == 0:  # the query sees its own key in its ring
            self._store()
        some = gap == 0 and self.assignment.key is None
        seen = [self.kept.look(self.read, self.assignment.latest)._replace(some=some)]
        if gap > 0:
            bias = qkv.k.new_full((1, 1, 1), self.own_bias) if qkv.biased else None
            groups, mask = self.written.size(1), self.tokens.padding_mask
            own = entries_of(qkv.k, qkv.v, bias, groups)
            if mask is not None:
                mask = mask.view(-1, 1, 1, 1).expand(-1, groups, -1, -1)
            seen.append(Entries(own.flatten(0, 3), mask, some=mask is None))
        if self.near is not None:
            seen.append(self.near.look(self.tokens.before, qkv.biased))
        return seen

    def for_cpu_step(self, q: Tensor) -> bool:
        tokens, state = self.tokens, self.state
        if any(t.dtype != q.dtype for name, t in state.items() if name in ("kept", "near")):
            return False
        if tokens.padding_mask is not None or tokens.begins is not None:
            return False
        one_ring = self.kind.num_rings == 1 and self.kind.gap <= 1 and not self.kind.drops_keys
        in_rings = "seen" in state or (one_ring and "kept" in state and "ring" not in state)
        return in_rings and self.assignment.latest is None

    def in_cpu_step(self, qkv: QKV) -> dict[str, InRings]:
        self._open(qkv)
        kept, seen = self.kept.in_cpu_step()
        near = None
        if self.near is not None:
            near = (*self.near.state.values(), self.tokens.before)
        own_bias = self.own_bias if self.kind.gap else None
        rings = self.entry, kept, seen, self.read, self.written, self.kind.num_rings
        self.stored = True
        return {"rings": InRings(*rings, own_bias, near)}

    def keep(self, qkv: QKV) -> State:
        if qkv.q.size(2) > 1:
            return self._keep_portion()
        if not self.stored:
            self._store()
        return self.kept.state | ({} if self.near is None else self.near.state)

    def _new(self, qkv: QKV) -> tuple[Tensor, Tensor]:
        """Entries of the new tokens [B, G, 1, J / G, N, C], and their rings [B, G, L, N]."""
        keys, bias = self.assignment.keys(), self.assignment.key_bias
        if keys[0] is None:
            keys = [qkv.k.new_zeros(len(qkv.k), 1, qkv.k.size(2), dtype=torch.long)]
        if bias is None and qkv.biased:
            bias = qkv.k.new_zeros(1, 1, 1)
        return entries_of(qkv.k, qkv.v, bias, keys[0].size(1)), torch.stack(keys, dim=2)

    def _open(self, qkv: QKV) -> None:
        """Make room for one token."""
        tokens, gap, rounds = self.tokens, self.kind.gap, self.assignment.rounds()
        self.entry, self.read = self._new(qkv)  # reading its own ring: [B, G, L, P]
        self.written = self.read.squeeze(-1)  # [B, G, L]
        if rounds[0][0][0] is not None:
            reads = [torch.cat(q, dim=-1) if len(q) > 1 else q[0] for q, _ in rounds]
            self.read = torch.stack(reads, dim=2)
        ragged = self.kind.drops_keys or tokens.padding_mask is not None
        ragged = ragged or tokens.begins is not None or gap > 1
        self.kept = opened(self.state, self.entry, len(rounds), self.kind, ragged)
        if tokens.begins is not None:
            self.kept.forget(tokens.begins)
        if gap > 1:
            self.near = LocalWindow(self.state, self.entry, len(rounds), gap)

    def _store(self) -> None:
        tokens = self.tokens
        new = self.entry.squeeze(-2).expand(-1, -1, self.written.size(2), -1, -1)
        leaving = new, self.written, tokens.padding_mask
        if self.near is not None:
            leaving = self.near.push(new, self.written, tokens.before, tokens.padding_mask)
        self.kept.store(*leaving)
        self.stored = True

    def _attend_portion(self, qkv: QKV, joined: bool) -> list[tuple[Tensor, Tensor]]:
        tokens, layouts = self.tokens, len(self.assignment.rounds())
        check_clusters(self.kind, tokens, self.assignment)
        entries, rings = self._new(qkv)
        mask = tokens.padding_mask
        hidden = rings.new_zeros(1, 1, dtype=torch.bool) if mask is None else mask
        hidden = hidden.unsqueeze(1).expand(len(rings), layouts, rings.size(-1))
        texts = [Keys(entries.expand(-1, -1, layouts, -1, -1, -1), rings, hidden)]
        if self.kind.gap > 1:
            self.near = LocalWindow(self.state, entries, layouts, self.kind.gap)
        if self.state:
            kept = (Rings if "seen" in self.state else History)(self.state, self.kind)
            texts.insert(0, kept.keys())
            if self.kind.gap > 1:
                texts.insert(1, self.near.keys(tokens.before))
        entries, rings, hidden = zip(*texts, strict=True)
        hidden = any_padding(torch.cat(hidden, dim=-1))
        self.text = Keys(torch.cat(entries, dim=-2), torch.cat(rings, dim=-1), hidden)
        joined = joined or layouts > 1
        return [part for i in range(layouts) for part in self._attend_layout(qkv, i, joined)]

    def _attend_layout(self, qkv: QKV, i: int, joined: bool) -> list[tuple[Tensor, Tensor]]:
        """By one layout of M + N tokens, of which the first M ask for nothing."""
        kind, none = self.kind, self.kind.num_rings
        entries, rings = self.text.entries[:, :, i], self.text.rings[:, :, i]
        hidden = None if self.text.hidden is None else self.text.hidden[:, i]
        past, width = rings.size(-1) - qkv.q.size(2), qkv.q.size(-1)
        heads = entries.flatten(1, 2)
        q, k, v = pad(qkv.q, (0, 0, past, 0)), heads[..., :width], heads[..., -width:]
        assignment = Assignment()
        probed, _ = self.assignment.rounds()[i]
        if probed[0] is not None:  # no cached token is a query of any ring
            first, *others = (pad(clusters, (past, 0), value=none) for clusters in probed)
            assignment = Assignment(first, rings, probes=tuple(others))
        tokens = Tokens(q[:, 0], None, Batch(hidden), impl=self.tokens.impl)
        by_cluster, near, own = recent(kind, tokens, assignment, none + 1)
        if self.assignment.scouts is not None:  # who see all that is kept
            scouts = pad(self.assignment.scouts.queries, (past, 0))
            empty = for_each(scouts, pad(rings[..., :past] == none, (0, q.size(2) - past)))
            everything = scout_layouts(
                scouts, causal=True, gap=kind.gap, batch=tokens.batch, hidden=empty
            )
            by_cluster = [*hidden_from(scouts, by_cluster), *everything]
        if self.assignment.key_bias is not None:
            bias = entries[:, :, 0, :, width]
            by_cluster = [replace(layout, key_bias=bias) for layout in by_cluster]
        if i > 0:  # what is seen by position is seen once
            near, own = (), None
        latest = self.assignment.latest
        if latest is None:  # a new token may see all keys
            latest = rings.new_full((1, qkv.q.size(2)), rings.size(-1))
        latest = pad(latest, (past, 0)).unsqueeze(1)  # a cached one none
        layouts = []
        for layout in (*by_cluster, *near):
            order = layout.query_order
            most = latest if order is None else latest.expand_as(order).gather(-1, order)
            layouts.append(replace(layout, lo=layout.lo.maximum(layout.hi - most)))
        qkv = qkv._replace(q=q, k=k, v=v).repeated()
        results = attend_layouts(qkv, tokens, layouts, own, joined)
        return [(values[:, :, past:], lse[..., past:]) for values, lse in results]

    def _keep_portion(self) -> State:
        entries, rings, hidden = self.text
        state = {}
        if self.near is not None:
            near = self.near.fill(self.text).unsqueeze(1)
            hidden = near if hidden is None else hidden | near
            state = self.near.state
        if hidden is not None:
            some = ~hidden.flatten(0, 1).all(0)  # what no row keeps takes no slot
            entries, rings, hidden = entries[..., some, :], rings[..., some], hidden[..., some]
            hidden = any_padding(hidden)
        if hidden is not None:
            entries = entries.masked_fill(hidden[:, None, :, None, :, None], 0.0)
            rings = rings.masked_fill(hidden.unsqueeze(1), self.kind.num_rings)
        ragged = hidden is not None or self.kind.drops_keys
        return state | filled(entries, rings, self.kind, ragged)
