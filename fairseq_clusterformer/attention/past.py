"""What decoding keeps of the tokens before: a :class:`Past` for each layer, made of stores.

A kind keeps the latest keys and values of each cluster, in rings: K * W keys however long the
text, of which a step reads W. In the first W steps no ring can drop a key. Until then all stand in
one history, which takes fewer operations and less memory than rings that are half empty. With a
gap, a key waits in a window until it enters its ring. Sinks stand apart.

Shape letters: B batch, J heads of keys and values, G groups of heads that share rings (1 or J), Q
groups of queries that read the same of them, a multiple of G, E head width, L rounds (of hashing),
K rings of a round, P of them that a query reads, W window, C = 2 E (+ 1) numbers of an entry: key,
bias if there are any, value.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..clustering import State
from ..kernels.sorting import sort_by_cluster
from .batch import any_padding

FIRST_ROOM = 8  # tokens that a history holds before it grows


@dataclass
class Kept:
    """Base of what is kept: a dataclass of tensors, whose first dimension is the batch, of numbers
    that the host knows, and of other objects that are kept."""

    def each(self, change: Callable[[Tensor], Tensor]) -> Any:
        """The same with a function of each tensor in its place."""
        return each(self, change)

    def reorder(self, rows: Tensor) -> Any:
        """The same for a beam search's choice of hypotheses, int64 [new batch]."""
        return each(self, lambda t: t.index_select(0, rows))


