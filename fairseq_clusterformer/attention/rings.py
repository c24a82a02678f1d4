"""Keys and values that a step-by-step decoder keeps: a ring of the W latest for each cluster.

The state of a kind with a window holds K * W keys however long the text; a step reads W of them.

Shape letters: B batch, H heads, E head width, G groups of heads (1 or H), R rings, W window.
"""

import math

import torch
from torch import Tensor

from ..clustering import State
from ..precision import at_least_float32

FIRST_ROOM = 8  # tokens that a ring holds before it grows


def attend_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_ring: Tensor,
    key_ring: Tensor,
    state: State,
    *,
    num_rings: int,
    window: int | None,
    padding_mask: Tensor | None = None,
) -> tuple[Tensor, State]:
    """Store one token in its ring, and attend from it to a ring.

    Args:
        q, k, v: [B, H, 1, E].
        query_ring, key_ring: int64 [B, G] in [0, R).
        state: of the last call, written to in place; empty at first.
        num_rings: R.
        window: W; None: a ring grows without bound (full attention).
        padding_mask: bool [B, 1]; a padding token is not stored.

    Returns:
        The attended values [B, H, 1, E] and the new state: keys and values side by side
        [B, G, R, H / G, room, 2 E], where the room doubles up to W, and how many tokens each ring
        has seen, [B, G, R].
    """
    batch, heads, _, width = q.shape
    groups = key_ring.size(1)
    share = heads // groups
    if not state:
        room = FIRST_ROOM if window is None else min(window, FIRST_ROOM)
        state = {
            "kept": k.new_zeros(batch, groups, num_rings, share, room, 2 * width),
            "seen": torch.zeros(batch, groups, num_rings, dtype=torch.long, device=q.device),
        }
    kept, seen = state["kept"], state["seen"].view(-1)

    # A ring's number among those of all sentences and groups, [B * G].
    first = torch.arange(0, batch * groups * num_rings, num_rings, device=q.device)
    ring = first if num_rings == 1 else first + key_ring.flatten()
    rank = seen.index_select(0, ring)  # of this token in its ring
    slot = rank
    if kept.size(-2) == window:
        slot = rank % window
    elif int(rank.max()) >= kept.size(-2):
        kept = _grown(kept, window)
    room = kept.size(-2)
    rings = kept.view(-1, share, room, 2 * width)
    new = torch.cat([k, v], dim=-1).view(-1, share, 2 * width)
    if padding_mask is None:
        filled = rank + 1
    else:
        real = ~padding_mask.expand(batch, groups).reshape(-1)
        new = torch.where(real.view(-1, 1, 1), new, rings[ring, :, slot])
        filled = rank + real
    rings[ring, :, slot] = new
    seen.index_copy_(0, ring, filled)

    # What the query sees: its ring, oldest first or not, for softmax does not mind the order.
    if query_ring is not key_ring and num_rings > 1:
        ring = first + query_ring.flatten()
        filled = seen.index_select(0, ring)
    visible = rings if num_rings == 1 else rings.index_select(0, ring)
    keys, values = at_least_float32(visible).flatten(0, 1).split(width, dim=-1)
    q = at_least_float32(q).reshape(-1, 1, width) / math.sqrt(width)
    logits = torch.bmm(q, keys.transpose(1, 2)).view(-1, share, room)
    empty = torch.arange(room, device=q.device) >= filled.view(-1, 1, 1)
    # Not -inf: where a ring holds nothing, its values are still 0, and so is the result.
    logits.masked_fill_(empty, torch.finfo(logits.dtype).min)
    weights = torch.softmax(logits, dim=-1).view(batch * heads, 1, room)
    out = torch.bmm(weights, values).view(batch, heads, 1, width).to(v.dtype)
    return out, {"kept": kept, "seen": state["seen"]}


def _grown(kept: Tensor, window: int | None) -> Tensor:
    """Twice the room, up to the window; no ring has come round before it has all of that."""
    room = kept.size(-2)
    more = room if window is None else min(room, window - room)
    return torch.cat([kept, kept.new_zeros(*kept.shape[:-2], more, kept.size(-1))], dim=-2)
