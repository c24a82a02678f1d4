"""Several tokens of a text at once, and the state from which decoding goes on.

What was kept of the tokens before stands in front of the new ones, as if it were a short text:
each key in the cluster of its ring, the oldest first. So the rules by which a batch is attended
hold here too, and the state afterwards is what :mod:`~fairseq_clusterformer.attention.rings` would
keep after a step for each token.

Shape letters as in :mod:`~fairseq_clusterformer.attention.rings`; N tokens, P keys that were kept,
C = 2 E (+ 1).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..clustering import State
from ..kernels import Layout, join, ranged_attention
from ..kernels.sorting import sort_by_cluster
from ..precision import is_exact
from .batch import Batch
from .kind import Assignment, Kind, Tokens
from .multihead import PROJECTIONS, MultiheadAttention, to_join, under
from .rules import check_clusters, own_bias, own_part, recent
from .summaries import attend, means, places, summaries_of


@torch.no_grad()
def prefill(
    attention: MultiheadAttention,
    x: Tensor,
    batch: Batch | Tensor | None = None,
    state: State | None = None,
) -> tuple[Tensor, State]:
    """The next tokens of a causal sequence, in evaluation.

    Args:
        x: [B, N, D].
        batch: the padding mask, bool [B, N], if any token is padding.
        state: what this function or ``attention.step`` returned for the tokens before; None or
            empty: these are the first.

    Returns:
        The outputs [B, N, D] of as many calls of ``attention.step``, and the state after them.

    Raises:
        ValueError: a kind that cannot decode step by step, or rows of several documents.
    """
    for router in attention.routers:
        if not router.can_step:
            raise ValueError(router.why_no_steps)
    state, mask = state or {}, Batch.of(batch).padding_mask
    if Batch.of(batch).documents is not None or "document" in state:
        raise ValueError("documents in a prompt; allowed: one document, or step by step")
    if not x.size(1):
        return x, state
    real = x.new_ones(x.shape[:2], dtype=torch.long) if mask is None else (~mask).long()
    before = state.get("position", real.new_zeros(len(x), 1))
    positions = before + real.cumsum(1) - 1
    after = {"position": positions[:, -1:] + 1}

    def convolved(name: str, y: Tensor, exact: str = "") -> Tensor:
        if name not in attention.convolutions:
            return y
        key = f"{name}.{exact}before"
        y, after[key] = attention.convolutions[name].following(y, state.get(key), Batch(mask))
        return y

    heads = tuple(
        attention._heads(convolved(name, attention._projected(name, x))) for name in PROJECTIONS
    )
    exact = attention._exactly(x, *heads[:2], lambda name, y: convolved(name, y, "exact."))
    reads = any(router.reads_heads for router in attention.routers)
    if attention.convolutions and reads and not is_exact(heads[0]):
        exact()
    outputs = []
    for i, router in enumerate(attention.routers):
        out, own = _read(
            attention, router, i, x, heads, exact, mask, positions, under(state, f"{i}.")
        )
        outputs.append(out)
        after |= {f"{i}.{name}": t for name, t in own.items()}
    return attention._merge(outputs), after


def _read(
    attention: MultiheadAttention,
    router: Kind,
    i: int,
    x: Tensor,
    heads: tuple[Tensor, Tensor, Tensor],
    exact: Callable[[], tuple[Tensor, Tensor]],
    padding_mask: Tensor | None,
    positions: Tensor,
    state: State,
) -> tuple[Tensor, State]:
    """The values that a kind's heads attend to [B, H, N, E], and its state behind all tokens."""
    q, few_k, few_v, of_kind = attention._few(router, i, heads, exact)
    tokens = Tokens(x, of_kind, Batch(padding_mask), lambda: positions, impl=attention.impl)
    assignment, routing = router.assign(tokens, under(state, "routing."))
    check_clusters(router, tokens, assignment)
    rounds = assignment.rounds()
    numbers = [probed[0] if keys is None else keys for probed, keys in rounds]
    in_one = x.new_zeros(len(x), 1, x.size(1), dtype=torch.long)
    numbers = [in_one if keys is None else keys for keys in numbers]
    if numbers[0].size(1) > few_k.size(1):
        few_k, few_v = (attention._share(i, attention._repeated(t)) for t in heads[1:])
    q, few_k, few_v = attention._placed(i, q, few_k, few_v, positions)
    kept = under(state, "kept.")
    of = summaries_of(router, assignment)
    biased = assignment.key_bias is not None or bool(router.gap and own_bias(router))
    biased = biased or of is not None
    parts, states = [], []
    for number, (probed, _) in enumerate(rounds):
        past = _past(kept, number, router.num_rings, few_k, numbers[number])
        k, v = (torch.cat(both, dim=2) for both in ((past.k, few_k), (past.v, few_v)))
        written = torch.cat([past.rings, numbers[number]], dim=-1)
        bias = assignment.key_bias
        if bias is not None:
            bias = torch.cat([past.bias, bias.to(k.dtype)], dim=-1)
        hidden = past.hidden
        if padding_mask is not None or bool(hidden.any()):
            mine = in_one[:, 0] > 0 if padding_mask is None else padding_mask
            hidden = torch.cat([hidden, mine], dim=-1)
        else:
            hidden = None
        parts += _attended(
            *(attention, router, q, k, v, hidden, probed, written, bias, assignment.latest),
            number,
            more=len(rounds) > 1 or of is not None,
        )
        states.append(
            filled(
                k,
                v,
                written,
                num_rings=router.num_rings,
                window=router.by_cluster,
                gap=router.gap,
                skips=router.drops,
                key_bias=bias,
                biased=biased,
                padding_mask=hidden,
            )
        )
    after = {f"routing.{name}": t for name, t in routing.items()}
    if of is not None:
        at = places(of, positions, len(x), padding_mask)
        sums, after["summaries"] = means(few_k, few_v, of, at, state.get("summaries"))
        values, lse = attend(q, sums, of, at)
        past = parts[0][0].size(2) - x.size(1)
        parts.append((pad(values, (0, 0, past, 0)), pad(lse, (past, 0), value=-torch.inf)))
    out = join(parts)[0][..., -x.size(1) :, : attention.head_dim].to(q.dtype)
    by_layout = ("kept", "ring", "seen", "near.ring")
    for name, t in states[0].items():
        t = torch.cat([each[name] for each in states], dim=2) if name in by_layout else t
        after[f"kept.{name}"] = t
    return out, after


