"""The rules of visibility, and windows, as layouts. Shape letters: M key slots, C chunk."""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..kernels import Layout, Listed, sort_by_cluster
from .tokens import Batch, for_each


def window_layouts(
    length: int, window: int | None, *, causal: bool, batch: Batch, device: torch.device
) -> tuple[Layout, ...]:
    """Identity order: each query sees the last W tokens, its own included; not causal: W tokens on
    either side and its own; None: all (full attention). Distances count real tokens of the
    document, and no document sees another."""

    def make() -> tuple[Layout, ...]:
        if not batch.is_plain:
            told = batch.documents if batch.padding_mask is None else batch.padding_mask
            alike = torch.zeros_like(told, dtype=torch.long).unsqueeze(1)
            return recent_layouts(alike, 1, window, causal=causal, batch=batch)
        slot = torch.arange(length, device=device).view(1, 1, length)
        reach = length if window is None else window
        hi = slot + 1 if causal else (slot + reach + 1).clamp(max=length)
        return (Layout((slot - reach + causal).clamp(min=0), hi),)

    return batch.cached(("window", window, causal), make)


def recent_layouts(
    clusters: Tensor,
    num_clusters: int,
    window: int | None,
    *,
    causal: bool,
    gap: int = 0,
    batch: Batch,
    key_clusters: Tensor | None = None,
    rounds: int = 1,
) -> tuple[Layout, ...]:
    """Recent rule: a query sees the W latest keys of its cluster up to its own position. Strictly
    causal if the clusters are: the rank of a key within its cluster counts earlier tokens only.
    Padding is not seen, nor is another document.

    Args:
        clusters: cluster of each query, int64 [B, G, N] in [0, K).
        num_clusters: K.
        window: W; None: the whole cluster. Not causal: W keys on either side of the query's
            place among the keys of its cluster, and what stands at that place.
        gap: keys nearer than that are not seen; 0: all are, the query's own included.
        key_clusters: cluster of each key if keys are clustered apart from queries; its groups
            repeat for as many as the queries have.
        rounds: of the clusters of each query, one behind another in G.

    Returns a layout of each round; not causal, with a gap: of what is before, then of the rest.
    """
    padding_mask, length = batch.padding_mask, clusters.size(-1)
    query_order, key_code = _sort_by_cluster(clusters, num_clusters, padding_mask)
    key_order = query_order
    if key_clusters is not None:
        keys = _sort_by_cluster(key_clusters, num_clusters, padding_mask)
        times = clusters.size(1) // key_clusters.size(1)
        key_order, key_code = (t.repeat(1, times, 1) for t in keys)
    first = clusters.gather(-1, query_order) * length

    # Slots are sorted by code = cluster * N + position: a cluster's first slot, the slot after its
    # last, and the number of its keys up to a position are all found by bisection.
    def slots_below(place: Tensor | int) -> Tensor:
        if isinstance(place, Tensor):  # of each token
            place = place.unsqueeze(1).expand_as(query_order).gather(-1, query_order)
        return torch.searchsorted(key_code, (first + place).contiguous())

    def layouts(lo: Tensor, hi: Tensor) -> tuple[Layout, ...]:
        parts = (x.chunk(rounds, dim=1) for x in (lo, hi, query_order, key_order))
        return tuple(_but_padding(Layout(*x), padding_mask) for x in zip(*parts, strict=True))

    begin, until, since, end = _places(key_order, gap, batch)
    begin, up_to = slots_below(begin), slots_below(until)
    reach = length if window is None else window
    before = layouts(torch.maximum(begin, up_to - reach), up_to)
    if causal:
        return before
    end = slots_below(end)
    if gap == 0:
        return layouts(torch.maximum(begin, up_to - 1 - reach), torch.minimum(end, up_to + reach))
    after = slots_below(since)
    return before + layouts(after, torch.minimum(end, after + reach))


def listed(
    queries: Tensor, keys: Tensor, num_clusters: int, *, causal: bool, gap: int, batch: Batch
) -> Listed:
    """Whole clusters by the recent rule, from which an index chooses; the gap is 1 or more.
    ``queries``: the R clusters that each of the last N tokens looks into, int64 [B, 1 or H, N, R];
    K + 1 has no keys. ``keys``: the cluster of each token, int64 [B, G, M]; K: none."""
    past, nowhere = keys.size(-1) - queries.size(2), num_clusters + 1
    if (mask := batch.padding_mask) is not None:
        queries = queries.masked_fill(mask[:, None, past:, None], nowhere)
        keys = keys.masked_fill(mask.unsqueeze(1), num_clusters)

    def layouts(queries: Tensor) -> tuple[Layout, ...]:
        queries = pad(queries, (0, 0, past, 0), value=nowhere) if past else queries
        each, how = queries.movedim(-1, 1).flatten(1, 2), {"causal": causal, "gap": gap}
        how |= {"key_clusters": for_each(queries, keys), "rounds": queries.size(-1)}
        return recent_layouts(each, num_clusters + 2, None, batch=batch, **how)

    places = [keys.new_zeros(1, 1) + place for place in _places(keys, gap, batch)]
    places = torch.stack(torch.broadcast_tensors(*places[: 2 if causal else 4]), dim=1)
    return Listed(queries, keys, num_clusters, places[..., past:], layouts)


