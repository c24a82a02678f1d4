"""Keys and values that a step-by-step decoder keeps: a ring of the W latest for each cluster.

The state of a kind with a window holds K * W keys however long the text; a step reads W of them.

Shape letters: B batch, H heads, E head width, G groups of heads (1 or H), R rings, W window.
"""

import math

import torch
from torch import Tensor

from ..clustering import State
from ..precision import at_least_float32

FIRST_ROOM = 64  # tokens that a ring holds before it grows


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
        The attended values [B, H, 1, E] and the new state: keys and values [B, R, W, H, E] and how
        many tokens each ring has seen, [B, R, G].
    """
    batch, heads, _, width = q.shape
    groups = key_ring.size(1)
    if not state:
        room = FIRST_ROOM if window is None else min(window, FIRST_ROOM)
        state = {
            "keys": k.new_zeros(batch, num_rings, room, heads, width),
            "values": v.new_zeros(batch, num_rings, room, heads, width),
            "seen": torch.zeros(batch, num_rings, groups, dtype=torch.long, device=q.device),
        }
    keys, values, seen = state["keys"], state["values"], state["seen"]
    real = key_ring.new_ones(batch, 1) if padding_mask is None else (~padding_mask).long()

    row = torch.arange(batch, device=q.device).unsqueeze(-1)
    group = torch.arange(groups, device=q.device)
    rank = seen[row, key_ring, group]  # of this token in its ring, [B, G]
    if keys.size(2) != window and int(rank.max()) >= keys.size(2):
        keys, values = (_grown(t, window) for t in (keys, values))
    room = keys.size(2)
    slot = rank % room

    head = torch.arange(heads, device=q.device)
    ring_h, slot_h = (t.expand(batch, heads) for t in (key_ring, slot))
    keep = real.bool().unsqueeze(-1)
    for stored, new in ((keys, k), (values, v)):
        at = (row, ring_h, slot_h, head)
        stored[at] = torch.where(keep, new.squeeze(2), stored[at])
    seen[row, key_ring, group] = rank + real

    # The ring that the query reads, oldest or not: softmax does not mind the order.
    ring_h = query_ring.expand(batch, heads)
    k_ring = keys[row, ring_h, :, head]  # [B, H, W, E]
    v_ring = values[row, ring_h, :, head]
    logits = at_least_float32(q) @ at_least_float32(k_ring).transpose(-1, -2) / math.sqrt(width)
    filled = seen[row, query_ring, group].expand(batch, heads)[..., None, None]
    empty = torch.arange(room, device=q.device) >= filled
    logits = logits.masked_fill(empty, -math.inf)
    weights = torch.softmax(logits, dim=-1).masked_fill(filled == 0, 0.0)
    out = (weights @ at_least_float32(v_ring)).to(q.dtype)
    return out, {"keys": keys, "values": values, "seen": seen}


def _grown(stored: Tensor, window: int | None) -> Tensor:
    """Twice the room, up to the window; no ring has come round before it has all of that."""
    room = stored.size(2)
    more = room if window is None else min(room, window - room)
    return torch.cat([stored, stored.new_zeros(*stored.shape[:2], more, *stored.shape[3:])], dim=2)
