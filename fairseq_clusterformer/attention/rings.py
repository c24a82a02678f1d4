"""Keys and values that a step-by-step decoder keeps: a ring of the W latest for each cluster.

The state of a kind with a window holds K * W keys however long the text; a step reads W of them.
In the first W steps no ring can drop a key: until then all stand in one history, each with the
number of its ring, which takes fewer operations and less memory than rings that are half empty.

Shape letters: B batch, H heads, E head width, G groups of heads (1 or H), L layouts, R rings of a
layout, W window.
"""

import math

import torch
from torch import Tensor, nn

from ..clustering import State
from ..kernels import chosen, triton_kernels
from ..kernels.sorting import sort_by_cluster
from ..precision import at_least_float32
from .base import Ring

FIRST_ROOM = 8  # tokens that a history holds before it grows


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
    impl: str = "auto",
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
        impl: as of :func:`~fairseq_clusterformer.kernels.ranged_attention`: one kernel where
            that is "triton" (heads up to 256 wide), PyTorch for the others.

    Returns:
        The attended values [B, H, 1, E], and the new state:

        - ``steps``: [B, steps, 0], which holds no numbers. Its shape counts the steps, so that
          the host knows their number without waiting for the device;
        - ``kept``: keys and values side by side, with a bias if there are any,
          [B, G, L, H / G, room, 2 E (+ 1)]; the room doubles up to W, where it comes round;
        - ``ring``: in which ring each is, R for none, [B, G, L, room]; absent while all are in
          the only one;
        - after W steps in its place ``seen``: how many tokens each ring was given,
          [B, G, L * R]. Then ``kept`` is [B, G, L * R, H / G, W, 2 E (+ 1)].
    """
    groups = rings[0].key.size(1)
    biased = own_bias is not None or rings[0].key_bias is not None
    entries = (len(q), groups, len(rings), q.size(1) // groups, 2 * q.size(-1) + biased)
    state = _with_room(state, q, entries, num_rings, window, padding_mask)
    written, read = _numbers(rings, state)
    if chosen(impl, q) == "triton":
        biases = [ring.key_bias for ring in rings]
        out, changed = triton_kernels(q).triton_step(
            q,
            k,
            v,
            written,
            read,
            state,
            num_rings=num_rings,
            key_bias=None if biases[0] is None else _by_layout(biases),
            own_apart=own_apart,
            own_bias=own_bias,
            padding_mask=padding_mask,
        )
        state = state | changed
    else:
        new = [_entry(k, v, ring.key_bias, biased, groups) for ring in rings]
        new = new[0] if len(new) == 1 else torch.cat(new, dim=2)
        own = _entry(k, v, own_bias, biased, groups) if own_apart else None
        out = _step(q, new, own, written, read, state, num_rings, padding_mask)
    return out, state | {"steps": q.new_empty(len(q), state["steps"].size(1) + 1, 0)}


def _with_room(
    state: State,
    q: Tensor,
    entries: tuple[int, ...],
    num_rings: int,
    window: int | None,
    padding_mask: Tensor | None,
) -> State:
    """The state with a place for one more token, whose entries are [B, G, L, H / G, ...]."""
    if not state:
        room = FIRST_ROOM if window is None else min(window, FIRST_ROOM)
        kept = q.new_zeros(*entries[:-1], room, entries[-1])
        state = {"steps": q.new_empty(len(q), 0, 0), "kept": kept}
    if "seen" in state:
        return state
    kept, ring, steps = state["kept"], state.get("ring"), state["steps"].size(1)
    room = kept.size(-2)
    if ring is None and (num_rings > 1 or padding_mask is not None):
        if steps > room:  # the only ring, which has come round
            return state | {"seen": kept.new_full(kept.shape[:3], steps, dtype=torch.long)}
        ring = kept.new_zeros(*kept.shape[:3], room, dtype=torch.long)
    if steps == room != window:
        more = room if window is None else min(room, window - room)
        kept = nn.functional.pad(kept, (0, 0, 0, more))
        ring = None if ring is None else nn.functional.pad(ring, (0, more))
    if ring is None:
        return state | {"kept": kept}
    if steps == window:
        kept, seen = _apart(kept, ring, num_rings)
        return {"steps": state["steps"], "kept": kept, "seen": seen}
    return state | {"kept": kept, "ring": ring}


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


def _numbers(rings: tuple[Ring, ...], state: State) -> tuple[Tensor | None, Tensor | None]:
    """The rings that are written and read, [B, G, L]: one tensor where they are the same, None
    where there is only one."""
    if "ring" not in state and "seen" not in state:
        return None, None
    written = _by_layout([ring.key for ring in rings])
    if all(ring.query is ring.key for ring in rings):
        return written, written
    return written, _by_layout([ring.query for ring in rings])


def _by_layout(x: list[Tensor]) -> Tensor:
    return x[0].unsqueeze(-1) if len(x) == 1 else torch.stack(x, dim=-1)


def _step(
    q: Tensor,
    new: Tensor,
    own: Tensor | None,
    written: Tensor | None,
    read: Tensor | None,
    state: State,
    num_rings: int,
    padding_mask: Tensor | None,
) -> Tensor:
    """The step in PyTorch, of a token's entries [B, G, L, H / G, ...]; ``own`` is seen besides the
    rings, and then the others are stored afterwards."""
    steps = state["steps"].size(1)
    same = read is written
    if "seen" in state:  # numbers among the rings of all sentences, groups and layouts
        first = torch.arange(0, state["seen"].numel(), num_rings, device=q.device)
        written = written + first.view_as(written)
        read = written if same else read + first.view_as(read)
    if own is None:
        _store(new, written, state, steps, num_rings, padding_mask)
        return _attend(q, *_look(read, state, steps + 1), sees_itself=same)
    entries, hidden = _look(read, state, steps)
    entries = torch.cat([entries, own.flatten(0, 3).unsqueeze(1)], dim=1)
    hidden = None if hidden is None else nn.functional.pad(hidden, (0, 1))
    out = _attend(q, entries, hidden, sees_itself=True)
    _store(new, written, state, steps, num_rings, padding_mask)
    return out


def _entry(k: Tensor, v: Tensor, bias: Tensor | None, biased: bool, groups: int) -> Tensor:
    """What is kept of a token: key, bias (as one more number of the key) and value side by side,
    [B, G, 1, H / G, 2 E (+ 1)]."""
    parts = [k, v]
    if biased:
        column = k.new_zeros(1) if bias is None else bias.to(k.dtype)[..., None, None]
        parts = [k, column.expand(*k.shape[:-1], 1), v]
    entry = torch.cat(parts, dim=-1)
    return entry.view(len(k), groups, 1, -1, entry.size(-1))


def _store(
    new: Tensor,
    written: Tensor | None,
    state: State,
    steps: int,
    num_rings: int,
    padding_mask: Tensor | None,
) -> None:
    kept, room = state["kept"], state["kept"].size(-2)
    padding = None if padding_mask is None else padding_mask.unsqueeze(-1)  # [B, G, L]
    if "seen" in state:
        rings, seen = kept.view(-1, *kept.shape[3:]), state["seen"].view(-1)
        rank = seen[written]  # of this token in its ring
        if padding is not None:
            new = torch.where(padding[..., None, None], rings[written, :, rank % room], new)
        rings[written, :, rank % room] = new
        seen[written] = rank + 1 if padding is None else rank + ~padding
    else:
        if padding is not None:
            new = new.masked_fill(padding[..., None, None], 0.0)
            written = written.masked_fill(padding, num_rings)
        kept.select(-2, steps % room).copy_(new)
        if written is not None:
            state["ring"].select(-1, steps).copy_(written)


def _look(read: Tensor | None, state: State, steps: int) -> tuple[Tensor, Tensor | None]:
    """What a query's rings hold, oldest first or not, for softmax does not mind the order: entries
    [B * H, slots, ...], and which are not its own, bool [B, G, 1, slots], if any may be."""
    kept, room = state["kept"], state["kept"].size(-2)
    if "seen" in state:
        rings, filled = kept.view(-1, *kept.shape[3:]), state["seen"].view(-1)[read]
        entries = rings.index_select(0, read.flatten()).view(*read.shape, *rings.shape[1:])
        hidden = torch.arange(room, device=kept.device) >= filled.unsqueeze(-1)
    else:
        slots = min(steps, room)
        entries, hidden = kept.narrow(-2, 0, slots), None
        if read is not None:
            hidden = state["ring"].narrow(-1, 0, slots) != read.unsqueeze(-1)
    if entries.size(2) > 1:  # the layouts' slots one after the other
        entries = entries.transpose(2, 3).flatten(3, 4).unsqueeze(2)
    return entries.flatten(0, 3), None if hidden is None else hidden.flatten(2).unsqueeze(2)


def _attend(q: Tensor, entries: Tensor, hidden: Tensor | None, *, sees_itself: bool) -> Tensor:
    """Attended values [B, H, 1, E] in the queries' dtype, 0 where nothing is seen."""
    shape, dtype, width = q.shape, q.dtype, q.size(-1)
    q = at_least_float32(q).reshape(-1, 1, width) / math.sqrt(width)
    if entries.size(-1) > 2 * width:  # the key's bias
        q = nn.functional.pad(q, (0, 1), value=1.0)
    keys, values = at_least_float32(entries).split([q.size(-1), width], dim=-1)
    weights = torch.bmm(q, keys.transpose(1, 2))
    if hidden is not None:
        by_group = weights.view(*hidden.shape[:2], -1, hidden.size(-1))
        by_group.masked_fill_(hidden, torch.finfo(weights.dtype).min)
    weights = torch.softmax(weights, dim=-1)
    if hidden is not None and not sees_itself:  # but possibly nothing at all
        weights.view(by_group.shape).masked_fill_(hidden, 0.0)
    return torch.bmm(weights, values).view(shape).to(dtype)