def _attended(
    attention: MultiheadAttention,
    router: Kind,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hidden: Tensor | None,
    probed: tuple[Tensor | None, ...],
    written: Tensor,
    bias: Tensor | None,
    latest: Tensor | None,
    number: int,
    *,
    more: bool,
) -> list[tuple[Tensor, Tensor]]:
    """Parts of the attention of P + N tokens, of which the first P ask for nothing; more: there
    are others besides."""
    past, times = k.size(2) - q.size(2), q.size(1) // k.size(1)
    k, v = (t.repeat_interleave(times, dim=1) if times > 1 else t for t in (k, v))
    q = torch.cat([q.new_zeros(*q.shape[:2], past, q.size(-1)), q], dim=2)
    assignment, spare = Assignment(), router.num_rings
    if probed[0] is not None:
        nothing = written.new_full((*written.shape[:2], past), spare)
        first, *others = (torch.cat([nothing, queries], dim=-1) for queries in probed)
        assignment = Assignment(first, written, probes=tuple(others))
    tokens = Tokens(q[:, 0], lambda: (q, k), Batch(hidden), lambda: None, impl=attention.impl)
    layouts, near, own = recent(router, tokens, assignment, spare + 1)
    asks = torch.arange(q.size(2), device=q.device).view(1, 1, -1) >= past
    if latest is not None:
        most = pad(latest, (past, 0)).unsqueeze(1)
        layouts = [replace(one, lo=one.lo.maximum(one.hi - _at(most, one))) for one in layouts]
    if bias is not None:
        layouts = [replace(one, key_bias=bias) for one in layouts]
    if number:
        near, own = (), None
    parts = []
    if more or own is not None or len(layouts) + len(near) > 1:
        q, k, v = to_join(q, k, v)
    for one in (*layouts, *near):
        one = replace(one, hi=torch.where(_at(asks, one), one.hi, one.lo)) if past else one
        parts.append(ranged_attention(q, k, v, one, impl=attention.impl))
    if own is not None:
        parts.append(own_part(q, k, v, own, hidden, 0.0))
    return parts


def _at(of_token: Tensor, layout: Layout) -> Tensor:
    """Numbers of tokens [1 or B, 1, N], in the order of a layout's queries."""
    order = layout.query_order
    return of_token if order is None else of_token.expand_as(order).gather(-1, order)