def each(kept: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """What is kept, alone or in tuples and dictionaries, with a function of each tensor in its
    place."""
    if isinstance(kept, Tensor):
        return change(kept)
    if isinstance(kept, Kept):
        changed = {item.name: each(getattr(kept, item.name), change) for item in fields(kept)}
        return replace(kept, **changed)
    if isinstance(kept, tuple):
        return tuple(each(item, change) for item in kept)
    if isinstance(kept, dict):
        return {name: each(item, change) for name, item in kept.items()}
    return kept


def tensors(kept: Any) -> list[Tensor]:
    """All tensors of what is kept."""
    found: list[Tensor] = []
    each(kept, lambda t: found.append(t) or t)
    return found


class Entries(NamedTuple):
    """What one query may attend to."""

    entries: Tensor  # [B * J, slots, C], or [B * H, slots, C] where queries read other rings
    hidden: Tensor | None = None  # those that it does not see, bool [B, Q, 1, slots]; None: none
    some: bool = False  # it sees one of them at least
    biased: bool = False  # whether the bias of an entry, which follows its key, counts
    bias: float = 0.0  # of each


class Keys(NamedTuple):
    """Kept keys as a text of M tokens, the oldest of each ring first."""

    entries: Tensor  # [B, J, M, C]
    rings: Tensor  # of each, K for none, int64 [B, G, L, M]
    hidden: Tensor | None  # slots that are empty for all heads, bool [B, M]; None: none is


def entries_of(k: Tensor, v: Tensor, bias: Tensor | None, groups: int = 1) -> Tensor:
    """Keys and values [B, J, N, E], and biases [B or 1, G or 1, N or 1] if there are any, side by
    side, [B, J, N, C]."""
    parts = [k, v]
    if bias is not None:
        if 1 < bias.size(1) < k.size(1):  # the same for all heads of a group
            bias = bias.repeat_interleave(k.size(1) // groups, dim=1)
        parts.insert(1, bias.to(k.dtype).unsqueeze(-1).expand(*k.shape[:3], 1))
    return torch.cat(parts, dim=-1)


def for_each(read: Tensor, x: Tensor) -> Tensor:
    """What G groups of heads have [B, G, ...], for each group of those that read [B, Q, ...]."""
    times = read.size(1) // x.size(1)
    return x if times == 1 else x.repeat_interleave(times, dim=1)


@dataclass
class History(Kept):
    """All keys, until a ring may be full; without a window, for ever."""

    kept: Tensor  # [B, G, L, J / G, room, C], whose room doubles up to W and then comes round
    ring: (
        Tensor | None
    )  # of each, K for none, int64 [B, G, L, room]; None: all are in the only one
    steps: int  # tokens that were stored
    clusters: int  # K

    def forget(self, rows: Tensor) -> None:
        """Drop all keys of some rows, bool [B, 1]."""
        self.ring.masked_fill_(rows.view(-1, 1, 1, 1), self.clusters)

    def store(self, new: Tensor, written: Tensor, skipped: Tensor | None) -> None:
        """Keep one more token [B, G, L, J / G, C] in rings int64 [B, G, L], but for rows that are
        skipped, bool [B, 1]."""
        if skipped is not None:  # it takes a slot, in no ring
            new = new.masked_fill(skipped.view(-1, 1, 1, 1, 1), 0.0)
            written = written.masked_fill(skipped.unsqueeze(-1), self.clusters)
        slot = self.steps % self.kept.size(-2)
        self.kept.select(-2, slot).copy_(new)
        if self.ring is not None:
            self.ring.select(-1, slot).copy_(written)
        self.steps += 1

    def look(self, read: Tensor, latest: Tensor | None) -> Entries:
        """What a query sees of rings int64 [B, Q, L, P]: all, or so many of the latest keys, int64
        [1 or B, 1]."""
        room, hidden = self.kept.size(-2), None
        slots = min(self.steps, room)
        if self.ring is not None:
            ring = for_each(read, self.ring.narrow(-1, 0, slots))
            hidden = (ring.unsqueeze(3) != read.unsqueeze(-1)).all(3)
        if latest is not None:
            if hidden is None:  # all are in one ring, which may have come round
                slot = torch.arange(slots, device=latest.device)
                after = ((self.steps - 1 - slot) % room).expand(*self.kept.shape[:3], slots)
            else:  # keys of the ring that stand behind
                after = (~hidden).flip(-1).cumsum(-1).flip(-1) - 1
            old = after >= latest.view(-1, 1, 1, 1)
            hidden = old if hidden is None else hidden | old
        return _side_by_side(self.kept.narrow(-2, 0, slots), hidden)

    def in_cpu_step(self) -> tuple[Tensor, Tensor]:
        """For the step in C++: what is kept of the only ring, and how many tokens it was given,
        before one more, which that step stores."""
        seen = self.kept.new_full(self.kept.shape[:3], self.steps, dtype=torch.long)
        self.steps += 1
        return self.kept, seen

    def keys(self) -> Keys:
        """All that is kept."""
        kept, room = self.kept[:, :, 0], self.kept.size(-2)  # the same in each round
        slots = min(self.steps, room)
        if self.steps > room:  # the only ring has come round
            kept = kept.roll(-(self.steps % room), -2)
        kept = kept[..., :slots, :]
        rings = torch.zeros(*self.kept.shape[:3], slots, dtype=torch.long, device=kept.device)
        if self.ring is not None:
            rings = self.ring[..., :slots]
        return Keys(kept.flatten(1, 2), rings, rings.eq(self.clusters).flatten(1, 2).all(1))


@dataclass
class Rings(Kept):
    """The W latest keys of each ring; methods as of :class:`History`."""

    kept: Tensor  # [B, G, L * K, J / G, W, C]
    seen: Tensor  # tokens that each ring was given, int64 [B, G, L * K]
    clusters: int  # K
    drops_keys: bool  # whether a token may be in no ring

    def forget(self, rows: Tensor) -> None:
        self.seen.masked_fill_(rows.unsqueeze(-1), 0)

    def store(self, new: Tensor, written: Tensor, skipped: Tensor | None) -> None:
        rings, seen = self.kept.view(-1, *self.kept.shape[3:]), self.seen.view(-1)
        if skipped is not None:
            skipped = skipped.unsqueeze(-1)  # [B, G, L]
        if self.drops_keys:
            nowhere = written == self.clusters
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
        rings, seen = self.kept.view(-1, *self.kept.shape[3:]), self.seen.view(-1)
        read = self._place(read).flatten(2)
        entries = rings.index_select(0, read.flatten()).view(*read.shape, *rings.shape[1:])
        slot, stored = torch.arange(rings.size(-2), device=rings.device), seen[read].unsqueeze(-1)
        hidden = slot >= stored
        if latest is not None:
            hidden = hidden | ((stored - 1 - slot) % len(slot) >= latest.view(-1, 1, 1, 1))
        return _side_by_side(entries, hidden)

    def in_cpu_step(self) -> tuple[Tensor, Tensor]:
        return self.kept, self.seen

    def keys(self) -> Keys:
        seen = self.seen.unflatten(-1, (-1, self.clusters))  # [B, G, L, K]
        kept = self.kept.unflatten(2, seen.shape[2:])  # [B, G, L, K, J / G, W, C]
        window, rounds = kept.size(-2), seen.size(2)
        place = torch.arange(window, device=kept.device)
        # The slot of the oldest key is where the next one would go, once a ring is full.
        oldest = torch.where(seen >= window, seen % window, 0).unsqueeze(-1)
        turned = ((oldest + place) % window)[..., None, :, None].expand_as(kept)
        entries = kept.gather(-2, turned).movedim(4, 2).flatten(3, 5).flatten(1, 2)
        rings = torch.arange(self.clusters, device=kept.device).unsqueeze(-1)
        rings = torch.where(place < seen.unsqueeze(-1), rings, self.clusters).flatten(3)
        if rounds > 1:  # a key of one round is in no ring of the others
            same = torch.eye(rounds, dtype=torch.bool, device=kept.device).unsqueeze(-1)
            rings = torch.where(same, rings.unsqueeze(2), self.clusters).flatten(3)
        return Keys(entries, rings, rings.eq(self.clusters).flatten(1, 2).all(1))

    def _place(self, ring: Tensor) -> Tensor:
        """Numbers [B, Q, L, ...] among the rings of all sentences, groups and rounds."""
        first = torch.arange(0, self.seen.numel(), self.clusters, device=ring.device)
        first = for_each(ring, first.view(*self.seen.shape[:2], -1))
        return ring + first.view(*ring.shape[:3], *(1,) * (ring.dim() - 3))


@dataclass
class Near(Kept):
    """The ``gap - 1`` latest real tokens of each row, the oldest first, which no ring has yet.
    Until a row has had so many tokens, the first slots are empty."""

    kept: Tensor  # [B, G, J / G, gap - 1, C]
    ring: Tensor  # where each will go, int64 [B, G, L, gap - 1]

    @classmethod
    def empty(cls, entry: Tensor, groups: int, rounds: int, room: int) -> "Near":
        """With nothing in it, for entries like these [B, J, N, C]."""
        batch, heads, _, width = entry.shape
        kept = entry.new_zeros(batch, groups, heads // groups, room, width)
        return cls(
            kept, torch.zeros(batch, groups, rounds, room, dtype=torch.long).to(kept.device)
        )

    def _hidden(self, before: Tensor) -> Tensor:
        """Empty slots, bool [B, gap - 1], where rows have had so many tokens, int64 [B, 1]."""
        room = self.kept.size(-2)
        return torch.arange(room, device=before.device) < room - before

    def look(self, before: Tensor) -> Entries:
        """What a query sees; biases of keys do not count while they are near."""
        hidden = self._hidden(before)[:, None, None].expand(-1, self.kept.size(1), -1, -1)
        return Entries(self.kept.flatten(0, 2), hidden)

    def push(
        self, new: Tensor, written: Tensor, before: Tensor, padding_mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Keep a token; the one that leaves for it, as :meth:`History.store` takes it."""
        kept, ring = self.kept, self.ring
        skipped = before < kept.size(-2)
        if padding_mask is not None:
            skipped = skipped | padding_mask
        leaving = kept[..., 0, :].unsqueeze(2).expand_as(new), ring[..., 0], skipped
        # shifted by one place
        self.kept = torch.cat([kept[..., 1:, :], new[:, :, 0].unsqueeze(-2)], dim=-2)
        self.ring = torch.cat([ring[..., 1:], written.unsqueeze(-1)], dim=-1)
        if padding_mask is not None:  # which pushes nothing out
            hidden = padding_mask[..., None, None]
            self.ring = torch.where(hidden, ring, self.ring)
            self.kept = torch.where(hidden.unsqueeze(-1), kept, self.kept)
        return leaving

    def keys(self, before: Tensor) -> Keys:
        """All that is kept."""
        return Keys(self.kept.flatten(1, 2), self.ring, self._hidden(before))

    def fill(self, text: Keys) -> Tensor:
        """Keep the latest real tokens of a text, and return which those are, bool [B, M]."""
        room, (batch, *_, length) = self.kept.size(-2), text.rings.shape
        real = torch.ones(batch, length, dtype=torch.bool, device=text.rings.device)
        if text.hidden is not None:
            real = ~text.hidden
        order = real.long().argsort(dim=1, stable=True)[:, None, -room:]  # real tokens last
        entries = text.entries.masked_fill(~real[:, None, :, None], 0.0)
        at = order.unsqueeze(-1).expand(-1, *entries.shape[1:2], -1, entries.size(-1))
        ring = text.rings.gather(-1, order.unsqueeze(1).expand(*text.rings.shape[:3], -1))
        kept = entries.gather(-2, at).unflatten(1, self.kept.shape[1:3])
        if (missing := room - ring.size(-1)) > 0:
            kept, ring = pad(kept, (0, 0, missing, 0)), pad(ring, (missing, 0))
        self.kept, self.ring = kept, ring
        return real & (real.flip(1).cumsum(1).flip(1) <= room)


@dataclass
class Sinks(Kept):
    """The first S tokens of a document, by position; 0 where it has had fewer."""

    kept: Tensor  # [B, J, S, C]

    @classmethod
    def behind(
        cls,
        before: "Sinks | None",
        new: Tensor,
        number: int,
        positions: Tensor,
        mask: Tensor | None,
    ) -> "Sinks":
        """With those of new tokens that are sinks.

        Args:
            before: of the tokens before.
            new: their entries [B, J, N, C].
            number: S.
            positions: int64 [1 or B, N].
            mask: bool [B, N], True where a token is padding.
        """
        place = positions.clamp(max=number)
        if mask is not None:
            place = place.masked_fill(mask, number)
        kept = (
            new.new_zeros(*new.shape[:2], number, new.size(-1)) if before is None else before.kept
        )
        at = place[:, None, :, None].expand(*new.shape)
        # One slot more, which is dropped, takes what is no sink.
        return cls(pad(kept, (0, 0, 0, 1)).scatter(2, at, new)[:, :, :-1].contiguous())


@dataclass
class Stores(Kept):
    """What a kind keeps."""

    assigned: State = field(default_factory=dict)  # what ``Kind.assign`` returned
    rings: History | Rings | None = None
    near: Near | None = None
    sinks: Sinks | None = None
    others: tuple[Kept | None, ...] = ()  # of what else the kind shows, in its order

    def keys(self, before: Tensor, behind_sinks: Tensor) -> "tuple[Keys, Tensor] | None":
        """All keys that are kept, those of rings before those that are near, and which of them
        are no sinks, bool [B, M]; None: there are none.

        Args:
            before: real tokens that each row has had, int64 [B, 1].
            behind_sinks: the same without sinks.
        """
        if self.rings is None:
            return None
        found = [self.rings.keys()]
        if self.near is not None:
            found.append(self.near.keys(behind_sinks))
        others = [torch.ones_like(keys.hidden) for keys in found]
        if self.sinks is not None:
            number, rings = self.sinks.kept.size(2), found[0].rings
            missing = torch.arange(number, device=rings.device) >= before
            in_none = rings.new_full((*rings.shape[:3], number), self.rings.clusters)
            found.insert(0, Keys(self.sinks.kept, in_none, torch.ones_like(missing)))
            others.insert(0, missing)
        entries, rings, hidden = zip(*found, strict=True)
        keys = Keys(torch.cat(entries, dim=2), torch.cat(rings, dim=-1), torch.cat(hidden, dim=-1))
        return keys, torch.cat(others, dim=-1)


@dataclass
class Past(Kept):
    """What a layer keeps of the tokens before; empty at the beginning of a text."""

    position: Tensor | None = (
        None  # real tokens of its document that each row has had, int64 [B, 1]
    )
    document: Tensor | None = None  # the number of the latest one, int64 [B, 1]
    convolved: State = field(default_factory=dict)  # what the convolutions of projections read
    kinds: tuple[Stores, ...] = ()


def opened(
    store: History | Rings | None,
    entry: Tensor,
    rounds: int,
    *,
    clusters: int,
    window: int | None,
    ragged: bool,
    drops_keys: bool,
) -> History | Rings:
    """The store with room for one more token.

    Args:
        store: of the tokens before.
        entry: of the token, [B, G, 1, J / G, 1, C].
        rounds, clusters, window: L, K and W.
        ragged: the token is not kept in all rows, or one was not: each key has a number then.
        drops_keys: whether a token may be in no ring.
    """
    if isinstance(store, Rings):
        return store
    if store is None:
        kept = entry[..., :0, :].expand(-1, -1, rounds, -1, -1, -1)
        store = History(kept, None, 0, clusters)
    kept, ring, steps = store.kept, store.ring, store.steps
    room = kept.size(-2)
    if ring is None and (clusters > 1 or ragged):
        if steps > room:  # the only ring, which has come round
            seen = kept.new_full(kept.shape[:3], steps, dtype=torch.long)
            return Rings(kept, seen, clusters, drops_keys)
        ring = torch.zeros(*kept.shape[:3], room, dtype=torch.long, device=kept.device)
    if steps == room != window:
        more = max(room, FIRST_ROOM)  # a prompt of sinks alone has kept none
        more = more if window is None else min(more, window - room)
        kept = pad(kept, (0, 0, 0, more))
        ring = None if ring is None else pad(ring, (0, more))
    if ring is not None and steps == window:
        return _in_rings(kept, ring, clusters, window, drops_keys)
    return History(kept, ring, steps, clusters)


def filled(text: Keys, *, clusters: int, window: int | None, drops_keys: bool) -> History | Rings:
    """The store of all tokens of a text.

    Args:
        text: what is in no ring, or hidden, is not kept.
        clusters, window: K and W.
        drops_keys: whether a token may be in no ring.
    """
    entries, rings, hidden = text
    if hidden is not None:
        some = ~hidden.all(0)  # what no row keeps takes no slot
        entries, rings = entries[..., some, :], rings[..., some]
        hidden = any_padding(hidden[:, some])
    ragged = hidden is not None
    if ragged:
        entries = entries.masked_fill(hidden[:, None, :, None], 0.0)
        rings = rings.masked_fill(hidden[:, None, None], clusters)
    groups, rounds, length = rings.shape[1:]
    entries = entries.unflatten(1, (groups, -1)).unsqueeze(2).expand(-1, -1, rounds, -1, -1, -1)
    if clusters > 1 or ragged or drops_keys:
        if window is not None and length >= window:
            return _in_rings(entries, rings, clusters, window, drops_keys)
        return History(entries.contiguous(), rings.contiguous(), length, clusters)
    if window is not None and length > window:  # the only ring comes round
        entries = entries[..., -window:, :].roll(length % window, -2)
    return History(entries.contiguous(), None, length, clusters)


def _in_rings(
    entries: Tensor, numbers: Tensor, clusters: int, window: int, drops_keys: bool
) -> Rings:
    """Rings that are given N tokens, of entries [B, G, L, J / G, N, C], each in the ring of that
    number, K for none, int64 [B, G, L, N]."""
    *_, heads, length, width = entries.shape
    groups = numbers.shape[:2]
    entries, numbers = entries.flatten(0, 2).transpose(1, 2), numbers.flatten(0, 2)
    order, codes = sort_by_cluster(numbers, clusters + 1)
    ring = codes // length  # of each slot of the order
    seen = ring.new_zeros(len(ring), clusters + 1).scatter_add(1, ring, torch.ones_like(ring))
    rank = torch.arange(length, device=ring.device) - (seen.cumsum(1) - seen).gather(1, ring)
    ring = ring.masked_fill(rank < seen.gather(1, ring) - window, clusters)  # too old
    row = torch.arange(len(ring), device=ring.device).unsqueeze(1)
    # One ring more, which is dropped, takes what is in none.
    rings = entries.new_zeros(len(ring), clusters + 1, window, heads, width)
    rings[row, ring, rank % window] = entries[row, order]
    kept = rings[:, :clusters].transpose(2, 3).contiguous()
    kept = kept.view(*groups, -1, heads, window, width)
    seen = seen[:, :clusters].contiguous().view(*groups, -1)
    return Rings(kept, seen, clusters, drops_keys)


def _side_by_side(entries: Tensor, hidden: Tensor | None) -> Entries:
    """Entries [B, G, L, J / G, slots, C] as [B * J, L * slots, C]; bool [B, Q, L, slots]."""
    if entries.size(2) > 1:
        entries = entries.transpose(2, 3).flatten(3, 4).unsqueeze(2)
    hidden = None if hidden is None else hidden.flatten(2).unsqueeze(2)
    return Entries(entries.flatten(0, 3), hidden)
