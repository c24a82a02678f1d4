"""Keys and values that a step-by-step decoder keeps: a ring of the W latest for each cluster.

The state of a kind with a window holds K * W keys however long the text; a step reads W of them.

Shape letters: B batch, H heads, E head width, G groups of heads (1 or H), L layouts, R rings of a
layout, W window.
"""

import math

import torch
from torch import Tensor, nn

from ..clustering import State
from ..precision import at_least_float32
from .base import Ring

FIRST_ROOM = 8  # tokens that a ring holds before it grows


def attend_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rings: tuple[Ring, ...],
    state: State,
    *,
    num_rings: int,
    window: int | None,
    own_apart: bool = False,
    own_bias: Tensor | None = None,
    padding_mask: Tensor | None = None,
) -> tuple[Tensor, State]:
    """Attend from one token to a ring of each layout, and store it in one of each.

    Args:
        q, k, v: [B, H, 1, E].
        rings: which ring is read and which is written, for each layout.
        state: of the last call, written to in place; empty at first.
        num_rings: R.
        window: W; None: a ring grows without bound (full attention).
        own_apart: the token sees itself besides its rings, which show it earlier tokens only;
            otherwise it is stored first, and seen if it reads the ring that it was stored in.
        own_bias: added to its logit for itself, [B, 1 or H]; only where ``own_apart``.
        padding_mask: bool [B, 1]; a padding token is not stored.

    Returns:
        The attended values [B, H, 1, E] and the new state: keys and values side by side, with
        a bias if there are any, [B, G, L * R, H / G, room, 2 E (+ 1)], where the room doubles up
        to W; and how many tokens each ring has seen, [B, G, L * R].
    """
    groups, layouts = rings[0].key.size(1), len(rings)
    biased = own_bias is not None or rings[0].key_bias is not None
    new = [_entry(k, v, ring.key_bias, biased, groups) for ring in rings]
    new = new[0] if layouts == 1 else torch.stack(new, dim=1).flatten(0, 1)
    if not state:
        state = _nothing_kept(new, q.size(0), groups, layouts * num_rings, window)
    # A ring's number among those of all sentences, groups and layouts, [B * G * L].
    first = torch.arange(0, state["seen"].numel(), num_rings, device=q.device)
    written = read = first
    if num_rings > 1:
        written = read = first + _by_layout([ring.key for ring in rings])
        if any(ring.query is not ring.key for ring in rings):
            read = first + _by_layout([ring.query for ring in rings])
    if not own_apart:
        state = _store(new, written, state, window, padding_mask)
        return _attend(q, *_look(read, state, layouts), biased), state
    own = _entry(k, v, own_bias, biased, groups).unsqueeze(-2)
    entries, hidden = _look(read, state, layouts)
    entries, hidden = torch.cat([entries, own], dim=-2), nn.functional.pad(hidden, (0, 1))
    out = _attend(q, entries, hidden, biased)
    return out, _store(new, written, state, window, padding_mask)


def _entry(k: Tensor, v: Tensor, bias: Tensor | None, biased: bool, groups: int) -> Tensor:
    """What is kept of a token: key, bias (as one more number of the key) and value side by side,
    [B * G, H / G, 2 E (+ 1)]."""
    parts = [k, v]
    if biased:
        column = k.new_zeros(1) if bias is None else bias.to(k.dtype)[..., None, None]
        parts = [k, column.expand(*k.shape[:-1], 1), v]
    return torch.cat(parts, dim=-1).reshape(k.size(0) * groups, -1, sum(p.size(-1) for p in parts))


def _by_layout(numbers: list[Tensor]) -> Tensor:
    """Numbers [B, G] of each layout, [B * G * L]."""
    return (numbers[0] if len(numbers) == 1 else torch.stack(numbers, dim=-1)).flatten()


def _nothing_kept(new: Tensor, batch: int, groups: int, rings: int, window: int | None) -> State:
    room = FIRST_ROOM if window is None else min(window, FIRST_ROOM)
    seen = torch.zeros(batch, groups, rings, dtype=torch.long, device=new.device)
    return {"kept": new.new_zeros(*seen.shape, new.size(1), room, new.size(-1)), "seen": seen}


def _store(
    new: Tensor, ring: Tensor, state: State, window: int | None, padding_mask: Tensor | None
) -> State:
    kept, seen = state["kept"], state["seen"].view(-1)
    rank = seen.index_select(0, ring)  # of this token in its ring
    slot = rank
    if kept.size(-2) == window:
        slot = rank % window
    elif int(rank.max()) >= kept.size(-2):
        kept = _grown(kept, window)
    rings = kept.view(-1, *kept.shape[3:])
    filled = rank + 1
    if padding_mask is not None:
        real = ~padding_mask.expand(-1, len(ring) // len(padding_mask)).reshape(-1)
        new = torch.where(real.view(-1, 1, 1), new, rings[ring, :, slot])
        filled = rank + real
    rings[ring, :, slot] = new
    seen.index_copy_(0, ring, filled)
    return {"kept": kept, "seen": state["seen"]}


def _look(ring: Tensor, state: State, layouts: int) -> tuple[Tensor, Tensor]:
    """What a query's rings hold, oldest first or not, for softmax does not mind the order:
    entries [B * G, H / G, slots, ...], and which slots are empty, bool [B * G, 1, slots]."""
    kept, seen = state["kept"], state["seen"].view(-1)
    entries, filled = kept.view(-1, *kept.shape[3:]), seen
    if len(ring) < len(entries):
        entries, filled = entries.index_select(0, ring), seen.index_select(0, ring)
    empty = torch.arange(kept.size(-2), device=ring.device) >= filled.view(-1, 1, 1)
    if layouts > 1:
        entries = entries.unflatten(0, (-1, layouts)).transpose(1, 2).flatten(2, 3)
        empty = empty.unflatten(0, (-1, layouts)).transpose(1, 2).flatten(2, 3)
    return entries, empty


def _attend(q: Tensor, entries: Tensor, hidden: Tensor, biased: bool) -> Tensor:
    """Attended values [B, H, 1, E] in the queries' dtype."""
    batch, heads, _, width = q.shape
    dtype = q.dtype
    q = at_least_float32(q).reshape(-1, 1, width) / math.sqrt(width)
    if biased:
        q = nn.functional.pad(q, (0, 1), value=1.0)
    entries = at_least_float32(entries).flatten(0, 1)
    keys, values = entries.split([q.size(-1), width], dim=-1)
    logits = torch.bmm(q, keys.transpose(1, 2)).view(*hidden.shape[:1], -1, hidden.size(-1))
    # Not -inf: where a ring holds nothing, its values are still 0, and so is the result.
    logits.masked_fill_(hidden, torch.finfo(logits.dtype).min)
    weights = torch.softmax(logits, dim=-1).view(batch * heads, 1, -1)
    return torch.bmm(weights, values).view(batch, heads, 1, width).to(dtype)


def _grown(kept: Tensor, window: int | None) -> Tensor:
    """Twice the room, up to the window; no ring has come round before it has all of that."""
    room = kept.size(-2)
    more = room if window is None else min(room, window - room)
    return torch.cat([kept, kept.new_zeros(*kept.shape[:-2], more, kept.size(-1))], dim=-2)
