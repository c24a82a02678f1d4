"""What decoding keeps: the W latest keys and values of each cluster, in rings.

A state has K * W keys however long the text; a step reads W of them. In the first W steps no ring
can drop a key. Until then all stand in one history, which takes fewer operations and less memory
than rings that are half empty. With a gap, a key waits in a window until it enters its ring.

Shape letters: B batch, J heads of keys and values, G groups of heads that share rings (1 or J), Q
groups of queries that read the same of them, a multiple of G, E head width, L layouts (rounds of
hashing), R rings of a layout, P of them that a query reads, W window, C = 2 E (+ 1) numbers of an
entry: key, bias if there are any, value.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..clustering import State
from ..kernels.sorting import sort_by_cluster
from .assignment import Seeing

FIRST_ROOM = 8  # tokens that a history holds before it grows


class Entries(NamedTuple):
    """What one query may attend to."""

    entries: Tensor  # [B * J, slots, C], or [B * H, slots, C] where queries read other rings
    hidden: Tensor | None = None  # those that it does not see, bool [B, Q, 1, slots]; None: none
    some: bool = False  # it sees one of them at least


class Keys(NamedTuple):
    """Keys as a text of N tokens, the oldest of each ring first."""

    entries: Tensor  # [B, G, L, J / G, N, C]
    rings: Tensor  # of each, R for none, int64 [B, G, L, N]
    hidden: Tensor  # padding, and slots that are empty for all heads, bool [B, L, N]


def entries_of(k: Tensor, v: Tensor, bias: Tensor | None, groups: int) -> Tensor:
    """Keys and values [B, J, N, E], and biases [B or 1, G or 1, N or 1] if there are any, side by
    side, [B, G, 1, J / G, N, C]."""
    parts = [k, v]
    if bias is not None:
        if 1 < bias.size(1) < k.size(1):  # the same for all heads of a group
            bias = bias.repeat_interleave(k.size(1) // groups, dim=1)
        parts.insert(1, bias.to(k.dtype).unsqueeze(-1).expand(*k.shape[:3], 1))
    entries = torch.cat(parts, dim=-1)
    return entries.view(len(k), groups, 1, -1, *entries.shape[2:])


class History:
    """All keys, until a ring may be full; without a window, for ever.

    State: ``steps`` [B, stored, 0], whose shape counts what was stored: the host knows it without
    waiting for the device; ``kept`` [B, G, L, J / G, room, C], where the room doubles up to W and
    then comes round; ``ring``, in which ring each is, R for none, int64 [B, G, L, room], absent
    while all are in the only one.
    """

    def __init__(self, state: State, kind: Seeing):
        self.state, self.num_rings = state, kind.num_rings
        self.steps, self.room = state["steps"].size(1), state["kept"].size(-2)
        self.is_numbered = "ring" in state  # else all keys are in the only ring

    def forget(self, rows: Tensor) -> None:
        """Drop all keys of some rows, bool [B, 1]."""
        self.state["ring"].masked_fill_(rows.view(-1, 1, 1, 1), self.num_rings)

    def store(self, new: Tensor, written: Tensor, skipped: Tensor | None) -> None:
        """Keep one more token [B, G, L, J / G, C] in rings int64 [B, G, L], but for rows that are
        skipped, bool [B, 1]."""
        if skipped is not None:  # it takes a slot, in no ring
            new = new.masked_fill(skipped.view(-1, 1, 1, 1, 1), 0.0)
            written = written.masked_fill(skipped.unsqueeze(-1), self.num_rings)
        slot = self.steps % self.room
        self.state["kept"].select(-2, slot).copy_(new)
        if self.is_numbered:
            self.state["ring"].select(-1, slot).copy_(written)
        self.count()

    def count(self) -> None:
        """Count one more token."""
        self.steps += 1
        steps = self.state["steps"]
        self.state["steps"] = steps.new_empty(len(steps), self.steps, 0)

    def look(self, read: Tensor, latest: Tensor | None) -> Entries:
        """What a query sees of rings int64 [B, Q, L, P]: all, or so many of the latest keys, int64
        [1 or B, 1]."""
        slots, kept, hidden = min(self.steps, self.room), self.state["kept"], None
        if self.is_numbered:
            ring = for_each(read, self.state["ring"].narrow(-1, 0, slots))
            hidden = (ring.unsqueeze(3) != read.unsqueeze(-1)).all(3)
        if latest is not None:
            if hidden is None:  # all are in one ring, which may have come round
                slot = torch.arange(slots, device=latest.device)
                after = ((self.steps - 1 - slot) % self.room).expand(*kept.shape[:3], slots)
            else:  # keys of the ring that stand behind
                after = (~hidden).flip(-1).cumsum(-1).flip(-1) - 1
            old = after >= latest.view(-1, 1, 1, 1)
            hidden = old if hidden is None else hidden | old
        return _side_by_side(kept.narrow(-2, 0, slots), hidden)

    def in_cpu_step(self) -> tuple[Tensor, Tensor]:
        """What is kept of the only ring, and how many tokens it was given, before one more."""
        kept = self.state["kept"]
        seen = kept.new_full(kept.shape[:3], self.steps, dtype=torch.long)
        self.count()
        return kept, seen

    def keys(self) -> Keys:
        """All that is kept."""
        kept, slots = self.state["kept"], min(self.steps, self.room)
        if self.steps > self.room:  # the only ring has come round
            kept = kept.roll(-(self.steps % self.room), -2)
        kept = kept[..., :slots, :]
        rings = kept.new_zeros(*kept.shape[:3], slots, dtype=torch.long)
        if self.is_numbered:
            rings = self.state["ring"][..., :slots]
        return Keys(kept, rings, rings.eq(self.num_rings).all(1))


class Rings:
    """The W latest keys of each ring; methods as of :class:`History`.

    State: ``steps`` as of :class:`History`, which no longer counts; ``seen``, how many tokens each
    ring was given, int64 [B, G, L * R]; ``kept`` [B, G, L * R, J / G, W, C].
    """

    is_numbered = True

    def __init__(self, state: State, kind: Seeing):
        self.state, self.num_rings, self.drops_keys = state, kind.num_rings, kind.drops_keys
        kept = state["kept"]  # the rings of all sentences, groups and layouts in a row
        self.rings, self.seen = kept.view(-1, *kept.shape[3:]), state["seen"].view(-1)

    def forget(self, rows: Tensor) -> None:
        self.state["seen"].masked_fill_(rows.unsqueeze(-1), 0)

    def count(self) -> None:
        """Each ring counts its own."""

    def store(self, new: Tensor, written: Tensor, skipped: Tensor | None) -> None:
        rings, seen = self.rings, self.seen
        if skipped is not None:
            skipped = skipped.unsqueeze(-1)  # [B, G, L]
        if self.drops_keys:
            nowhere = written == self.num_rings
            skipped = nowhere if skipped is None else nowhere | skipped
            written = written.masked_fill(nowhere, 0)
        written = self._place(written)
        rank = seen[written]  # of this token in its ring
        slot = rank % rings.size(-2)
        if skipped is not None:  # write what stands there
            new = torch.where(skipped[..., None, None], rings[written, :, slot], new)
        rings[written, :, slot] = new
        seen[written] = rank + 1 if skipped is None else rank + ~skipped

    def look(self, read: Tensor, latest: Tensor | None) -> Entries:
        rings, seen = self.rings, self.seen
        read = self._place(read).flatten(2)
        entries = rings.index_select(0, read.flatten()).view(*read.shape, *rings.shape[1:])
        slot, stored = torch.arange(rings.size(-2), device=rings.device), seen[read].unsqueeze(-1)
        hidden = slot >= stored
        if latest is not None:
            hidden = hidden | ((stored - 1 - slot) % len(slot) >= latest.view(-1, 1, 1, 1))
        return _side_by_side(entries, hidden)

    def in_cpu_step(self) -> tuple[Tensor, Tensor]:
        return self.state["kept"], self.state["seen"]

    def keys(self) -> Keys:
        seen = self.state["seen"].unflatten(-1, (-1, self.num_rings))  # [B, G, L, R]
        kept = self.state["kept"].unflatten(2, seen.shape[2:])  # [B, G, L, R, J / G, W, C]
        window = kept.size(-2)
        place = torch.arange(window, device=kept.device)
        # The slot of the oldest key is where the next one would go, once a ring is full.
        oldest = torch.where(seen >= window, seen % window, 0).unsqueeze(-1)
        turned = ((oldest + place) % window)[..., None, :, None].expand_as(kept)
        entries = kept.gather(-2, turned).transpose(3, 4).flatten(4, 5)
        rings = torch.arange(self.num_rings, device=kept.device).unsqueeze(-1)
        rings = torch.where(place < seen.unsqueeze(-1), rings, self.num_rings).flatten(3)
        return Keys(entries, rings, rings.eq(self.num_rings).all(1))

    def _place(self, ring: Tensor) -> Tensor:
        """Numbers [B, Q, L, ...] among the rings of all sentences, groups and layouts."""
        seen = self.state["seen"]
        first = torch.arange(0, seen.numel(), self.num_rings, device=ring.device)
        first = for_each(ring, first.view(*seen.shape[:2], -1))
        return ring + first.view(*ring.shape[:3], *(1,) * (ring.dim() - 3))


class LocalWindow:
    """The ``gap - 1`` latest real tokens of each row, the oldest first, which no ring has yet.

    State, which steps may change in place: ``near`` [B, G, J / G, gap - 1, C], and
    ``near.ring``, where each will go, int64 [B, G, L, gap - 1]. Until a row has had so many
    tokens, the first slots are empty.
    """

    def __init__(self, state: State, entry: Tensor, layouts: int, gap: int):
        if "near" not in state:
            batch, groups, _, heads, _, width = entry.shape
            kept = entry.new_zeros(batch, groups, heads, gap - 1, width)
            ring = kept.new_zeros(*kept.shape[:2], layouts, gap - 1, dtype=torch.long)
            state = {"near": kept, "near.ring": ring}
        self.state = {name: state[name] for name in ("near", "near.ring")}

    def hidden(self, before: Tensor) -> Tensor:
        """Empty slots, bool [B, 1, gap - 1], where rows have had so many tokens, int64 [B, 1]."""
        room = self.state["near"].size(-2)
        return (torch.arange(room, device=before.device) < room - before).unsqueeze(1)

    def look(self, before: Tensor, biased: bool) -> Entries:
        """What a query sees; biases of keys do not count while they are near."""
        kept = self.state["near"]
        if biased:
            kept = kept.clone()
            kept[..., (kept.size(-1) - 1) // 2] = 0.0
        hidden = self.hidden(before).unsqueeze(1).expand(-1, kept.size(1), -1, -1)
        return Entries(kept.flatten(0, 2), hidden)

    def push(
        self, new: Tensor, written: Tensor, before: Tensor, padding_mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Keep a token; the one that leaves for it, as :meth:`History.store` takes it."""
        kept, ring = self.state["near"], self.state["near.ring"]
        skipped = before < kept.size(-2)
        if padding_mask is not None:
            skipped = skipped | padding_mask
        leaving = kept[..., 0, :].unsqueeze(2).expand_as(new), ring[..., 0], skipped
        # shifted by one place
        near = torch.cat([kept[..., 1:, :], new[:, :, 0].unsqueeze(-2)], dim=-2)
        near_ring = torch.cat([ring[..., 1:], written.unsqueeze(-1)], dim=-1)
        if padding_mask is not None:  # which pushes nothing out
            hidden = padding_mask[..., None, None]
            near_ring = torch.where(hidden, ring, near_ring)
            near = torch.where(hidden.unsqueeze(-1), kept, near)
        self.state = {"near": near, "near.ring": near_ring}
        return leaving

    def keys(self, before: Tensor) -> Keys:
        """All that is kept."""
        kept, ring = self.state["near"].unsqueeze(2), self.state["near.ring"]
        hidden = self.hidden(before).expand(-1, ring.size(2), -1)
        return Keys(kept.expand(-1, -1, ring.size(2), -1, -1, -1), ring, hidden)

    def fill(self, text: Keys) -> Tensor:
        """Keep the latest real tokens of a text, and return which those are, bool [B, N]."""
        room, rings = self.state["near"].size(-2), text.rings
        real = rings.new_ones(len(rings), rings.size(-1), dtype=torch.bool)
        if text.hidden is not None:
            real = ~text.hidden[:, 0]  # the latest tokens are the same in every layout
        order = real.long().argsort(dim=1, stable=True)[:, None, None, -room:]  # real tokens last
        entries = text.entries[:, :, 0].masked_fill(~real[:, None, None, :, None], 0.0)
        at = order.unsqueeze(-1).expand(*entries.shape[:3], -1, entries.size(-1))
        kept, ring = entries.gather(-2, at), rings.gather(-1, order.expand(*rings.shape[:3], -1))
        if (missing := room - ring.size(-1)) > 0:
            kept, ring = pad(kept, (0, 0, missing, 0)), pad(ring, (missing, 0))
        self.state = {"near": kept, "near.ring": ring}
        return real & (real.flip(1).cumsum(1).flip(1) <= room)


