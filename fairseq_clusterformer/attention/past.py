"""What decoding keeps of the tokens before: a :class:`Past` for each layer, made of stores. A kind
keeps the latest keys and values of each cluster, in rings: K * W keys however long the text, of
which a step reads W. With a gap, a key waits in a window until it enters its ring. Shape letters:
G groups of heads that share rings (1 or J), Q groups of queries that read the same of them, a
multiple of G, L rounds (of hashing), K rings of a round, P of them that a query reads, C = 2 E
(+ 1) numbers of an entry: key, bias if there are any, value."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..clustering import State
from ..kernels import sort_by_cluster
from .tokens import Tokens, any_padding, either, for_each, gather_tokens, latest_real

FIRST_ROOM = 8  # tokens that a history holds before it grows


@dataclass
class Kept:
    """Base of what is kept: a dataclass of tensors, batch first, of numbers that the host knows,
    and of other objects that are kept."""

    def reorder(self, rows: Tensor) -> Any:
        """The same for a beam search's choice of hypotheses, int64 [new batch]."""
        return each(self, lambda t: t.index_select(0, rows))


def each(kept: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """What is kept, alone or in tuples and dictionaries, with each tensor changed."""
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
    biased: bool = False  # whether the bias of an entry, which follows its key, counts
    bias: float = 0.0  # of each


class Keys(NamedTuple):
    """Kept keys as a text of M tokens, the oldest of each ring first."""

    entries: Tensor  # [B, J, M, C]
    rings: Tensor  # of each, K for none, int64 [B, G, L, M]
    hidden: Tensor | None  # slots that are empty for all heads, bool [B, M]; None: none is


@dataclass
class Rings(Kept):
    """The W latest keys of each ring; of fewer tokens, all of them."""

    kept: Tensor  # [B, G, L * K, J / G, room, C], whose room doubles up to W
    seen: Tensor | None  # as ``given``; None: the only ring of each round was given all
    steps: int  # tokens that were given, or more
    clusters: int  # K

    @property
    def given(self) -> Tensor:
        """Tokens that each ring was given, int64 [B, G, L * K]."""
        if self.seen is not None:
            return self.seen
        return torch.full(self.kept.shape[:3], self.steps, device=self.kept.device)

    def open(self, window: int | None) -> None:
        """Make room for one more token, in rings of W."""
        room = self.kept.size(-2)
        if self.steps >= room != window:
            more = max(room, FIRST_ROOM)
            more = more if window is None else min(more, window - room)
            self.kept = pad(self.kept, (0, 0, 0, more))

    def store(self, new: Tensor, written: Tensor, skipped: Tensor | None) -> None:
        """Keep one more token [B, G, L, J / G, C] in rings int64 [B, G, L], but where it is
        skipped, bool [B, G or 1, L or 1]; there is room."""
        slot = self.steps % self.kept.size(-2)
        self.steps += 1
        if self.seen is None:
            self.kept.select(-2, slot).copy_(new)
            return
        rings, seen = self.kept.view(-1, *self.kept.shape[3:]), self.seen.view(-1)
        if skipped is not None:
            written = written.masked_fill(skipped, 0)
        written = self._place(written)
        rank = seen[written]  # of this token in its ring
        slot = rank % rings.size(-2)
        if skipped is not None:  # write what stands there
            new = torch.where(skipped[..., None, None], rings[written, :, slot], new)
        rings[written, :, slot] = new
        seen[written] = rank + 1 if skipped is None else rank + ~skipped

    def look(self, read: Tensor, latest: Tensor | None) -> Entries:
        """What a query sees of rings int64 [B, Q, L, P]: all, or the ``latest`` [1 or B, 1]."""
        slots = min(self.steps, self.kept.size(-2))
        kept, stored, hidden = self.kept.narrow(-2, 0, slots), self.steps, None
        if self.seen is not None or latest is not None:
            slot = torch.arange(slots, device=kept.device)
        if self.seen is not None:
            rings, read = kept.flatten(0, 2), self._place(read).flatten(2)
            kept = rings.index_select(0, read.flatten()).view(*read.shape, *rings.shape[1:])
            stored = self.seen.view(-1)[read].unsqueeze(-1)
            hidden = slot >= stored
        if latest is not None:
            old = (stored - 1 - slot) % kept.size(-2) >= latest.view(-1, 1, 1, 1)
            hidden = either(hidden, old.expand(*kept.shape[:3], -1))
        if kept.size(2) > 1:  # what is read of several rings stands side by side
            kept = kept.transpose(2, 3).flatten(3, 4).unsqueeze(2)
        hidden = None if hidden is None else hidden.flatten(2).unsqueeze(2)
        return Entries(kept.flatten(0, 3), hidden)

    def keys(self) -> Keys:
        seen = self.given.unflatten(-1, (-1, self.clusters))  # [B, G, L, K]
        kept = self.kept.unflatten(2, seen.shape[2:])  # [B, G, L, K, J / G, room, C]
        room, rounds = kept.size(-2), seen.size(2)
        place = torch.arange(room, device=kept.device)
        # The slot of the oldest key is where the next one would go, once a ring is full.
        oldest = torch.where(seen >= room, seen % max(room, 1), 0).unsqueeze(-1)
        turned = ((oldest + place) % max(room, 1))[..., None, :, None].expand_as(kept)
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

    @classmethod
    def of(cls, text: Keys, *, clusters: int, window: int | None, counted: bool) -> "Rings":
        """The rings, K of W keys, of a text, of which what is in no ring, or hidden, is not kept.
        ``counted``: a key may be in no ring."""
        entries, rings, hidden = text
        if hidden is not None:
            some = ~hidden.all(0)  # what no row keeps takes no slot
            entries, rings = entries[..., some, :], rings[..., some]
            hidden = any_padding(hidden[:, some])
        if hidden is not None:
            entries = entries.masked_fill(hidden[:, None, :, None], 0.0)
            rings = rings.masked_fill(hidden[:, None, None], clusters)
        batch, groups, rounds, length = rings.shape
        room = length if window is None else min(window, length)
        entries = entries.unflatten(1, (groups, -1)).unsqueeze(2)  # [B, G, 1, J / G, N, C]
        entries = entries.expand(-1, -1, rounds, -1, -1, -1)
        if clusters == 1 and not counted and hidden is None:
            latest = entries[..., length - room :, :]
            return cls(latest.roll(length % max(room, 1), -2), None, length, 1)
        heads, width = entries.size(3), entries.size(-1)
        shape = batch, groups, rounds * clusters, heads, room, width
        if not length:
            return cls(entries.new_zeros(shape), rings.new_zeros(shape[:3]), 0, clusters)
        entries, rings = entries.flatten(0, 2).transpose(1, 2), rings.flatten(0, 2)
        order, codes = sort_by_cluster(rings, clusters + 1)
        ring = codes // length  # of each slot of the order
        seen = ring.new_zeros(len(ring), clusters + 1).scatter_add(1, ring, torch.ones_like(ring))
        rank = torch.arange(length, device=ring.device) - (seen.cumsum(1) - seen).gather(1, ring)
        ring = ring.masked_fill(rank < seen.gather(1, ring) - room, clusters)  # too old
        row = torch.arange(len(ring), device=ring.device).unsqueeze(1)
        # One ring more, which is dropped, takes what is in none.
        kept = entries.new_zeros(len(ring), clusters + 1, room, heads, width)
        kept[row, ring, rank % room] = entries[row, order]
        kept = kept[:, :clusters].transpose(2, 3).contiguous().view(shape)
        return cls(kept, seen[:, :clusters].contiguous().view(shape[:3]), length, clusters)


@dataclass
class Near(Kept):
    """The ``gap - 1`` latest real tokens of each row, the oldest first, which no ring has yet.
    Until a row has had so many tokens, the first slots are empty."""

    kept: Tensor  # [B, G, J / G, gap - 1, C]
    ring: Tensor  # where each will go, int64 [B, G, L, gap - 1]

    def _hidden(self, before: Tensor) -> Tensor:
        """Empty slots, bool [B, gap - 1], where rows have had so many tokens, int64 [B, 1]."""
        room = self.kept.size(-2)
        return torch.arange(room, device=before.device) < room - before

    def look(self, before: Tensor) -> Entries:
        """What a query sees; biases of keys do not count while they are near."""
        return Entries(self.kept.flatten(0, 2), self._hidden(before)[:, None, None])

    def push(
        self, new: Tensor, written: Tensor, before: Tensor, padding_mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Keep a token; the one that leaves for it, as :meth:`Rings.store` takes it."""
        kept, ring = self.kept, self.ring
        skipped = either(before < kept.size(-2), padding_mask)
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
        return Keys(self.kept.flatten(1, 2), self.ring, self._hidden(before))

    @classmethod
    def of(cls, text: Keys, room: int) -> "tuple[Near, Tensor]":
        """The latest real tokens of a text, and which those are, bool [B, M]."""
        entries, rings, hidden = text
        kept = latest_real(entries, room, hidden).unflatten(1, (rings.size(1), -1))
        ring = latest_real(rings.flatten(1, 2).unsqueeze(-1), room, hidden)
        real = torch.ones_like(rings[:, 0, 0], dtype=torch.bool) if hidden is None else ~hidden
        waiting = real & (real.flip(1).cumsum(1).flip(1) <= room)
        return cls(kept, ring.view(*rings.shape[:3], room)), waiting


@dataclass
class Lists(Kept):
    """All keys of a document, the n-th in slot n, and in which cluster's list each is. What is new
    is written into its place; room grows by a quarter, and its last slot takes padding."""

    entries: Tensor  # [B, J, room, C]
    clusters: Tensor  # of each key, int32 [B, G, room]; K: it is in no list
    none: int  # K
    steps: int  # tokens that were given

    @classmethod
    def empty(cls, entries: Tensor, rings: Tensor, clusters: int) -> "Lists":
        """Of so many clusters, for keys like these."""
        slots = rings.new_empty(*rings.shape[:2], 0, dtype=torch.int32)
        return cls(entries[:, :, :0], slots, clusters, 0)

    def open(self, number: int) -> None:
        """Make room for so many more tokens, and for padding."""
        room, needed = self.entries.size(2), self.steps + number + 1
        if needed > room:
            more = max(needed, room + room // 4, FIRST_ROOM) - room
            self.entries = pad(self.entries, (0, 0, 0, more))
            self.clusters = pad(self.clusters, (0, more))

    def store(self, entries: Tensor, rings: Tensor, tokens: Tokens, sinks: int) -> None:
        """Keep new tokens [B, J, N, C], in lists int64 [B, G, N], sinks in none; no padding."""
        self.open(rings.size(-1))
        self.steps += rings.size(-1)
        place, mask = tokens.positions.expand(len(rings), -1), tokens.padding_mask
        in_none = either(place < sinks, mask)
        if mask is not None:
            place = place.masked_fill(mask, self.entries.size(2) - 1)
            entries = entries.masked_fill(mask[:, None, :, None], 0.0)
        rings = rings.masked_fill(in_none.unsqueeze(1), self.none)
        self.clusters.scatter_(-1, place.unsqueeze(1).expand_as(rings), rings.int())
        if torch.is_grad_enabled():  # what was attended to is read again
            self.entries = self.entries.clone()
        row = torch.arange(len(place), device=place.device).unsqueeze(-1)
        self.entries[row, :, place] = entries.transpose(1, 2)  # much faster than to scatter

    def look(self, read: Tensor, latest: Tensor) -> Entries:
        """The keys in lists int64 [B, Q, P], up to a slot [B, 1]."""
        slot = torch.arange(self.steps, device=read.device)
        of_keys = for_each(read, self.clusters[..., : self.steps])
        listed = (of_keys.unsqueeze(-2) == read.unsqueeze(-1)).any(-2)
        listed = listed & (slot <= latest).unsqueeze(1)
        return Entries(self.entries[:, :, : self.steps].flatten(0, 1), ~listed.unsqueeze(2))

    def near(self, gap: int, sinks: int, place: Tensor) -> Entries:
        """What a query at a place [B, 1] sees by position."""
        first = torch.arange(sinks, device=place.device)
        nearer = place + torch.arange(1 - gap, 0, device=place.device)
        hidden = torch.cat([first >= place, nearer < sinks], dim=-1)
        at = torch.cat([first.expand(len(place), -1), nearer], dim=-1)
        at = at.clamp(0, self.entries.size(2) - 1)
        entries = gather_tokens(self.entries, at.unsqueeze(1).expand(-1, self.entries.size(1), -1))
        return Entries(entries.flatten(0, 1), hidden[:, None, None])


@dataclass
class Stores(Kept):
    """What a kind keeps."""

    assigned: State = field(default_factory=dict)  # what ``Kind.assign`` returned
    lists: Lists | None = None  # of an index, in place of rings, near and sinks
    rings: Rings | None = None
    near: Near | None = None
    #: the first S tokens of a document, 0 where there are fewer, [B, J, S, C]
    sinks: Tensor | None = None
    others: tuple[Any, ...] = ()  # of what else the kind shows, in its order

    def keys(self, before: Tensor, behind_sinks: Tensor) -> "tuple[Keys, Tensor] | None":
        """All keys that are kept, those of rings before those that are near, and which of them
        are no sinks, bool [B, M]; None: there are none. ``before``: real tokens that each row has
        had, int64 [B, 1]; ``behind_sinks``: without sinks."""
        if self.lists is not None:
            steps, none = self.lists.steps, self.lists.none
            slot = torch.arange(steps, device=before.device)
            missing = slot >= before
            hidden = missing | (slot < before - behind_sinks)
            rings = self.lists.clusters[..., :steps].long().masked_fill(hidden.unsqueeze(1), none)
            return Keys(self.lists.entries[:, :, :steps], rings.unsqueeze(2), hidden), missing
        if self.rings is None:
            return None
        found = [self.rings.keys()]
        if self.near is not None:
            found.append(self.near.keys(behind_sinks))
        others = [torch.ones_like(keys.hidden) for keys in found]
        if self.sinks is not None:
            number, rings = self.sinks.size(2), found[0].rings
            missing = torch.arange(number, device=rings.device) >= before
            in_none = rings.new_full((*rings.shape[:3], number), self.rings.clusters)
            found.insert(0, Keys(self.sinks, in_none, torch.ones_like(missing)))
            others.insert(0, missing)
        entries, rings, hidden = zip(*found, strict=True)
        keys = Keys(torch.cat(entries, dim=2), torch.cat(rings, dim=-1), torch.cat(hidden, dim=-1))
        return keys, torch.cat(others, dim=-1)


@dataclass
class Past(Kept):
    """What a layer keeps of the tokens before; empty at the beginning of a text."""

    #: real tokens of its document that each row has had, int64 [B, 1]
    position: Tensor | None = None
    document: Tensor | None = None  # the number of the latest one, int64 [B, 1]
    convolved: State = field(default_factory=dict)  # what the convolutions of projections read
    kinds: tuple[Stores, ...] = ()