class _Past(NamedTuple):
    """What one layout keeps, the oldest of each ring first.

    Attributes:
        k, v: [B, J, P, E].
        bias: [B, G, P].
        rings: the number of each key's, R: of none, int64 [B, G, P].
        hidden: slots without a key, bool [B, P]; others may lack one in some groups, of ring R.
    """

    k: Tensor
    v: Tensor
    bias: Tensor
    rings: Tensor
    hidden: Tensor


def _past(state: State, layout: int, num_rings: int, k: Tensor, written: Tensor) -> _Past:
    """What a state keeps of one layout.

    Args:
        state: of :class:`~fairseq_clusterformer.attention.rings.History`, ``Rings`` and ``Near``.
        layout: which one.
        num_rings: R.
        k, written: of the new tokens, for the sizes.
    """
    batch, groups, width = len(k), written.size(1), k.size(-1)
    if not state:
        entries = k.new_zeros(batch, groups, k.size(1) // groups, 0, 2 * width)
        rings = written[..., :0]
    elif "seen" in state:
        mine = slice(layout * num_rings, (layout + 1) * num_rings)
        seen, kept = state["seen"][:, :, mine], state["kept"][:, :, mine]
        window = kept.size(-2)
        place = torch.arange(window, device=k.device)
        turned = torch.where(seen >= window, seen % window, 0).unsqueeze(-1) + place
        turned = (turned % window)[:, :, :, None, :, None].expand_as(kept)
        entries = kept.gather(-2, turned).transpose(2, 3).flatten(3, 4)
        rings = torch.arange(num_rings, device=k.device).view(-1, 1).expand(*seen.shape, window)
        rings = rings.masked_fill(place >= seen.unsqueeze(-1), num_rings).flatten(2)
    else:
        steps, room = state["steps"].size(1), state["kept"].size(-2)
        entries = state["kept"][:, :, layout]
        if steps > room:  # the only ring, which has come round
            entries = entries.roll(-(steps % room), -2)
        entries = entries[..., : min(steps, room), :]
        shape = (batch, groups, entries.size(-2))
        rings = state["ring"][:, :, layout, : shape[-1]] if "ring" in state else None
        rings = written.new_zeros(shape) if rings is None else rings
    hidden = rings.eq(num_rings).all(1)
    if "near.seen" in state:
        near, seen = state["near.kept"], state["near.seen"].unsqueeze(-1)
        place = torch.arange(near.size(-2), device=k.device)
        order = (seen + place) % len(place)
        of_near = state["near.ring"][:, :, layout]
        of_near = of_near.gather(-1, order.unsqueeze(1).expand_as(of_near))
        near = near.gather(-2, order[:, None, None, :, None].expand_as(near))
        entries = torch.cat([entries, near], dim=-2)
        rings = torch.cat([rings, of_near], dim=-1)
        # the same for all layouts, which share what is near: no ring has a key until near is full
        missing = (len(place) - seen).clamp(min=0)
        hidden = torch.cat([(missing > 0).expand_as(hidden), place < missing], dim=-1)
    bias = entries.new_zeros(rings.shape)
    if entries.size(-1) > 2 * width:
        bias = entries[:, :, 0, :, width]
    entries = entries.flatten(1, 2)
    return _Past(entries[..., :width], entries[..., -width:], bias, rings, hidden)


def filled(
    k: Tensor,
    v: Tensor,
    written: Tensor,
    *,
    num_rings: int,
    window: int | None,
    gap: int = 0,
    skips: bool = False,
    key_bias: Tensor | None = None,
    biased: bool = False,
    padding_mask: Tensor | None = None,
) -> State:
    """What is kept of N tokens, before which there are no others.

    Args:
        k, v: [B, J, N, E].
        written: the ring that each key is stored in, R: in none, int64 [B, G, N].
        num_rings, window, gap, skips: as of
            :func:`~fairseq_clusterformer.attention.rings.attend_step`.
        key_bias: as of ``attend_step``, [B, G, N].
        biased: a bias is kept with each key, also where there is none.
        padding_mask: bool [B, N].
    """
    batch, _, length, _ = k.shape
    numbers = written.unsqueeze(2)  # [B, G, L, N] of one layout
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
    if num_rings == 1 and hidden is None and not skips:  # a history, which comes round
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