def for_each(read: Tensor, x: Tensor) -> Tensor:
    """What G groups of heads have [B, G, ...], for each group of those that read [B, Q, ...]."""
    times = read.size(1) // x.size(1)
    return x if times == 1 else x.repeat_interleave(times, dim=1)


def opened(
    state: State, entry: Tensor, layouts: int, kind: Seeing, ragged: bool
) -> History | Rings:
    """What is kept, with room for one more token, of entries [B, G, 1, J / G, 1, C]; ``ragged``:
    it is not kept in all rows, or one was not: each key has a number then."""
    if "seen" in state:
        return Rings(state, kind)
    if "kept" not in state:
        kept = entry[..., :0, :].expand(-1, -1, layouts, -1, -1, -1)
        state = {"steps": entry.new_empty(len(entry), 0, 0), "kept": kept}
    kept, ring, steps = state["kept"], state.get("ring"), state["steps"].size(1)
    room, window = kept.size(-2), kind.cluster_window
    if ring is None and (kind.num_rings > 1 or ragged):
        if steps > room:  # the only ring, which has come round
            seen = kept.new_full(kept.shape[:3], steps, dtype=torch.long)
            return Rings(state | {"seen": seen}, kind)
        ring = kept.new_zeros(*kept.shape[:3], room, dtype=torch.long)
    if steps == room != window:
        more = max(room, FIRST_ROOM)  # a prompt of sinks alone has kept none
        more = more if window is None else min(more, window - room)
        kept = pad(kept, (0, 0, 0, more))
        ring = None if ring is None else pad(ring, (0, more))
    if ring is None:
        return History(state | {"kept": kept}, kind)
    if steps == window:
        return Rings({"steps": state["steps"], **_in_rings(kept, ring, kind)}, kind)
    return History(state | {"kept": kept, "ring": ring}, kind)


