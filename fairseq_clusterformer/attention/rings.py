"""Keys and values that a step-by-step decoder keeps: a ring of the W latest for each cluster.

The state of a kind with a window holds K * W keys however long the text; a step reads W of them.
In the first W steps no ring can drop a key: until then all stand in one history, each with the
number of its ring, which takes fewer operations and less memory than rings that are half empty.
With a gap, the keys that are nearer than it stand in one more ring, from which each goes on to
the ring of its cluster.

Shape letters: B batch, H heads, J heads of keys and values (H, or fewer that H / J queries share),
E head width, G groups of heads (1 or H), L layouts, R rings of a layout, P of them that a query
reads, W window.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..clustering import State
from ..kernels import chosen, triton_kernels
from ..kernels.sorting import sort_by_cluster
from ..precision import at_least_float32

FIRST_ROOM = 8  # tokens that a history holds before it grows


class Ring(NamedTuple):
    """One token's place in one layout.

    Attributes:
        query: the P rings that the token's query reads, int64 [B, G] in [0, R), none twice.
        key: the ring that its key is stored in, the same; R, in none, where keys are skipped.
    """

    query: tuple[Tensor, ...]
    key: Tensor


def attend_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rings: tuple[Ring, ...],
    state: State,
    *,
    num_rings: int,
    window: int | None,
    gap: int = 0,
    skips: bool = False,
    key_bias: Tensor | None = None,
    own_bias: float = 0.0,
    padding_mask: Tensor | None = None,
    restart: Tensor | None = None,
    latest: Tensor | None = None,
    others: tuple[Tensor, Tensor] | None = None,
    impl: str = "auto",
) -> tuple[Tensor, State]:
    """Attend from one token to some rings of each layout, and store it in one of each.

    Args:
        q: [B, H, 1, E].
        k, v: [B, J, 1, E]; J divides H, and G divides J.
        rings: which rings are read and which is written, for each layout; P is that of all.
        state: of the last call, written to in place; empty at first.
        num_rings: R.
        window: W; None: a ring grows without bound (full attention).
        gap: 0: the token is stored first, and seen if it reads the ring that it was stored in.
            Otherwise it sees itself besides its rings and the ``gap - 1`` tokens before it, which
            are stored in a ring when they are ``gap`` tokens back.
        skips: a key may be stored in no ring.
        key_bias: added to the logits of its key where a ring shows it, floating point [B, G].
        own_bias: added to its logit for itself; only with a gap.
        padding_mask: bool [B, 1]; a padding token is not stored.
        restart: bool [B, 1], rows in which a document begins: what they keep is forgotten.
        latest: how many of the latest keys of a ring are seen, int64 [1 or B, 1]; None: all.
        others: what is seen besides: keys, biases and values side by side [B * J, ..., 2 E + 1],
            and which are hidden, bool [B, G, 1, ...]; in every step, or in none.
        impl: as of :func:`~fairseq_clusterformer.kernels.ranged_attention`: one kernel where
            that is "triton" (heads up to 256 wide, J = H, a gap of 0 or 1, no ``others``), else
            PyTorch.

    Returns:
        The attended values [B, H, 1, E], and the new state: that of :class:`History` or of
        :class:`Rings`; with a gap of 2 or more, that of :class:`Near` besides, whose names begin
        with "near.".
    """
    groups = rings[0].key.size(1)
    biased = own_bias != 0.0 or key_bias is not None or others is not None
    shape = (len(q), groups, len(rings), k.size(1) // groups)
    ragged = skips or padding_mask is not None or restart is not None or gap > 1
    written = _stacked([ring.key for ring in rings])
    numbers = Numbers(written, _stacked([_stacked(ring.query) for ring in rings]))
    entry = _entry(k, v, key_bias, biased, groups)
    near = Near(state, entry, len(rings), gap) if gap > 1 else None
    kept = _opened(state, q, (*shape, entry.size(-1)), num_rings, window, ragged, skips)
    if restart is not None:
        kept.forget(restart)
        if near is not None:
            near.forget(restart)
    numbers = numbers if kept.needs_numbers else Numbers(None, None)
    simple = near is None and restart is None and latest is None and others is None
    by_kernel = simple and k.size(1) == q.size(1)
    if by_kernel and chosen(impl, q) == "triton":
        out, changed = triton_kernels(q).triton_step(
            q,
            k,
            v,
            numbers.written,
            numbers.read,
            kept.state,
            num_rings=num_rings,
            key_bias=None if key_bias is None else _stacked([key_bias] * len(rings)),
            own_apart=gap > 0,
            own_bias=q.new_full((len(q), 1), own_bias) if own_bias else None,
            padding_mask=padding_mask,
        )
        kept.state |= changed
        kept.stored()
        return out, kept.state
    new = entry.expand(*shape, 1, entry.size(-1)).squeeze(-2)
    if gap == 0:
        kept.store(new, numbers.written, padding_mask)
        parts = [kept.look(numbers.read, latest)]
    else:
        own = _entry(k, v, k.new_full((len(k), 1), own_bias), biased, groups)
        parts = [kept.look(numbers.read, latest), (own.flatten(0, 3), None)]
        if near is not None:
            parts.append(near.look(biased))
    if others is not None:
        parts.append(others)
    sees_itself = gap > 0 or rings[0].query[0] is rings[0].key
    out = _attend(q, parts, groups, sees_itself=sees_itself)
    if gap == 1:
        kept.store(new, numbers.written, padding_mask)
    elif near is not None:
        leaving = near.push(new, written, padding_mask)
        if leaving is not None:
            new, written, skipped = leaving
            kept.store(new, written if kept.needs_numbers else None, skipped)
    return out, kept.state | ({} if near is None else near.state)


class Numbers(NamedTuple):
    """The rings that are written, int64 [B, G, L], and read, [B, G, L, P]; None where there is
    only one."""

    written: Tensor | None
    read: Tensor | None


class History:
    """All keys, until a ring may be full; without a window, for ever.

    State:

    - ``steps``: [B, stored, 0], which holds no numbers. Its shape counts what was stored, so that
      the host knows it without waiting for the device;
    - ``kept``: keys and values side by side, with a bias if there are any,
      [B, G, L, J / G, room, 2 E (+ 1)]; the room doubles up to W, where it comes round;
    - ``ring``: in which ring each is, R for none, [B, G, L, room]; absent while all are in the
      only one.
    """

    def __init__(self, state: State, num_rings: int):
        self.state, self.num_rings = state, num_rings

    @property
    def needs_numbers(self) -> bool:
        return "ring" in self.state

    def forget(self, rows: Tensor) -> None:
        self.state["ring"].masked_fill_(rows.view(-1, 1, 1, 1), self.num_rings)

    def store(self, new: Tensor, written: Tensor | None, skipped: Tensor | None) -> None:
        """Keep a token's entries [B, G, L, J / G, 2 E (+ 1)] in rings [B, G, L], except of the
        rows that are skipped, bool [B, 1]."""
        kept, steps = self.state["kept"], self.state["steps"].size(1)
        if skipped is not None:
            new = new.masked_fill(skipped.view(-1, 1, 1, 1, 1), 0.0)
            written = written.masked_fill(skipped.unsqueeze(-1), self.num_rings)
        kept.select(-2, steps % kept.size(-2)).copy_(new)
        if written is not None:
            self.state["ring"].select(-1, steps % kept.size(-2)).copy_(written)
        self.stored()

    def stored(self) -> None:
        """Count one more token."""
        steps = self.state["steps"]
        self.state["steps"] = steps.new_empty(steps.size(0), steps.size(1) + 1, 0)

    def look(self, read: Tensor | None, latest: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What a query's rings hold, oldest first or not, for softmax does not mind the order:
        entries [B * J, slots, ...], and which are not its own or not of the latest, bool
        [B, G, 1, slots]."""
        steps, room = self.state["steps"].size(1), self.state["kept"].size(-2)
        slots, hidden = min(steps, room), None
        if read is not None:
            ring = self.state["ring"].narrow(-1, 0, slots)
            hidden = (ring.unsqueeze(3) != read.unsqueeze(-1)).all(3)
        if latest is not None:
            slot = torch.arange(slots, device=latest.device)
            if hidden is None:  # all are in one ring, which may have come round
                after = (steps - 1 - slot) % room
                shape = (*self.state["kept"].shape[:3], slots)
                hidden = (after >= latest).view(len(latest), 1, 1, slots).expand(shape)
            else:
                after = (~hidden).flip(-1).cumsum(-1).flip(-1) - 1
                hidden = hidden | (after >= latest.view(-1, 1, 1, 1))
        return _side_by_side(self.state["kept"].narrow(-2, 0, slots), hidden)


