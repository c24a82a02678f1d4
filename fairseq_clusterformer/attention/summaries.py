"""Summaries: each cluster that a query does not look into, as one key.

Of the n keys of a cluster, a query sees their mean with the logit ``q . mean_k / sqrt(E) + log n``
and the value ``mean_v``, in one softmax with all else that it sees: what dense attention would
give if the keys were alike. So something of every key stays in sight, at linear cost, and of keys
that a full ring has dropped, too, for all queries but those of its own cluster. (NSA, Yuan et al.
2025, and RetroInfer, Chen et al. 2025, attend to blocks and clusters alike.)

Causal: a text is cut into chunks of S tokens. The queries of a chunk see means of the keys that
are ``gap`` tokens or more before its begin: no key counts both here and in a near window. What
decoding keeps are sums, of a fixed size. Not causal: means of all keys of a row but the query's
own, which it sees besides.

Shape letters: B batch, H heads, N tokens, E head width, K clusters, M chunks, S tokens of a chunk,
C = 2 E + 1 numbers of a sum: of keys, of values, and how many there are.
"""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import dropout as dropped
from torch.nn.functional import pad

from ..precision import at_least_float32, full_float32
from .assignment import Assignment, Seeing


class Summaries(NamedTuple):
    """Whose means are seen.

    Attributes:
        looked_into: clusters of which a query sees keys, and no mean, int64 [B, H, N] each.
        keys: the cluster of each key, int64 [B, H, N].
        clusters: K.
        every: S; None: not causal.
        gap: tokens between a chunk and the keys that it sees means of, and one more.
    """

    looked_into: tuple[Tensor, ...]
    keys: Tensor
    clusters: int
    every: int | None
    gap: int


def summaries_of(kind: Seeing, assignment: Assignment) -> Summaries | None:
    """What a kind with the option ``summaries`` shows of the clusters that it assigned."""
    every = getattr(kind.options, "summaries", 0)
    if not every:
        return None
    ((probed, keys),) = assignment.rounds()
    keys = probed[0] if keys is None else keys
    chunk = every if kind.causal else None
    return Summaries(probed, keys, kind.num_clusters, chunk, max(kind.gap, 1))


class Places(NamedTuple):
    """Where tokens stand in the chunks of their text; a row may begin within one, its first.

    Attributes:
        slot: of each token, counted from the begin of the first chunk, int64 [B, N].
        since: from which chunk on its key is in the means, counted from the first, int64 [B, N].
        end: the chunk of the token that will follow, counted likewise, int64 [B].
        chunks: M, of the longest row.
        later: the most chunks from that of a token to that which sees its key.
    """

    slot: Tensor
    since: Tensor
    end: Tensor
    chunks: int
    later: int