def _places(like: Tensor, gap: int, batch: Batch) -> tuple[Tensor | int, ...]:
    """Of each token, int64 [1 or B, N], or of all: where its document begins; one past the last
    token that is ``gap`` real ones before it (by 0, itself); the first that is so far behind it;
    where its document ends."""
    mask, documents, length = batch.padding_mask, batch.documents, like.size(-1)

    def tokens_on(number: int) -> Tensor:
        if mask is None or number in (0, 1):  # itself, or the next: padding between is not seen
            return (torch.arange(length, device=like.device) + number).clamp(0, length).view(1, -1)
        real = ~mask
        rank = real.cumsum(1) - 1 + number
        place = batch.real_first.gather(1, rank.clamp(0, length - 1)).masked_fill(rank < 0, 0)
        return place.masked_fill(rank >= real.sum(1, keepdim=True), length)

    until, since = tokens_on(1 - gap), tokens_on(gap)
    if documents is None:
        return 0, until, since, length
    documents = documents.contiguous()
    begin, end = (torch.searchsorted(documents, documents, right=x) for x in (False, True))
    return begin, until.maximum(begin), since.minimum(end), end


def sink_layout(positions: Tensor, number: int, *, itself: bool, batch: Batch) -> Layout:
    """Each query sees so many first tokens of its document that stand before it; a query that is
    one of them may see itself, too; padding is not seen. Positions are int64 [1 or B, N]."""
    order = None
    if batch.padding_mask is not None:
        order = batch.real_first.unsqueeze(1)
        positions = positions.gather(1, batch.real_first)
    slot = torch.arange(positions.size(-1), device=positions.device)
    lo = (slot - positions).unsqueeze(1)  # where the document begins
    hi = (lo + number).minimum(slot + itself)
    return _but_padding(Layout(lo, hi, order, order), batch.padding_mask)


def blinded(layouts: Iterable[Layout], queries: Tensor) -> list[Layout]:
    """The layouts, in which some queries see nothing, bool [B or 1, 1 or H, N]."""
    found = []
    for layout in layouts:
        hidden, order = queries, layout.query_order
        if order is not None:
            hidden, order = torch.broadcast_tensors(queries, order)
            hidden = hidden.gather(-1, order)
        found.append(replace(layout, hi=torch.where(hidden, layout.lo, layout.hi)))
    return found


def without_own(layout: Layout) -> tuple[Layout, Layout]:
    """What a layout shows before and after each query's own key; queries and keys in one order,
    which a repeated chunk may precede."""
    length = layout.lo.size(-1)
    own = torch.arange(length, device=layout.lo.device)
    if layout.num_keys is not None:
        queries = length if layout.num_queries is None else layout.num_queries
        own = own + (layout.num_keys - queries).unsqueeze(-1)
    before = replace(layout, hi=torch.minimum(layout.hi, own))
    return before, replace(layout, lo=torch.minimum(own + 1, layout.hi))