class Rings:
    """The W latest keys of each ring.

    State: ``steps`` as of :class:`History`; ``seen``, how many tokens each ring was given,
    [B, G, L * R]; ``kept``, [B, G, L * R, J / G, W, 2 E (+ 1)].
    """

    needs_numbers = True

    def __init__(self, state: State, num_rings: int, skips: bool = False):
        self.state, self.num_rings, self.skips = state, num_rings, skips

    stored = History.stored

    def forget(self, rows: Tensor) -> None:
        self.state["seen"] = self.state["seen"].masked_fill(rows.unsqueeze(-1), 0)

    def store(self, new: Tensor, written: Tensor, skipped: Tensor | None) -> None:
        """As :meth:`History.store`."""
        rings, seen = self._flat()
        if skipped is not None:
            skipped = skipped.unsqueeze(-1)  # [B, G, L]
        if self.skips:
            nowhere = written == self.num_rings
            skipped = nowhere if skipped is None else nowhere | skipped
            written = written.masked_fill(nowhere, 0)
        written = self._place(written)
        rank = seen[written]  # of this token in its ring
        slot = rank % rings.size(-2)
        if skipped is not None:
            new = torch.where(skipped[..., None, None], rings[written, :, slot], new)
        rings[written, :, slot] = new
        seen[written] = rank + 1 if skipped is None else rank + ~skipped
        self.stored()

    def look(self, read: Tensor, latest: Tensor | None) -> tuple[Tensor, Tensor]:
        """As :meth:`History.look`."""
        rings, seen = self._flat()
        read = self._place(read).flatten(2)
        entries = rings.index_select(0, read.flatten()).view(*read.shape, *rings.shape[1:])
        slot = torch.arange(rings.size(-2), device=rings.device)
        stored = seen[read].unsqueeze(-1)
        hidden = slot >= stored
        if latest is not None:
            hidden = hidden | ((stored - 1 - slot) % len(slot) >= latest.view(-1, 1, 1, 1))
        return _side_by_side(entries, hidden)

    def _flat(self) -> tuple[Tensor, Tensor]:
        kept, seen = self.state["kept"], self.state["seen"]
        return kept.view(-1, *kept.shape[3:]), seen.view(-1)

    def _place(self, ring: Tensor) -> Tensor:
        """Numbers [B, G, L, ...] among the rings of all sentences, groups and layouts."""
        count = self.state["seen"].numel()
        first = torch.arange(0, count, self.num_rings, device=ring.device)
        return ring + first.view(*ring.shape[:3], *(1,) * (ring.dim() - 3))