def places(
    s: Summaries, positions: Tensor, batch: int, padding_mask: Tensor | None = None
) -> Places:
    """Where tokens at these positions of their texts, int64 [1 or B, N], stand; padding, bool
    [B, N], gets a slot and a chunk behind all others."""
    positions, length = positions.expand(batch, -1), positions.size(1)
    if s.every is None:
        slot = torch.arange(length, device=positions.device).expand(batch, -1)
        since, end = torch.zeros_like(slot), slot.new_zeros(batch)
        found = Places(slot, since, end, chunks=1, later=0)
    else:
        first, number = positions[:, :1], length
        if padding_mask is not None:
            number = (~padding_mask).sum(1, keepdim=True)
            far = torch.iinfo(positions.dtype).max
            first = positions.masked_fill(padding_mask, far).amin(1, keepdim=True)
            first = first.masked_fill(number == 0, 0)
        chunk = first // s.every
        found = Places(
            slot=positions - chunk * s.every,
            since=(positions + s.gap + s.every - 1) // s.every - chunk,
            end=((first + number) // s.every - chunk).squeeze(1),
            chunks=(length + s.every - 2) // s.every + 1,
            later=(2 * s.every - 2 + s.gap) // s.every,
        )
    if padding_mask is None:
        return found
    slots = found.chunks * (length if s.every is None else s.every)
    return found._replace(
        slot=found.slot.masked_fill(padding_mask, slots),
        since=found.since.masked_fill(padding_mask, found.chunks + found.later + 1),
    )


@full_float32()
def means(
    k: Tensor, v: Tensor, s: Summaries, at: Places, before: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sums of keys and values by cluster, as the queries of each chunk see them.

    Args:
        k, v: [B, H, N, E].
        before: of the tokens before: the second result for them.

    Returns:
        Sums of each chunk, at least float32 [B, H, M, K, C]; and, for the next tokens, those that
        their chunk sees, and what comes to them in each of the chunks behind it.
    """
    number = at.chunks + at.later + 1
    entries = at_least_float32(torch.cat([k, v, torch.ones_like(k[..., :1])], dim=-1))
    place = (at.since.unsqueeze(1) * s.clusters + s.keys).clamp(max=number * s.clusters)
    place = place.unsqueeze(-1).expand_as(entries)
    sums = entries.new_zeros(*k.shape[:2], number * s.clusters + 1, entries.size(-1))
    sums = sums.scatter_add(2, place, entries)[:, :, :-1].unflatten(2, (number, s.clusters))
    if before is not None:
        sums = sums + pad(before, (0, 0, 0, 0, 0, number - before.size(2)))
    seen = sums.cumsum(2)
    end = at.end.view(-1, 1, 1, 1, 1)
    behind = end + torch.arange(1, at.later + 1, device=k.device).view(-1, 1, 1)
    now, coming = (
        x.gather(2, index.expand(-1, k.size(1), -1, *sums.shape[3:]))
        for x, index in ((seen, end), (sums, behind))
    )
    return seen[:, :, : at.chunks], torch.cat([now, coming], dim=2)


def _means(sums: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean keys and values [..., K, E], the log of how many keys there are, and where there are
    none [..., K]."""
    number = sums[..., -1]
    k, v = (sums[..., :-1] / number.clamp(min=1).unsqueeze(-1)).chunk(2, dim=-1)
    return k, v, number.clamp(min=1).log(), number == 0


def _of_cluster(x: Tensor, cluster: Tensor) -> Tensor:
    """Of numbers of clusters [B, H, M, K, C], those of each slot's, [B, H, M, S, C]."""
    return x.gather(3, cluster.unsqueeze(-1).expand(*cluster.shape, x.size(-1)))


def as_entries(sums: Tensor, s: Summaries) -> tuple[Tensor, Tensor]:
    """What one token sees of the means [B, H, K, C]: keys, biases and values side by side, [B * H,
    K, C], and which are not seen, bool [B, H, 1, K]."""
    k, v, bias, hidden = _means(sums)
    for clusters in s.looked_into:
        hidden = hidden.scatter(-1, clusters.expand(*hidden.shape[:2], 1), True)
    return torch.cat([k, bias.unsqueeze(-1), v], dim=-1).flatten(0, 1), hidden.unsqueeze(2)


@full_float32()
def attend(
    q: Tensor,
    sums: Tensor,
    s: Summaries,
    at: Places,
    dropout: float = 0.0,
    own: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """What queries see of the means of their chunks.

    Args:
        q: [B, H, N, E].
        sums: of each chunk [B, H, M, K, C].
        own: keys and values of the tokens [B, H, N, E]: each query's own is taken out of the mean
            that it sees of its key's cluster; not causal.

    Returns:
        Values [B, H, N, E] in the queries' dtype, and the log-sum-exp [B, H, N].
    """
    room = q.size(2) if s.every is None else s.every
    slot = at.slot.unsqueeze(1)

    def by_chunk(x: Tensor) -> Tensor:
        into = slot.view(*slot.shape, *(1,) * (x.dim() - 3)).expand_as(x)
        slots = x.new_zeros(*x.shape[:2], at.chunks * room + 1, *x.shape[3:])
        return slots.scatter(2, into, x)[:, :, :-1].unflatten(2, (at.chunks, room))

    k, v, bias, none = _means(sums)
    scale = q.size(-1) ** -0.5
    in_chunks = by_chunk(at_least_float32(q))
    logits = in_chunks @ (k.mT * scale) + bias.unsqueeze(-2)
    hidden = none.unsqueeze(-2).expand_as(logits).clone()
    if own is not None:
        cluster = by_chunk(s.keys.expand(q.shape[:3]))
        own_k, own_v = (by_chunk(at_least_float32(t)) for t in own)
        of_own = partial(_of_cluster, cluster=cluster)
        number = of_own(sums[..., -1:]) - 1  # of the others
        rest = number.clamp(min=1)
        without = (in_chunks * (of_own(sums[..., : k.size(-1)]) - own_k)).sum(-1, keepdim=True)
        logits = logits.scatter(-1, cluster.unsqueeze(-1), without * scale / rest + rest.log())
        hidden.scatter_(-1, cluster.unsqueeze(-1), number < 1)
    for clusters in s.looked_into:
        hidden.scatter_(-1, by_chunk(clusters.expand(q.shape[:3])).unsqueeze(-1), True)
    least = torch.finfo(logits.dtype).min / 2  # of -inf alone, a gradient would be NaN
    logits = logits.masked_fill(hidden, least)
    weights = dropped(logits.softmax(-1), dropout)
    out = weights @ v
    if own is not None:
        weight = weights.gather(-1, cluster.unsqueeze(-1))
        out = out + weight * (of_own(v) - own_v) / rest
    lse = logits.logsumexp(-1)
    found = torch.cat([out, lse.unsqueeze(-1)], dim=-1).flatten(2, 3)
    slot = slot.clamp(max=at.chunks * room - 1).unsqueeze(-1)
    found = found.gather(2, slot.expand(*q.shape[:3], found.size(-1)))
    return found[..., :-1].to(q.dtype), found[..., -1]