def filled(entries: Tensor, numbers: Tensor, kind: Seeing, ragged: bool) -> State:
    """What is kept of the first N tokens, of entries [B, G, L, J / G, N, C], each in the ring of
    that number, R: in none, int64 [B, G, L, N]; ``ragged``: some are in none."""
    length, window = entries.size(-2), kind.cluster_window
    state = {"steps": entries.new_empty(len(entries), length, 0)}
    if kind.num_rings > 1 or ragged:
        if window is not None and length >= window:
            return state | _in_rings(entries, numbers, kind)
        state["ring"] = numbers.contiguous()
    elif window is not None and length > window:  # the only ring comes round
        entries = entries[..., -window:, :].roll(length % window, -2)
    return state | {"kept": entries.contiguous()}


def _in_rings(entries: Tensor, numbers: Tensor, kind: Seeing) -> State:
    """``kept`` and ``seen`` of :class:`Rings` that are given N tokens."""
    *_, heads, length, width = entries.shape
    num_rings, window, groups = kind.num_rings, kind.cluster_window, numbers.shape[:2]
    entries, numbers = entries.flatten(0, 2).transpose(1, 2), numbers.flatten(0, 2)
    order, codes = sort_by_cluster(numbers, num_rings + 1)
    ring = codes // length  # of each slot of the order
    seen = ring.new_zeros(len(ring), num_rings + 1).scatter_add(1, ring, torch.ones_like(ring))
    rank = torch.arange(length, device=ring.device) - (seen.cumsum(1) - seen).gather(1, ring)
    ring = ring.masked_fill(rank < seen.gather(1, ring) - window, num_rings)  # too old
    row = torch.arange(len(ring), device=ring.device).unsqueeze(1)
    # One ring more, which is dropped, takes what is in none.
    rings = entries.new_zeros(len(ring), num_rings + 1, window, heads, width)
    rings[row, ring, rank % window] = entries[row, order]
    kept = rings[:, :num_rings].transpose(2, 3).contiguous()
    kept = kept.view(*groups, -1, heads, window, width)
    return {"kept": kept, "seen": seen[:, :num_rings].contiguous().view(*groups, -1)}


def _side_by_side(entries: Tensor, hidden: Tensor | None) -> Entries:
    """Entries [B, G, L, J / G, slots, C] as [B * J, L * slots, C]; bool [B, Q, L, slots]."""
    if entries.size(2) > 1:
        entries = entries.transpose(2, 3).flatten(3, 4).unsqueeze(2)
    hidden = None if hidden is None else hidden.flatten(2).unsqueeze(2)
    return Entries(entries.flatten(0, 3), hidden)