class Near:
    """The ``gap - 1`` latest tokens, which no ring has yet.

    State: ``near.seen`` int64 [B], how many real tokens each row has had; ``near.kept``
    [B, G, J / G, gap - 1, 2 E (+ 1)]; ``near.ring`` int64 [B, G, L, gap - 1], where each will go;
    ``near.steps`` [B, steps, 0], up to ``gap - 1``.
    """

    def __init__(self, state: State, entry: Tensor, layouts: int, gap: int):
        self.state = {name: t for name, t in state.items() if name.startswith("near.")}
        if not self.state:
            batch, groups, _, heads, _, width = entry.shape
            self.state = {
                "near.steps": entry.new_empty(batch, 0, 0),
                "near.seen": torch.zeros(batch, dtype=torch.long, device=entry.device),
                "near.kept": entry.new_zeros(batch, groups, heads, gap - 1, width),
                "near.ring": torch.zeros(
                    batch, groups, layouts, gap - 1, dtype=torch.long, device=entry.device
                ),
            }

    def forget(self, rows: Tensor) -> None:
        self.state["near.seen"] = self.state["near.seen"].masked_fill(rows.squeeze(-1), 0)

    def look(self, biased: bool) -> tuple[Tensor, Tensor]:
        """As :meth:`History.look`; a key's bias does not count here."""
        kept = self.state["near.kept"].clone() if biased else self.state["near.kept"]
        if biased:
            kept[..., (kept.size(-1) - 1) // 2] = 0.0
        slot = torch.arange(kept.size(-2), device=kept.device)
        hidden = slot >= self.state["near.seen"].unsqueeze(-1)
        return kept.flatten(0, 2), hidden[:, None, None].expand(-1, kept.size(1), -1, -1)

    def push(
        self, new: Tensor, written: Tensor, padding_mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """Keep a token, and return the one that leaves for it: its entries, its rings, and the
        rows in which none does; None: in none."""
        kept, ring, seen = (self.state[f"near.{name}"] for name in ("kept", "ring", "seen"))
        room, row = kept.size(-2), torch.arange(len(seen), device=seen.device)
        slot = seen % room
        old, old_ring = kept[row, :, :, slot], ring[row, :, :, slot]
        new, added = new[:, :, 0], 1
        skipped = None
        if padding_mask is not None:
            hidden = padding_mask.squeeze(-1)
            new = torch.where(hidden.view(-1, 1, 1, 1), old, new)
            written = torch.where(hidden.view(-1, 1, 1), old_ring, written)
            added, skipped = (~hidden).long(), padding_mask
        kept[row, :, :, slot] = new
        ring[row, :, :, slot] = written
        full = seen >= room
        self.state["near.seen"] = seen + added
        steps = self.state["near.steps"]
        if steps.size(1) < room:
            self.state["near.steps"] = steps.new_empty(steps.size(0), steps.size(1) + 1, 0)
            return None
        skipped = ~full.unsqueeze(-1) if skipped is None else skipped | ~full.unsqueeze(-1)
        layouts = old_ring.size(-1)
        return old.unsqueeze(2).expand(-1, -1, layouts, -1, -1), old_ring, skipped


def _opened(
    state: State,
    q: Tensor,
    entries: tuple[int, ...],
    num_rings: int,
    window: int | None,
    ragged: bool,
    skips: bool,
) -> History | Rings:
    """What is kept, with a place for one more token, whose entries are [B, G, L, J / G, ...]."""
    state = {name: t for name, t in state.items() if not name.startswith("near.")}
    if not state:
        room = FIRST_ROOM if window is None else min(window, FIRST_ROOM)
        kept = q.new_zeros(*entries[:-1], room, entries[-1])
        state = {"steps": q.new_empty(len(q), 0, 0), "kept": kept}
    if "seen" in state:
        return Rings(state, num_rings, skips)
    kept, ring, steps = state["kept"], state.get("ring"), state["steps"].size(1)
    room = kept.size(-2)
    if ring is None and (num_rings > 1 or ragged):
        if steps > room:  # the only ring, which has come round
            seen = kept.new_full(kept.shape[:3], steps, dtype=torch.long)
            return Rings(state | {"seen": seen}, num_rings, skips)
        ring = kept.new_zeros(*kept.shape[:3], room, dtype=torch.long)
    if steps == room != window:
        more = room if window is None else min(room, window - room)
        kept = nn.functional.pad(kept, (0, 0, 0, more))
        ring = None if ring is None else nn.functional.pad(ring, (0, more))
    if ring is None:
        return History(state | {"kept": kept}, num_rings)
    if steps == window:
        kept, seen = _apart(kept, ring, num_rings)
        return Rings({"steps": state["steps"], "kept": kept, "seen": seen}, num_rings, skips)
    return History(state | {"kept": kept, "ring": ring}, num_rings)


def _apart(kept: Tensor, ring: Tensor, num_rings: int) -> tuple[Tensor, Tensor]:
    """A history of W tokens taken apart into rings: ``kept`` and ``seen`` of the state."""
    window, device = kept.size(-2), kept.device
    entries = kept.flatten(0, 2).transpose(1, 2)
    order, codes = sort_by_cluster(ring.flatten(0, 2), num_rings + 1)
    ring = codes // window
    begins = (torch.arange(num_rings + 1, device=device) * window).repeat(len(codes), 1)
    begins = torch.searchsorted(codes, begins)
    rank = torch.arange(window, device=device) - begins.gather(-1, ring)
    row = torch.arange(len(codes), device=device).unsqueeze(-1)
    rings = entries.new_zeros(len(codes), num_rings + 1, *entries.shape[1:])
    rings[row, ring, rank] = entries[row, order]
    rings = rings[:, :num_rings].transpose(2, 3).contiguous()
    shape = (*kept.shape[:2], kept.size(2) * num_rings)
    return rings.view(*shape, *kept.shape[3:]), begins.diff().view(shape)


def _stacked(x: Sequence[Tensor]) -> Tensor:
    """Tensors [B, G, ...] as one, [B, G, number, ...]."""
    return x[0].unsqueeze(2) if len(x) == 1 else torch.stack(tuple(x), dim=2)


def _side_by_side(entries: Tensor, hidden: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Entries [B, G, L, J / G, slots, ...] as [B * J, L * slots, ...]; bool [B, G, L, slots]."""
    if entries.size(2) > 1:
        entries = entries.transpose(2, 3).flatten(3, 4).unsqueeze(2)
    return entries.flatten(0, 3), None if hidden is None else hidden.flatten(2).unsqueeze(2)


def _entry(k: Tensor, v: Tensor, bias: Tensor | None, biased: bool, groups: int) -> Tensor:
    """What is kept of a token: key, bias (as one more number of the key) and value side by side,
    [B, G, 1, J / G, 1, 2 E (+ 1)]."""
    parts = [k, v]
    if biased:
        column = k.new_zeros(1) if bias is None else bias.to(k.dtype)[..., None, None]
        parts = [k, column.expand(*k.shape[:-1], 1), v]
    entry = torch.cat(parts, dim=-1)
    return entry.view(len(k), groups, 1, -1, 1, entry.size(-1))


def _attend(
    q: Tensor,
    parts: list[tuple[Tensor, Tensor | None]],
    groups: int,
    *,
    sees_itself: bool,
) -> Tensor:
    """Attended values [B, H, 1, E] in the queries' dtype, 0 where nothing is seen."""
    shape, dtype, width = q.shape, q.dtype, q.size(-1)
    entries = parts[0][0] if len(parts) == 1 else torch.cat([part[0] for part in parts], dim=1)
    hidden = parts[0][1]
    if any(part[1] is not None for part in parts[1:]) or (hidden is not None and len(parts) > 1):
        hidden = torch.cat(
            [
                entries.new_zeros(shape[0], groups, 1, e.size(1), dtype=torch.bool)
                if h is None
                else h
                for e, h in parts
            ],
            dim=-1,
        )
    q = at_least_float32(q).reshape(len(entries), -1, width) / math.sqrt(width)
    if entries.size(-1) > 2 * width:  # the key's bias
        q = nn.functional.pad(q, (0, 1), value=1.0)
    keys, values = at_least_float32(entries).split([q.size(-1), width], dim=-1)
    weights = torch.bmm(q, keys.transpose(1, 2))
    if hidden is not None:
        by_group = weights.view(*hidden.shape[:2], -1, hidden.size(-1))
        by_group.masked_fill_(hidden, torch.finfo(weights.dtype).min)
    weights = torch.softmax(weights, dim=-1)
    if hidden is not None and not sees_itself:  # but possibly nothing at all
        by_group = weights.view(*hidden.shape[:2], -1, hidden.size(-1))
        by_group.masked_fill_(hidden, 0.0)
    return torch.bmm(weights, values).view(shape).to(dtype)
