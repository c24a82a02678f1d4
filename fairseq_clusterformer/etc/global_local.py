"""ETC's attention (Ainslie et al. 2020, section 3): a long input, and global tokens that stand for
its parts.

Each stream has one softmax: a global token attends to global tokens (g2g) and to the long input
(g2l), a long one to global tokens (l2g) and to the long tokens nearby (l2l). The logit of a pair
whose label is c is ``(q . (k + a_c) + b_c) / sqrt(E)``; the bias is in the authors' code alone.
Labels say how far apart two tokens of a stream are, and whether a global token stands for a long
one. Most labels are constant over a range of keys: a kernel attends to the range, and what the
label adds to a query's logits is added to the log-sum-exp of that part before parts are joined.
This is exact, and linear in N. Only the 2k - 1 nearest keys have a label each.

Shape letters: B batch, G global tokens, N long tokens, M = G + N, D width, H heads, E head width,
P global tokens that stand for one long token, L labels, k the largest distance.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear, pad

from fairseq_clusterformer.kernels import Layout, join, ranged_attention
from fairseq_clusterformer.precision import at_least_float32, full_float32

NUM_LABELS = 32  # the authors' vocabulary; with k = 12, 28 of them are used
#: the streams that have queries and outputs of their own, and what has keys and values of its own
PROJECTIONS = {
    "separate": ("gl", ("g2g", "g2l", "l2g", "l2l")),
    "shared-kv": ("gl", ("g2x", "l2x")),  # by the query's stream, as the authors have it
    "shared": ("g", "g"),
}
_BLOCK = 16  # queries whose nearest keys are looked at together
_PADDING = torch.iinfo(torch.int64).max  # the number of its example: behind all others


class Labels:
    """Numbers of labels (the authors' code), where distances from ``most`` = k on are one."""

    def __init__(self, most: int):
        self.most = most
        self.others, self.mine, self.other_paragraph = (2 * most + i for i in (1, 2, 3))
        self.same_cluster = 2 * most + 4  # ours

    def of_distance(self, distance: Tensor) -> Tensor:
        """0 for the token itself, 1 to k to the right, k + 1 to 2k to the left; int64."""
        clipped = distance.clamp(-self.most, self.most)
        return torch.where(clipped < 0, self.most - clipped, clipped)


@dataclass(eq=False)
class Structure:
    """Which global tokens stand for which part of the long input."""

    #: the long tokens that each global token stands for, from the first to one past the last,
    #: int64 [B, G, 2]; equal where there are none. Those of different global tokens may overlap.
    spans: Tensor
    length: int  # N
    #: what global tokens are linked to besides, such as mentions of a name, int64 [B, K, 3]: the
    #: global token, and long tokens from the first to one past the last; equal: no more. Such
    #: pairs have the label of a span, but hard attention does not see them for it (authors' code).
    links: Tensor | None = None
    #: bool [B, N] and [B, G], True for padding, which stands behind; None: there is none
    long_padding: Tensor | None = None
    global_padding: Tensor | None = None
    #: int64 [B, N] and [B, G], never falling, of examples that are packed into one row and do not
    #: see each other; both None: each row is one
    long_examples: Tensor | None = None
    global_examples: Tensor | None = None
    #: global tokens that see the long input of their example even where g2l is hard, bool [B, G]
    exempt: Tensor | None = None
    #: of global tokens, int64 [B, G]: those of two paragraphs have a label of their own, not that
    #: of a distance
    paragraphs: Tensor | None = None
    #: of long tokens, int64 [B, N], never falling: those of two do not see each other (l2l)
    long_paragraphs: Tensor | None = None
    #: the long token at each place that ``spans`` are of, int64 [B, N], those of an example at its
    #: own places; None: long tokens stand at their own places
    order: Tensor | None = None
    #: what ``order`` is sorted by, int64 [B, N], G for padding; see :meth:`clustered`
    clusters: Tensor | None = None
    #: what all layers need, by how it is computed
    _kept: dict = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self):
        """Raises ValueError for numbers that fall, and for places outside."""
        number, links = self.spans.size(1), self.links
        ends = [("spans", self.spans, self.length)]
        if links is not None:
            ends += [("links", links[..., :1] + 1, number), ("links", links[..., 1:], self.length)]
        for name, places, most in ends:
            if places.numel() and not 0 <= int(places.min()) <= int(places.max()) <= most:
                what = f"{name} reach from {int(places.min())} to {int(places.max())}"
                raise ValueError(
                    f"{what}; allowed: within {self.length} long and {number} global tokens"
                )
        for name in ("long_examples", "global_examples", "long_paragraphs"):
            numbers = getattr(self, name)
            if numbers is None:
                continue
            if name != "long_paragraphs":
                numbers = self._long if name == "long_examples" else self._global
            rows = (numbers[:, 1:] < numbers[:, :-1]).any(1).nonzero()
            if len(rows):
                row = getattr(self, name)[int(rows[0])].tolist()
                raise ValueError(f"{name} are {row[:100]}; allowed: numbers that never fall")

    def clustered(self, clusters: Tensor) -> "Structure":
        """The same rows, where global tokens stand for clusters: of each long token the number of
        its global token, int64 [B, N]; anything for padding."""
        number = self.spans.size(1)
        if self.long_padding is not None:
            clusters = clusters.masked_fill(self.long_padding, number)
        sorted_, order = clusters.sort(dim=-1, stable=True)
        ends = torch.arange(number + 1, device=order.device).expand(len(order), -1).contiguous()
        bounds = torch.searchsorted(sorted_, ends)  # where each cluster begins
        spans = torch.stack([bounds[:, :-1], bounds[:, 1:]], dim=-1)
        return replace(self, spans=spans, order=order, clusters=sorted_)

    def members(self, begin: Tensor, end: Tensor, most: int) -> Iterator[tuple[Tensor, Tensor]]:
        """For the long token at each place of ``order``, up to ``most`` of its cluster before
        ``begin``, and as many from ``end`` on, both int64 [B, N] at the tokens' own places: the
        first place and one past the last, [B, N]."""
        clusters, order = self.clusters, self.order
        ranked = clusters * self.length + order  # rises: clusters are sorted, and so are members
        first = clusters * self.length
        before, behind = (
            torch.searchsorted(ranked, first + bound.gather(1, order)) for bound in (begin, end)
        )
        low = torch.searchsorted(clusters, clusters)
        high = torch.searchsorted(clusters, clusters, right=True)
        real = clusters < self.spans.size(1)
        yield torch.maximum(low, before - most).where(real, before), before
        yield behind, torch.minimum(high, behind + most).where(real, behind)

    @cached_property
    def local_bounds(self) -> tuple[Tensor, Tensor]:
        """Where the long input that each long token may see begins and ends, [B, N]: that of its
        example, and of its paragraph."""
        low, high = _bounds(self._long, self._long)
        if self.long_paragraphs is None:
            return low, high
        begin, end = _bounds(self.long_paragraphs, self.long_paragraphs)
        return torch.maximum(low, begin), torch.minimum(high, end)

    @cached_property
    def bounds_of_global(self) -> tuple[Tensor, Tensor]:
        """Where the long input of each global token's example begins and ends, [B, G]."""
        return _bounds(self._global, self._long)

    @cached_property
    def global_bounds(self) -> tuple[Tensor, Tensor]:
        """Where the global tokens of each long token's example begin and end, [B, N]."""
        return _bounds(self._long, self._global)

    def _once(self, name: str, how: bool, compute: Callable) -> Any:
        if (name, how) not in self._kept:
            self._kept[name, how] = compute(how)
        return self._kept[name, how]

    def seen_by_long(self, *, hard: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What long tokens see of the global ones, as :meth:`seen` says it of global tokens: with
        ``hard`` alone those whose span has the token. As many ranges as there are pairs of a part
        and a token of it, and one or two for each token."""
        return self._once("seen by long", hard, self._seen_by_long)

    def _seen_by_long(self, hard: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        owner, _, begin, end = self._apart(None if hard else self.links)
        rows, parts = owner.shape
        size, of_row = (end - begin).flatten(), rows * self.length
        of = torch.repeat_interleave(size)  # the part of each pair of a part and a token of it
        place = (
            torch.arange(len(of), device=of.device) - (size.cumsum(0) - size - begin.flatten())[of]
        )
        row = of // max(parts, 1)
        if self.order is not None:
            place = self.order[row, place]
        low, high = (bound.flatten() for bound in self.global_bounds)
        # behind the pairs of each token, one with the end of what it sees
        token = torch.cat([row * self.length + place, torch.arange(of_row, device=of.device)])
        mine = torch.cat([owner.flatten()[of], high])
        order = (token * (self.spans.size(1) + 1) + mine).argsort()
        token, mine, is_pair = token[order], mine[order], order < len(of)
        is_first = torch.ones_like(is_pair)
        is_first[1:] = token[1:] != token[:-1]
        gap = torch.where(is_first, low[token], mine.roll(1) + 1)
        ranges = [(token, mine, mine + is_pair, torch.ones_like(is_pair))]
        if not hard:
            ranges = [(x[is_pair] for x in ranges[0]), (token, gap, mine, ~ranges[0][3])]
        token, begin, end, mine = (torch.cat(x) for x in zip(*ranges, strict=True))
        # each row's ranges side by side, with empty ones behind
        token, order = token.sort()
        row = token // max(self.length, 1)
        count = row.bincount(minlength=rows)
        slot = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]
        most = int(count.max()) if count.numel() else 0

        def by_row(x: Tensor) -> Tensor:
            return x.new_zeros(rows, most).index_put_((row, slot), x)

        found = (x[order] for x in (begin, end, mine))
        return by_row(token % max(self.length, 1)), *map(by_row, found)

    def seen(self, *, hard: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What global tokens see of the long input, as R ranges that lie apart, [B, R] each: the
        global token, the first place and one past the last, and whether the token stands for it or
        is linked to it; with ``hard`` alone their spans, and all of those that are exempt."""
        return self._once("seen", hard, self._seen)

    def _seen(self, hard: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if hard and self.exempt is None:
            owner, _, begin, end = self._apart(None)
            return owner, begin, end, torch.ones_like(owner, dtype=torch.bool)
        links, exempt = self.links, self.exempt
        if hard and links is not None:
            token, begin, end = links.unbind(-1)
            end = torch.where(exempt.gather(1, token), end, begin)
            links = torch.stack([token, begin, end], -1)
        owner, gap, begin, end = self._apart(links, behind=True)
        if hard:
            gap = torch.where(exempt.gather(1, owner), gap, begin)
        mine = torch.ones_like(owner, dtype=torch.bool)
        pairs = ((owner, owner), (gap, begin), (begin, end), (~mine, mine))
        return tuple(torch.cat(pair, 1) for pair in pairs)

    def _apart(
        self, links: Tensor | None, *, behind: bool = False
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Spans and links within their examples, in the order of global tokens and without what
        one before has, [B, R] each: the global token, where the gap in front begins, the first
        place and one past the last. With ``behind``, each global token has an empty one last."""
        low, high = self.bounds_of_global
        every = torch.arange(low.size(1), device=low.device).expand_as(low)
        parts = [(every, *self.spans.unbind(-1))]
        parts += [] if links is None else [links.unbind(-1)]
        parts += [(every, high, high)] if behind else []
        owner, begin, end = (torch.cat(each, 1) for each in zip(*parts, strict=True))
        # places of one global token behind those of the one before, for one sort and one cummax
        shift = owner * (self.length + 1)
        low, high = (bound.gather(1, owner) + shift for bound in (low, high))
        begin = torch.minimum(torch.maximum(begin + shift, low), high)
        end = torch.maximum(torch.minimum(end + shift, high), begin)
        begin, order = begin.sort(dim=1, stable=True)
        owner, low, shift, end = (x.gather(1, order) for x in (owner, low, shift, end))
        reached = end.cummax(1)[0]
        gap = torch.maximum(low, torch.cat([low[:, :1], reached[:, :-1]], 1))
        begin = torch.maximum(begin, gap)
        end = torch.maximum(begin, end)
        return owner, gap - shift, begin - shift, end - shift

    @cached_property
    def global_pairs(self) -> Tensor:
        """Which global tokens see which, bool [B, G, G]."""
        same = self._global.unsqueeze(2) == self._global.unsqueeze(1)
        return same & (self._global < _PADDING).unsqueeze(1)

    @cached_property
    def _long(self) -> Tensor:
        return self._numbered(self.long_examples, self.long_padding, self.length)

    @cached_property
    def _global(self) -> Tensor:
        return self._numbered(self.global_examples, self.global_padding, self.spans.size(1))

    def _numbered(self, examples: Tensor | None, padding: Tensor | None, length: int) -> Tensor:
        """Examples of tokens, int64, with padding as the last one."""
        if examples is None:
            examples = self.spans.new_zeros(len(self.spans), length)
        return examples if padding is None else examples.masked_fill(padding, _PADDING)


def _bounds(tokens: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """The first of the others of each token's example, one past the last; equal for padding."""
    tokens, others = tokens.contiguous(), others.contiguous()
    begin = torch.searchsorted(others, tokens)
    end = torch.searchsorted(others, tokens, right=True)
    return begin, torch.where(tokens < _PADDING, end, begin)


class _Projected(NamedTuple):
    """Queries [B, H, G or N, E] of one softmax, its keys and values [B, H, M, E], global tokens
    before long ones; and what each label adds to a query's logits, [B, H, G or N, L]."""

    q: Tensor
    k: Tensor
    v: Tensor
    added: Tensor


#: attended values and their log-sum-exp, of one part of the keys
Part = tuple[Tensor, Tensor]


class GlobalLocalAttention(nn.Module):
    """Attention of both streams.

    Args:
        embed_dim, num_heads: D and H, which divides D.
        radius: r; a long token sees those up to r away on either side.
        max_distance: k of the labels; 0: long tokens have one label, and so have global ones.
        projections: of :data:`PROJECTIONS`: "separate" is the paper's default.
        hard: a global token sees its own span alone of the long input (g2l).
        hard_long: a long token sees those global tokens alone that stand for it (l2g).
        clusters: global tokens are centroids (ours): each stands for the long tokens whose logits
            of all heads are together largest for it. The softmax of long tokens over all global
            ones teaches queries, keys and centroids, and so what belongs together.
        same_cluster: with clusters, beyond the radius a long token sees so many of its cluster on
            either side, of any paragraph, with a label of their own (ours). 0: none.
        dropout: of the attention weights, in training.
        num_labels: L, 2 k + 4 or more, and one more with ``same_cluster``.
        kernel: see :func:`~fairseq_clusterformer.kernels.ranged_attention`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        radius: int,
        max_distance: int = 12,
        projections: str = "separate",
        hard: bool = False,
        hard_long: bool = False,
        clusters: bool = False,
        same_cluster: int = 0,
        dropout: float = 0.0,
        num_labels: int = NUM_LABELS,
        kernel: str = "auto",
    ):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.radius, self.labels = radius, Labels(max_distance)
        self.hard, self.hard_long = hard, hard_long
        self.clusters, self.same_cluster = clusters, same_cluster
        self.dropout, self.impl, self.projections = dropout, kernel, projections
        streams, pairs = PROJECTIONS[projections]
        names = [f"{what}_{stream}" for what in ("q", "out") for stream in streams]
        names += [f"{what}_{pair}" for what in "kv" for pair in pairs]
        self.linear = nn.ModuleDict({name: nn.Linear(embed_dim, embed_dim) for name in names})
        for projection in self.linear.values():
            nn.init.xavier_uniform_(projection.weight)
            nn.init.zeros_(projection.bias)
        table = torch.empty(2, num_labels, num_heads, self.head_dim)  # of global queries, of long
        self.label_vectors = nn.Parameter(nn.init.trunc_normal_(table, std=0.5, a=-1.0, b=1.0))
        self.label_biases = nn.Parameter(torch.zeros(2, num_labels, num_heads))

    def named(self, what: str, pair: str) -> str:
        """The name in ``linear`` of ``what`` ("q", "k", "v" or "out"); of "g2l", say: queries of
        the global stream, and keys and values of the long one."""
        if self.projections == "shared":
            return f"{what}_g"
        if what in ("q", "out"):
            return f"{what}_{pair[0]}"
        return f"{what}_{pair}" if self.projections == "separate" else f"{what}_{pair[0]}2x"

    def forward(
        self, x_global: Tensor, x_long: Tensor, structure: Structure
    ) -> tuple[Tensor, Tensor]:
        """[B, G, D] and [B, N, D] to the same; anything for padding."""
        hidden = (structure.global_padding, structure.long_padding)
        x_global, x_long = (  # a weight of 0 times NaN is NaN
            x if mask is None else x.masked_fill(mask.unsqueeze(-1), 0.0)
            for x, mask in zip((x_global, x_long), hidden, strict=True)
        )
        of_global = self._projected(0, x_global, x_global, x_long)
        of_long = self._projected(1, x_long, x_global, x_long)
        if self.clusters:
            structure = structure.clustered(self._assigned(x_global, x_long, structure))
        number = x_global.size(1)
        of_keys = structure.order
        if of_keys is not None:  # global tokens are the first keys
            first = torch.arange(number, device=of_keys.device).expand(len(of_keys), -1)
            of_keys = torch.cat([first, number + of_keys], 1)
        seen = structure.seen(hard=self.hard)
        parts_of_global = [self._among_global(of_global, structure)]
        parts_of_global.append(self._across(of_global, number, seen, number, of_keys))
        seen = structure.seen_by_long(hard=self.hard_long)
        parts_of_long = [self._across(of_long, 0, seen, structure.length)]
        for lo, hi, label in self._ranges_of_long(structure):
            out, lse = self._in_ranges(of_long, of_long.q, lo, hi, first=x_global.size(1))
            parts_of_long.append((out, lse + of_long.added[..., label]))
        if self.labels.most:
            parts_of_long.append(self._nearest(of_long, structure))
        if self.same_cluster and structure.length:
            parts_of_long += self._in_cluster(of_long, structure)
        outputs = []
        for pair, parts in (("g2g", parts_of_global), ("l2l", parts_of_long)):
            attended = join(parts)[0].transpose(1, 2).flatten(2)  # the heads side by side
            outputs.append(self.linear[self.named("out", pair)](attended))
        return tuple(outputs)

    def _projected(self, side: int, own: Tensor, x_global: Tensor, x_long: Tensor) -> _Projected:
        """Of the global stream's softmax (0) or the long one's (1)."""
        stream = "gl"[side]

        def of_both(what: str) -> Tensor:  # keys or values [B, H, M, E], global tokens first
            parts = {f"{stream}2g": x_global, f"{stream}2l": x_long}
            found = [self.linear[self.named(what, pair)](x) for pair, x in parts.items()]
            return self._heads(torch.cat(found, dim=1))

        q = self._heads(self.linear[self.named("q", stream)](own))
        # q . a_c and b_c of each label c, scaled as logits are
        added = torch.einsum("bhne,lhe->bhnl", self._scaled(q), self.label_vectors[side].to(q))
        bias = self._scaled(at_least_float32(self.label_biases[side]))
        added = at_least_float32(added) + bias.T[:, None]
        return _Projected(q, of_both("k"), of_both("v"), added)

    @torch.no_grad()
    @full_float32()
    def _assigned(self, x_global: Tensor, x_long: Tensor, structure: Structure) -> Tensor:
        """The global token nearest to each long one, int64 [B, N]; rounding must not decide."""
        number = structure.spans.size(1)
        q, k = (
            linear(*(at_least_float32(t) for t in (x, projection.weight, projection.bias)))
            for x, projection in (
                (x_long, self.linear[self.named("q", "l2g")]),
                (x_global, self.linear[self.named("k", "l2g")]),
            )
        )
        logits = q @ k.mT
        low, high = (bound.unsqueeze(-1) for bound in structure.global_bounds)
        place = torch.arange(number, device=logits.device)
        return logits.masked_fill((place < low) | (place >= high), -torch.inf).argmax(-1)

    def _scaled(self, x: Tensor) -> Tensor:
        """Before a product, which would overflow half precision."""
        return x * self.head_dim**-0.5

    def _heads(self, x: Tensor) -> Tensor:
        """[B, N, D] to [B, H, N, E]."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    @property
    def _rate(self) -> float:
        return self.dropout if self.training else 0.0

    def _by_kernel(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Part:
        return ranged_attention(q, k, v, layout, dropout=self._rate, impl=self.impl)

    def _across(
        self, given: _Projected, first: int, seen: tuple, number: int, order: Tensor | None = None
    ) -> Part:
        """What ``number`` queries find in the other stream, whose keys begin at ``first``, by
        ranges of :meth:`Structure.seen`; ``order`` as of :meth:`_in_ranges`."""
        owner, begin, end, mine = seen
        place = owner[:, None, :, None]
        q = given.q.gather(2, place.expand(*given.q.shape[:2], -1, given.q.size(-1)))
        out, lse = self._in_ranges(given, q, first + begin, first + end, order=order)
        added = given.added[..., [self.labels.others, self.labels.mine]]
        added = added.gather(2, place.expand(*lse.shape[:2], -1, 2))
        lse = lse + torch.where(mine.unsqueeze(1), added[..., 1], added[..., 0])
        return _joined(out, lse, owner, number)

    def _in_ranges(
        self,
        given: _Projected,
        q: Tensor,
        lo: Tensor,
        hi: Tensor,
        *,
        first: int = 0,
        order: Tensor | None = None,
    ) -> Part:
        """What queries [B, H, R, E] find in a range of key slots each, [B, R]. ``first`` is the
        slot of the first query (long ones stand behind global ones); ``order`` is the key at each
        slot, int64 [B, M], None: keys as they are."""
        asked, keys = q.size(2), given.k.size(2)
        slots = max(first + asked, keys)  # kernels want as many queries as keys
        room = (first, slots - first - asked)
        q = pad(q, (0, 0, *room))
        k, v = (pad(x, (0, 0, 0, slots - keys)) for x in (given.k, given.v))
        lo, hi = (pad(bound, room).unsqueeze(1) for bound in (lo, torch.maximum(lo, hi)))
        if order is not None:
            more = torch.arange(keys, slots, device=order.device).expand(len(order), -1)
            order = torch.cat([order, more], dim=1).unsqueeze(1)
        out, lse = self._by_kernel(q, k, v, Layout(lo, hi, key_order=order))
        return out[:, :, first : first + asked], lse[:, :, first : first + asked]

    def _ranges_of_long(self, structure: Structure) -> Iterator[tuple[Tensor, Tensor, int]]:
        """The ranges of long keys [B, N] that long tokens see besides their nearest neighbours,
        and their labels: distances from k on."""
        first, most = structure.spans.size(1), self.labels.most
        begin, end = self._nearby(structure)
        place = torch.arange(structure.length, device=begin.device)
        if not most:
            yield first + begin, first + end, 0
        elif self.radius >= most:
            yield first + begin, first + torch.maximum(begin, place - most + 1), 2 * most
            yield first + torch.minimum(end, place + most), first + end, most

    def _nearby(self, structure: Structure) -> tuple[Tensor, Tensor]:
        """The first long token that each sees by the radius, and one past the last, [B, N]."""
        low, high = structure.local_bounds
        place = torch.arange(structure.length, device=low.device)
        begin = torch.maximum(place - self.radius, low)
        return begin, torch.minimum(place + self.radius + 1, high)

    def _in_cluster(self, given: _Projected, structure: Structure) -> Iterator[Part]:
        """What long tokens find in those of their cluster beyond the radius, on either side."""
        first, order = structure.spans.size(1), structure.order.unsqueeze(1)
        k, v = (x[:, :, first:] for x in (given.k, given.v))
        for range_ in structure.members(*self._nearby(structure), self.same_cluster):
            lo, hi = (bound.unsqueeze(1) for bound in range_)
            layout = Layout(lo, hi, order, order, reach=self.same_cluster)
            out, lse = self._by_kernel(given.q, k, v, layout)
            yield out, lse + given.added[..., self.labels.same_cluster]

    def _nearest(self, given: _Projected, structure: Structure) -> Part:
        """What long tokens find in those less than k away, whose labels differ.

        Queries come in blocks; the keys of a block are its own tokens and those up to ``reach`` on
        either side, cut out of the padded keys by ``unfold``.
        """
        reach = min(self.labels.most - 1, self.radius)
        length, first = structure.length, structure.spans.size(1)
        blocks = max(-(-length // _BLOCK), 1)  # also where the long input is empty
        more = blocks * _BLOCK - length
        q = pad(given.q, (0, 0, 0, more)).unflatten(2, (blocks, _BLOCK))
        k, v = (
            pad(x[:, :, first:], (0, 0, reach, reach + more)).unfold(2, _BLOCK + 2 * reach, _BLOCK)
            for x in (given.k, given.v)
        )  # [B, H, blocks, E, keys]
        place = torch.arange(_BLOCK, device=q.device)
        distance = torch.arange(_BLOCK + 2 * reach, device=q.device) - reach - place.unsqueeze(-1)
        # of the labels of distances that a query has, that of each of its keys
        added = pad(given.added[..., : 2 * self.labels.most + 1], (0, 0, 0, more))
        added = added.unflatten(2, (blocks, _BLOCK))
        label = self.labels.of_distance(distance)
        added = added.gather(-1, label.expand(*added.shape[:3], -1, -1))
        logits = at_least_float32(self._scaled(q) @ k) + added
        low, high = (
            pad(bound, (0, more)).view(-1, 1, blocks, _BLOCK, 1)
            for bound in structure.local_bounds
        )
        key = distance + torch.arange(blocks * _BLOCK, device=q.device).view(blocks, _BLOCK, 1)
        hidden = (distance.abs() > reach) | (key < low) | (key >= high)
        return _attended(logits, v.mT, hidden, self._rate, length)

    def _among_global(self, given: _Projected, structure: Structure) -> Part:
        number = structure.spans.size(1)
        place = torch.arange(number, device=given.q.device)
        label = self.labels.of_distance(place - place.unsqueeze(-1))
        if structure.paragraphs is not None:
            apart = structure.paragraphs.unsqueeze(2) != structure.paragraphs.unsqueeze(1)
            label = torch.where(apart, self.labels.other_paragraph, label).unsqueeze(1)
        q, k, v = (x[:, :, :number] for x in given[:3])
        logits = at_least_float32(self._scaled(q) @ k.mT)
        logits = logits + given.added.gather(-1, label.expand_as(logits))
        hidden = ~structure.global_pairs.unsqueeze(1)
        blocks = (x.unsqueeze(2) for x in (logits, v, hidden))  # one of all queries
        return _attended(*blocks, self._rate, number)


def _joined(out: Tensor, lse: Tensor, owner: Tensor, number: int) -> Part:
    """Parts [B, H, R, E] and their log-sum-exps [B, H, R] in one softmax for each of ``number``
    queries, of which each is a part of one, ``owner``, int64 [B, R]."""
    least = torch.finfo(lse.dtype).min  # a softmax of -inf alone would be NaN
    owner = owner.unsqueeze(1).expand_as(lse)
    shape = (*lse.shape[:2], number)
    highest = lse.new_full(shape, least).scatter_reduce(2, owner, lse.detach(), "amax")
    weights = (lse.clamp(min=least) - highest.gather(2, owner)).exp()
    total = lse.new_zeros(shape).scatter_add(2, owner, weights)
    weighed = out * (weights / total.gather(2, owner)).unsqueeze(-1)
    owner = owner.unsqueeze(-1).expand_as(out)
    joined = weighed.new_zeros(*shape, out.size(-1)).scatter_add(2, owner, weighed)
    return joined.to(out.dtype), highest + total.log()


def _attended(logits: Tensor, v: Tensor, hidden: Tensor, rate: float, length: int) -> Part:
    """Values and log-sum-exps of ``length`` queries, which come in blocks: logits and ``hidden``
    [B, H, blocks, queries, keys], v [B, H, blocks, keys, E]; ``rate`` is dropout's."""
    logits = logits.masked_fill(hidden, torch.finfo(logits.dtype).min)  # -inf has no gradient
    if not logits.numel():  # no global token
        return v.flatten(2, 3)[:, :, :length], logits.sum(-1).flatten(2, 3)
    highest = logits.detach().amax(-1, keepdim=True)
    weights = (logits - highest).exp()  # once for the softmax and its log-sum-exp
    total = weights.sum(-1, keepdim=True)
    out = dropout(weights / total, rate).to(v.dtype) @ v
    lse = (highest + total.log()).squeeze(-1)
    return out.flatten(2, 3)[:, :, :length], lse.flatten(2, 3)[:, :, :length]