def chunk_layout(
    clusters: Tensor,
    num_clusters: int,
    *,
    earlier_only: bool = False,
    padding_mask: Tensor | None = None,
) -> Layout:
    """Chunk rule (CF22 eq. 5 and 8-10): tokens sorted by cluster, int64 [B, G, N] in [0, K), cut
    into K equal chunks. A query sees its own chunk of C = ceil(n / K) slots and the one before;
    before the first stands the last (the ring that CF22 eq. 11 closes). n is the row's own number
    of real tokens, so a row is cut alike alone and in any batch. ``earlier_only``: CF22 eq. 13 on
    top, not causal: where chunks begin depends on the future. ``padding_mask``: bool [B, N]."""
    order, _ = _sort_by_cluster(clusters, num_clusters, padding_mask)
    length, real = clusters.size(-1), _real(order, padding_mask)
    chunk = (-(-real // num_clusters)).clamp(min=1)
    num_chunks = -(-real // chunk)
    # Slots of the last chunk, repeated in front of the first unless it is the first.
    last = torch.where(num_chunks > 1, real - (num_chunks - 1) * chunk, 0)
    real, chunk, last = (t.unsqueeze(-1) for t in (real, chunk, last))

    num_slots = length + -(-length // num_clusters)
    slot = torch.arange(num_slots, device=order.device)
    source = torch.where(slot < last, real - last + slot, slot - last)
    key_order = order.gather(-1, source.clamp(min=0, max=length - 1))

    index = slot[:length] // chunk
    lo = torch.where(index > 0, last + (index - 1) * chunk, 0)
    hi = torch.minimum(last + (index + 1) * chunk, last + real)
    how = {"earlier_only": earlier_only, "num_keys": (real + last).squeeze(-1)}
    layout = Layout(lo, hi, order, key_order, **how)
    return _but_padding(layout, padding_mask)


def own_chunk_layout(
    clusters: Tensor, num_clusters: int, chunk: int, *, padding_mask: Tensor | None = None
) -> Layout:
    """Chunk rule of CF20 (eq. 6 and 7): tokens sorted by cluster, cut into chunks of C slots, and
    what is left over; a query sees its own chunk. Arguments as of :func:`chunk_layout`."""
    order, _ = _sort_by_cluster(clusters, num_clusters, padding_mask)
    slot = torch.arange(order.size(-1), device=order.device).expand_as(order)
    real = _real(order, padding_mask).unsqueeze(-1)
    lo = slot - slot % chunk
    layout = Layout(lo, torch.minimum(lo + chunk, real), order, order)
    return _but_padding(layout, padding_mask)


def top_layout(
    clusters: Tensor, similarity: Tensor, *, padding_mask: Tensor | None = None
) -> Layout:
    """Top rule (Routing Transformer): a query sees the 2 ceil(n / K) keys that are most similar to
    the centroid of its cluster, wherever they stand; n is the row's number of real tokens. Of each
    query's nearest cluster [B, G, N], and similarities of keys and centroids [B, G, N, K].

    In the paper they are n / K: twice as many are what a query sees by the chunk rule with as many
    clusters. There a cluster has its most similar queries as well: some are in several clusters,
    some in none. Here every query is in its nearest cluster alone, and so is never without keys.
    """
    length, num_clusters = similarity.shape[-2:]
    order, _ = _sort_by_cluster(clusters, num_clusters, padding_mask)
    real = _real(order, padding_mask)
    if padding_mask is not None:
        similarity = similarity.masked_fill(padding_mask[:, None, :, None], -torch.inf)
    count = torch.minimum(-(-real // num_clusters) * 2, real).unsqueeze(-1)
    most = min(2 * -(-length // num_clusters), length)
    top = similarity.transpose(-1, -2).topk(most, dim=-1).indices.flatten(-2)

    # One slot too many where N would do: tokens may stand in several of them, or in none.
    slot = torch.arange(max(num_clusters * most, length + 1), device=order.device)
    cluster, place = slot // count.clamp(min=1), slot % count.clamp(min=1)
    source = cluster.clamp(max=num_clusters - 1) * most + place
    lo = clusters.gather(-1, order) * count
    key_order, num_keys = top.gather(-1, source), num_clusters * count.squeeze(-1)
    layout = Layout(lo, lo + count, order, key_order, num_keys=num_keys)
    return _but_padding(layout, padding_mask)


def _sort_by_cluster(
    clusters: Tensor, num_clusters: int, padding_mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Tokens by cluster, then position, padding last: (order, sorted codes), each [B, G, N]."""
    if padding_mask is not None:
        clusters = clusters.masked_fill(padding_mask.unsqueeze(1), num_clusters)
    return sort_by_cluster(clusters.contiguous(), num_clusters + 1)


def _real(order: Tensor, padding_mask: Tensor | None) -> Tensor:
    """n: real tokens of each row of an order [B, G, N], int64 [B, G]."""
    if padding_mask is None:
        return torch.full(order.shape[:-1], order.size(-1), device=order.device)
    return (~padding_mask).sum(-1, keepdim=True).expand(order.shape[:-1])


def _but_padding(layout: Layout, padding_mask: Tensor | None) -> Layout:
    """A layout of slots of which padding has the last."""
    if padding_mask is None:
        return layout
    real = _real(layout.query_order, padding_mask)
    empty = torch.arange(layout.lo.size(-1), device=real.device) >= real.unsqueeze(-1)
    lo, hi = (bound.masked_fill(empty, 0) for bound in (layout.lo, layout.hi))
    num_keys = real if layout.num_keys is None else layout.num_keys
    return replace(layout, lo=lo, hi=hi, num_queries=real, num_keys=num_keys)
