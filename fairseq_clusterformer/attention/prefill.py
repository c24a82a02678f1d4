"""The first tokens of a text at once, and the state from which decoding goes on.

The state is what :mod:`~fairseq_clusterformer.attention.rings` would keep after a step for each
token.

Shape letters as in :mod:`~fairseq_clusterformer.attention.rings`; N tokens, C = 2 E (+ 1).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..clustering import State
from ..kernels.sorting import sort_by_cluster
from ..precision import is_exact
from .batch import Batch
from .kind import Kind, Tokens
from .multihead import PROJECTIONS, MultiheadAttention
from .rules import own_bias


@torch.no_grad()
def prefill(
    attention: MultiheadAttention, x: Tensor, batch: Batch | Tensor | None = None
) -> tuple[Tensor, State]:
    """The first tokens of a causal sequence, in evaluation.

    Args:
        x: [B, N, D].
        batch: the padding mask, bool [B, N], if any token is padding.

    Returns:
        The outputs [B, N, D] of as many calls of ``attention.step``, and the state after them.

    Raises:
        ValueError: a kind that cannot decode step by step, or rows of several documents.
    """
    for router in attention.routers:
        if not router.can_step:
            raise ValueError(router.why_no_steps)
    batch = Batch.of(batch)
    if batch.documents is not None:
        raise ValueError("documents in a prompt; allowed: one document, or step by step")
    out, _ = MultiheadAttention.forward(attention, x, batch)
    state = {"position": batch.positions(x)[:, -1:].expand(len(x), 1) + 1}
    convolutions = attention.convolutions

    def convolved(name: str, y: Tensor, exact: str = "") -> Tensor:
        if name in convolutions:
            state[f"{name}.{exact}before"] = convolutions[name].latest(y, batch)
        return attention._convolved(name, y, batch)

    heads = tuple(
        attention._heads(convolved(name, attention._projected(name, x))) for name in PROJECTIONS
    )
    exact = attention._exactly(x, *heads[:2], lambda name, y: convolved(name, y, "exact."))
    reads = any(router.reads_heads for router in attention.routers)
    if convolutions and reads and not is_exact(heads[0]):
        exact()
    for i, router in enumerate(attention.routers):
        own = _kept(attention, router, i, x, heads, exact, batch)
        state |= {f"{i}.{name}": t for name, t in own.items()}
    return out, state


def _kept(
    attention: MultiheadAttention,
    router: Kind,
    i: int,
    x: Tensor,
    heads: tuple[Tensor, Tensor, Tensor],
    exact: Callable[[], tuple[Tensor, Tensor]],
    batch: Batch,
) -> State:
    """The state of a kind behind all tokens."""
    q, few_k, few_v, of_kind = attention._few(router, i, heads, exact)
    positions = batch.positions(x)
    tokens = Tokens(x, of_kind, batch, lambda: positions, impl=attention.impl)
    assignment, routing = router.assign(tokens, {})
    one_ring = x.new_zeros(len(x), 1, x.size(1), dtype=torch.long)
    written = [queries if keys is None else keys for queries, keys in assignment.pairs()]
    written = tuple(one_ring if keys is None else keys for keys in written)
    if written[0].size(1) > few_k.size(1):
        few_k, few_v = (attention._share(i, attention._repeated(t)) for t in heads[1:])
    _, few_k, few_v = attention._placed(i, q, few_k, few_v, positions)
    bias = assignment.key_bias
    kept = filled(
        few_k,
        few_v,
        written,
        num_rings=router.num_clusters,
        window=router.by_cluster,
        gap=router.gap,
        key_bias=bias,
        biased=bias is not None or bool(router.gap and own_bias(router)),
        padding_mask=batch.padding_mask,
    )
    state = {f"routing.{name}": t for name, t in routing.items()}
    return state | {f"kept.{name}": t for name, t in kept.items()}


def filled(
    k: Tensor,
    v: Tensor,
    written: tuple[Tensor, ...],
    *,
    num_rings: int,
    window: int | None,
    gap: int = 0,
    key_bias: Tensor | None = None,
    biased: bool = False,
    padding_mask: Tensor | None = None,
) -> State:
    """What is kept of N tokens, the first of their rows.

    Args:
        k, v: [B, J, N, E].
        written: the ring that each key is stored in, int64 [B, G, N], for each layout.
        num_rings, window, gap: as of :func:`~fairseq_clusterformer.attention.rings.attend_step`.
        key_bias: as of ``attend_step``, [B, G, N].
        biased: a bias is kept with each key, also where there is none.
        padding_mask: bool [B, N].
    """
    batch, _, length, _ = k.shape
    numbers = torch.stack(written, dim=2)  # [B, G, L, N]
    groups, layouts = numbers.shape[1:3]
    parts = [k, v]
    if biased:
        bias = k.new_zeros(batch, groups, length) if key_bias is None else key_bias.to(k.dtype)
        bias = bias.repeat_interleave(k.size(1) // groups, dim=1)
        parts = [k, bias.unsqueeze(-1), v]
    entries = torch.cat(parts, dim=-1).unflatten(1, (groups, -1))  # [B, G, J / G, N, C]
    hidden, state = padding_mask, {}
    if gap > 1:
        near, state = _near(entries, numbers, gap, padding_mask)
        hidden = near if hidden is None else hidden | near
    if hidden is not None:
        entries = entries.masked_fill(hidden[:, None, None, :, None], 0.0)
        numbers = numbers.masked_fill(hidden[:, None, None], num_rings)
    kept = entries.unsqueeze(2).expand(-1, -1, layouts, -1, -1, -1)
    state["steps"] = k.new_empty(batch, length, 0)
    if num_rings == 1 and hidden is None:  # a history, which comes round
        if window is not None and length > window:
            kept = kept[..., -window:, :].roll(length % window, -2)
        return state | {"kept": kept.contiguous()}
    if window is None or length < window:
        return state | {"kept": kept.contiguous(), "ring": numbers.contiguous()}
    kept, seen = _in_rings(kept.flatten(0, 2).transpose(1, 2), numbers, num_rings, window)
    kept = kept.view(batch, groups, layouts * num_rings, *kept.shape[2:])
    return state | {"kept": kept, "seen": seen.view(batch, groups, -1)}


def _near(
    entries: Tensor, numbers: Tensor, gap: int, padding_mask: Tensor | None
) -> tuple[Tensor, State]:
    """Which tokens are the ``gap - 1`` latest real ones, bool [B, N], and the state of
    :class:`~fairseq_clusterformer.attention.rings.Near`."""
    batch, groups, heads, length, width = entries.shape
    room, layouts = gap - 1, numbers.size(2)
    real = torch.ones(batch, length, dtype=torch.bool, device=entries.device)
    if padding_mask is not None:
        real = ~padding_mask
    place, count = real.cumsum(1) - 1, real.sum(1)
    near = real & (place >= (count - room).unsqueeze(-1))
    row, token = near.nonzero(as_tuple=True)
    slot = place[row, token] % room
    kept = entries.new_zeros(batch, groups, heads, room, width)
    kept[row, :, :, slot] = entries[row, :, :, token]
    ring = numbers.new_zeros(batch, groups, layouts, room)
    ring[row, :, :, slot] = numbers[row, :, :, token]
    return near, {
        "near.steps": entries.new_empty(batch, min(length, room), 0),
        "near.seen": count,
        "near.kept": kept,
        "near.ring": ring,
    }


def _in_rings(
    entries: Tensor, numbers: Tensor, num_rings: int, window: int
) -> tuple[Tensor, Tensor]:
    """Entries [rows, N, J / G, C] in rings: the W latest of each, [rows, R, J / G, W, C], and how
    many each was given, int64 [rows, R]."""
    rows, length = entries.shape[:2]
    order, codes = sort_by_cluster(numbers.flatten(0, 2), num_rings + 1)
    ring = codes // length
    begins = torch.arange(num_rings + 2, device=codes.device) * length
    begins = torch.searchsorted(codes, begins.repeat(rows, 1))
    seen = begins.diff()
    rank = torch.arange(length, device=codes.device) - begins.gather(-1, ring)
    dropped = rank < seen.gather(-1, ring) - window
    ring = ring.masked_fill(dropped, num_rings)  # where nothing is read
    row = torch.arange(rows, device=codes.device).unsqueeze(-1)
    rings = entries.new_zeros(rows, num_rings + 1, window, *entries.shape[2:])
    rings[row, ring, rank % window] = entries[row, order]
    rings = rings[:, :num_rings].transpose(2, 3)
    return rings.contiguous(), seen[:, :num_rings].contiguous()
