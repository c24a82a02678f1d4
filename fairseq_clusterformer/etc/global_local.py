"""ETC's attention (Ainslie et al. 2020, section 3): a long input, and global tokens that stand for
its parts.

Each stream has one softmax: a global token attends to global tokens (g2g) and to the long input
(g2l), a long one to global tokens (l2g) and to the long tokens nearby (l2l). The logit of a pair
whose label is c is ``(q . (k + a_c) + b_c) / sqrt(E)``; the bias is in the authors' code alone.
Labels say how far apart two tokens of a stream are, and whether a global token stands for a long
one. Most are constant over a range of keys: a kernel attends to the range, and what the label adds
to a query's logits is added to the log-sum-exp of that part before parts are joined. This is
exact, and linear in N. Only the 2k - 1 nearest keys have a label each.

Shape letters: B batch, G global tokens, N long tokens, M = G + N, D width, H heads, E head width,
R ranges, L labels, k the largest distance.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad
from torch.nn.utils.rnn import pad_sequence

from fairseq_clusterformer.kernels import Layout, join, ranged_attention
from fairseq_clusterformer.precision import at_least_float32, full_float32

#: labels behind those of the 2k + 1 distances (the authors' code; the last one is ours)
OTHERS, MINE, OTHER_PARAGRAPH, SAME_CLUSTER = 1, 2, 3, 4
GLOBAL, LONG = 0, 1  # the streams
#: names of what has weights of its own: queries and outputs by their stream, keys and values by
#: that of the query and their own
PROJECTIONS = {
    "separate": ("{0}", "{0}2{1}"),
    "shared-kv": ("{0}", "{0}2x"),  # as the authors have it
    "shared": ("g", "g"),
}
_BLOCK = 16  # queries whose nearest keys are looked at together
_PADDING = torch.iinfo(torch.int64).max  # the number of its example: behind all others
#: attended values and their log-sum-exp, of one part of the keys
Part = tuple[Tensor, Tensor]


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
    _seen: dict = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def examples(self) -> tuple[Tensor, Tensor]:
        """Of global and of long tokens, int64 [B, G] and [B, N], with padding as the last one."""
        found = []
        for examples, padding, number in (
            (self.global_examples, self.global_padding, self.spans.size(1)),
            (self.long_examples, self.long_padding, self.length),
        ):
            if examples is None:
                examples = self.spans.new_zeros(len(self.spans), number)
            found.append(examples if padding is None else examples.masked_fill(padding, _PADDING))
        return tuple(found)

    def bounds(self, stream: int, other: int) -> tuple[Tensor, Tensor]:
        """The first token of the other stream of each token's example, one past the last."""
        return _bounds(self.examples[stream], self.examples[other])

    @cached_property
    def local_bounds(self) -> tuple[Tensor, Tensor]:
        """Where the long input that each long token may see begins and ends, [B, N]: that of its
        example, and of its paragraph."""
        low, high = self.bounds(LONG, LONG)
        if self.long_paragraphs is None:
            return low, high
        begin, end = _bounds(self.long_paragraphs, self.long_paragraphs)
        return torch.maximum(low, begin), torch.minimum(high, end)

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

    def seen(self, stream: int, *, hard: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What a stream's tokens see of the other stream, as R ranges that lie apart, [B, R] each:
        the token, the first place and one past the last, and whether one stands for the other
        there, or is linked to it. With ``hard`` what stands for it alone; global tokens that are
        exempt see all. Empty ranges are padding."""
        if (stream, hard) in self._seen:
            return self._seen[stream, hard]
        rows, number = self.spans.shape[:2]
        sizes = max(number, 1), max(self.length, 1)
        row = torch.arange(rows, device=self.spans.device).unsqueeze(1)
        every = torch.arange(number, device=row.device).expand(rows, -1)
        seen = torch.full_like(every, not hard, dtype=torch.bool)  # all, and links too
        if hard and stream == GLOBAL and self.exempt is not None:
            seen = self.exempt
        parts = [(every, *self.spans.unbind(-1))]
        if self.links is not None:
            token, begin, end = self.links.unbind(-1)
            parts.append((token, begin, torch.where(seen.gather(1, token), end, begin)))
        token, begin, end = (torch.cat(x, 1) for x in zip(*parts, strict=True))
        token, bounds = token + row * sizes[GLOBAL], self.bounds(GLOBAL, LONG)
        if stream == LONG:  # each pair of a part and a token of it is a range of one global token
            nothing = torch.zeros_like(seen)
            token, begin, end, _ = _apart((token, begin, end), *bounds, nothing, self.length)
            of = torch.repeat_interleave(end - begin)
            first = (end - begin).cumsum(0) - end
            place = torch.arange(len(of), device=of.device) - first[of]
            row, begin = token[of] // sizes[GLOBAL], token[of] % sizes[GLOBAL]
            if self.order is not None:
                place = self.order[row, place]
            token, end, bounds = row * sizes[LONG] + place, begin + 1, self.bounds(LONG, GLOBAL)
            seen = torch.full_like(bounds[0], not hard, dtype=torch.bool)
        most = (self.length, number)[stream]
        token, *more = _apart((token, begin, end), *bounds, seen, most)
        row = token // sizes[stream]
        order, counts = row.argsort(stable=True), row.bincount(minlength=rows).tolist()
        found = (x[order].split(counts) for x in (token % sizes[stream], *more))
        self._seen[stream, hard] = result = tuple(pad_sequence(x, True) for x in found)
        return result


def _bounds(tokens: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """The first of the others of each token's number, one past the last; equal for padding."""
    tokens, others = tokens.contiguous(), others.contiguous()
    begin = torch.searchsorted(others, tokens)
    end = torch.searchsorted(others, tokens, right=True)
    return begin, torch.where(tokens < _PADDING, end, begin)


def _apart(
    parts: tuple[Tensor, Tensor, Tensor], low: Tensor, high: Tensor, gaps: Tensor, most: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Parts of what tokens see, without what one before has, and in front of them the gaps
    between them: the token, the first place, one past the last, and whether it is a part, [n].
    ``low``, ``high`` and ``gaps`` say where what each token may see begins and ends, and whether
    it sees what is in no part; ``most`` is the largest place."""
    low, high, gaps = (x.flatten() for x in (low, high, gaps))
    last = torch.arange(len(low), device=low.device), high, high  # an empty part behind the others
    token, begin, end = (torch.cat([x.flatten(), y]) for x, y in zip(parts, last, strict=True))
    # places of one token behind those of the one before, for one sort and one cummax
    shift = token * (most + 1)
    begin, end = (torch.minimum(torch.maximum(x, low[token]), high[token]) for x in (begin, end))
    begin, order = (begin + shift).sort(stable=True)
    token, shift, end = token[order], shift[order], (end + shift)[order]
    reached = end.cummax(0)[0].roll(1)
    reached[:1] = 0
    gap = torch.maximum(low[token] + shift, reached)
    begin = torch.maximum(begin, gap)
    is_part, is_gap = end > begin, (begin > gap) & gaps[token]
    token, begin, end = (
        torch.cat([x[is_gap], y[is_part]])
        for x, y in ((token, token), (gap - shift, begin - shift), (begin - shift, end - shift))
    )
    return token, begin, end, torch.arange(len(token), device=token.device) >= is_gap.sum()


class _Projected(NamedTuple):
    """Queries [B, H, G or N, E] of one softmax, its keys and values [B, H, M, E], global tokens
    before long ones; and what each label adds to a query's logits, [B, H, G or N, L]."""

    q: Tensor
    k: Tensor
    v: Tensor
    added: Tensor


class GlobalLocalAttention(nn.Module):
    """Attention of both streams, by the encoder's options, see `ETCOptions`.

    With clusters (ours), each global token is a centroid, and stands for the long tokens whose
    logits of all heads are together largest for it. The softmax of long tokens over all global
    ones teaches queries, keys and centroids, and so what belongs together. Beyond the radius, the
    tokens of a cluster are seen in any paragraph.
    """

    def __init__(self, args):
        super().__init__()
        embed_dim, num_labels = args.encoder_embed_dim, args.num_labels
        self.num_heads = num_heads = args.encoder_attention_heads
        self.head_dim, self.hard = embed_dim // num_heads, (args.hard_global, args.hard_long)
        self.radius, self.max_distance = args.radius, args.max_distance
        self.clusters, self.same_cluster = args.clusters > 0, args.same_cluster
        self.dropout, self.impl = nn.Dropout(args.attention_dropout), args.attention_kernel
        self.projections = args.projections
        pairs = product(("q", "out", "k", "v"), ("gg", "gl", "lg", "ll"))
        names = dict.fromkeys(self.named(*pair) for pair in pairs)
        self.linear = nn.ModuleDict({name: nn.Linear(embed_dim, embed_dim) for name in names})
        for projection in self.linear.values():
            nn.init.xavier_uniform_(projection.weight)
            nn.init.zeros_(projection.bias)
        table = torch.empty(2, num_labels, num_heads, self.head_dim)  # of global queries, of long
        self.label_vectors = nn.Parameter(nn.init.trunc_normal_(table, std=0.5, a=-1.0, b=1.0))
        self.label_biases = nn.Parameter(torch.zeros(2, num_labels, num_heads))

    def named(self, what: str, pair: str) -> str:
        """The name in ``linear`` of ``what`` ("q", "k", "v" or "out"); of the pair "gl", say:
        queries of the global stream, and keys and values of the long one."""
        return f"{what}_{PROJECTIONS[self.projections][what in 'kv']}".format(*pair)

    def forward(
        self, x_global: Tensor, x_long: Tensor, structure: Structure
    ) -> tuple[Tensor, Tensor]:
        """[B, G, D] and [B, N, D] to the same; anything for padding."""
        hidden = (structure.global_padding, structure.long_padding)
        streams = [  # a weight of 0 times NaN is NaN
            x if mask is None else x.masked_fill(mask.unsqueeze(-1), 0.0)
            for x, mask in zip((x_global, x_long), hidden, strict=True)
        ]
        of_global, of_long = (self._projected(stream, *streams) for stream in (GLOBAL, LONG))
        if self.clusters:
            structure = structure.clustered(self._assigned(*streams, structure))
        parts = (
            [self._among_global(of_global, structure), self._across(GLOBAL, of_global, structure)],
            [self._across(LONG, of_long, structure), *self._among_long(of_long, structure)],
        )
        return tuple(  # the heads side by side
            self.linear[self.named("out", stream)](join(x)[0].transpose(1, 2).flatten(2))
            for stream, x in zip("gl", parts, strict=True)
        )

    def _projected(self, stream: int, *x: Tensor) -> _Projected:
        own = "gl"[stream]
        q = self.linear[self.named("q", own)](x[stream])
        k, v = (
            torch.cat(
                [self.linear[self.named(what, own + key)](x[i]) for i, key in enumerate("gl")], 1
            )
            for what in "kv"
        )
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in (q, k, v))
        # q . a_c and b_c of each label c, scaled as logits are, before products: half precision
        scale, vectors = self.head_dim**-0.5, self.label_vectors[stream].to(q)
        added = at_least_float32(torch.einsum("bhne,lhe->bhnl", q * scale, vectors))
        bias = at_least_float32(self.label_biases[stream]) * scale
        return _Projected(q, k, v, added + bias.T[:, None])

    @torch.no_grad()
    @full_float32()
    def _assigned(self, x_global: Tensor, x_long: Tensor, structure: Structure) -> Tensor:
        """The global token nearest to each long one, int64 [B, N]; rounding must not decide."""
        q, k = (
            linear(*map(at_least_float32, (x, *self.linear[name].parameters())))
            for x, name in ((x_long, self.named("q", "l")), (x_global, self.named("k", "lg")))
        )
        low, high = (bound.unsqueeze(-1) for bound in structure.bounds(LONG, GLOBAL))
        place = torch.arange(k.size(1), device=k.device)
        return (q @ k.mT).masked_fill((place < low) | (place >= high), -torch.inf).argmax(-1)

    def _across(self, stream: int, given: _Projected, structure: Structure) -> Part:
        """What queries find in the other stream."""
        token, begin, end, mine = structure.seen(stream, hard=self.hard[stream])
        asked, keys = token.size(1), given.k.size(2)
        slots, order = max(asked, keys), None  # kernels want as many queries as keys
        if stream == GLOBAL:  # global tokens are the first keys
            number = structure.spans.size(1)
            begin, end = begin + number, end + number
            if structure.order is not None:
                order = torch.arange(slots, device=token.device).repeat(len(token), 1, 1)
                order[:, 0, number:keys] = number + structure.order
        q = given.q.take_along_dim(token[:, None, :, None], 2)
        q = pad(q, (0, 0, 0, slots - asked))
        k, v = (pad(x, (0, 0, 0, slots - keys)) for x in (given.k, given.v))
        lo, hi = (pad(x, (0, slots - asked)).unsqueeze(1) for x in (begin, end))
        out, lse = self._by_kernel(q, k, v, Layout(lo, hi, key_order=order))
        out, lse = out[:, :, :asked], lse[:, :, :asked]
        label = 2 * self.max_distance + torch.where(mine, MINE, OTHERS)
        label = (token * given.added.size(-1) + label).unsqueeze(1)
        lse = lse + given.added.flatten(2).take_along_dim(label, 2)
        return _joined(out, lse, token, given.q.size(2))

    def _by_kernel(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Part:
        rate = self.dropout.p if self.training else 0.0
        return ranged_attention(q, k, v, layout, dropout=rate, impl=self.impl)

    def _among_long(self, given: _Projected, structure: Structure) -> Iterator[Part]:
        """What long tokens find in those nearby, by their labels, and in their cluster."""
        if not structure.length:
            return
        first, most = structure.spans.size(1), self.max_distance
        low, high = structure.local_bounds
        place = torch.arange(structure.length, device=low.device)
        begin = torch.maximum(place - self.radius, low)
        end = torch.minimum(place + self.radius + 1, high)
        ranges = [] if most else [(begin, end, 0, None)]
        if most:
            yield self._nearest(given, structure)
        if self.radius >= most > 0:
            ranges.append((begin, torch.maximum(begin, place - most + 1), 2 * most, None))
            ranges.append((torch.minimum(end, place + most), end, most, None))
        if self.same_cluster:  # up to so many before the radius, and behind it
            clusters, order = structure.clusters, structure.order
            # rises, and so do members of a cluster
            ranked = clusters * structure.length + order
            before, behind = (
                torch.searchsorted(ranked, clusters * structure.length + bound.gather(1, order))
                for bound in (begin, end)
            )
            low = torch.maximum(torch.searchsorted(clusters, clusters), before - self.same_cluster)
            high = torch.searchsorted(clusters, clusters, right=True)
            high = torch.minimum(high, behind + self.same_cluster)
            real, label, order = clusters < first, 2 * most + SAME_CLUSTER, order.unsqueeze(1)
            ranges.append((low.where(real, before), before, label, order))
            ranges.append((behind, high.where(real, behind), label, order))
        k, v = (x[:, :, first:] for x in (given.k, given.v))
        for lo, hi, label, order in ranges:
            layout = Layout(lo.unsqueeze(1), hi.unsqueeze(1), order, order)
            out, lse = self._by_kernel(given.q, k, v, layout)
            yield out, lse + given.added[..., label]

    def _nearest(self, given: _Projected, structure: Structure) -> Part:
        """What long tokens find in those less than k away, whose labels differ. The keys of a
        block of queries are its own tokens and those up to ``reach`` on either side."""
        reach = min(self.max_distance - 1, self.radius)
        first, blocks = structure.spans.size(1), -(-structure.length // _BLOCK)
        more = blocks * _BLOCK - structure.length
        q, added = (
            pad(x, (0, 0, 0, more)).unflatten(2, (blocks, _BLOCK))
            for x in (given.q, given.added[..., : 2 * self.max_distance + 1])
        )
        k, v = (
            pad(x[:, :, first:], (0, 0, reach, reach + more)).unfold(2, _BLOCK + 2 * reach, _BLOCK)
            for x in (given.k, given.v)
        )  # [B, H, blocks, E, keys]
        place = torch.arange(_BLOCK, device=q.device)
        distance = torch.arange(_BLOCK + 2 * reach, device=q.device) - reach - place.unsqueeze(-1)
        low, high = (
            pad(bound, (0, more)).view(-1, 1, blocks, _BLOCK, 1)
            for bound in structure.local_bounds
        )
        key = distance + torch.arange(blocks * _BLOCK, device=q.device).view(blocks, _BLOCK, 1)
        hidden = (distance.abs() > reach) | (key < low) | (key >= high)
        given, label = (q, k.mT, v.mT, added), self._of_distance(distance)
        out, lse = _attended(given, label, hidden, self.dropout)
        return out[:, :, : structure.length], lse[:, :, : structure.length]

    def _among_global(self, given: _Projected, structure: Structure) -> Part:
        examples, paragraphs = structure.examples[GLOBAL], structure.paragraphs
        place = torch.arange(examples.size(1), device=examples.device)
        label = self._of_distance(place - place.unsqueeze(-1))
        if paragraphs is not None:
            apart = paragraphs.unsqueeze(2) != paragraphs.unsqueeze(1)
            other = 2 * self.max_distance + OTHER_PARAGRAPH
            label = torch.where(apart, other, label)[:, None, None]
        hidden = examples.unsqueeze(2) != examples.unsqueeze(1)
        blocks = (x[:, :, None, : len(place)] for x in given)  # one of all queries
        return _attended(blocks, label, hidden[:, None, None], self.dropout)

    def _of_distance(self, distance: Tensor) -> Tensor:
        """The label: 0 for the token itself, 1 to k to the right, k + 1 to 2k to the left."""
        clipped = distance.clamp(-self.max_distance, self.max_distance)
        return torch.where(clipped < 0, self.max_distance - clipped, clipped)


def _joined(out: Tensor, lse: Tensor, owner: Tensor, number: int) -> Part:
    """Parts [B, H, R, E] and their log-sum-exps [B, H, R] in one softmax for each of ``number``
    queries, of which each is a part of one, ``owner``, int64 [B, R]."""
    least = torch.finfo(lse.dtype)  # a softmax of -inf alone would be NaN
    owner = owner.unsqueeze(1).expand_as(lse)
    shape = (*lse.shape[:2], number)
    highest = lse.new_full(shape, least.min).scatter_reduce(2, owner, lse.detach(), "amax")
    weights = (lse.clamp(min=least.min) - highest.gather(2, owner)).exp()
    total = lse.new_zeros(shape).scatter_add(2, owner, weights).clamp(min=least.tiny)
    weighed = out * (weights / total.gather(2, owner)).unsqueeze(-1)
    owner = owner.unsqueeze(-1).expand_as(out)
    joined = weighed.new_zeros(*shape, out.size(-1)).scatter_add(2, owner, weighed)
    return joined.to(out.dtype), highest + total.log()


def _attended(given: Iterable[Tensor], label: Tensor, hidden: Tensor, dropout: nn.Module) -> Part:
    """What blocks of queries [B, H, blocks, queries, E] find in a few keys and values each, [B, H,
    blocks, keys, E]. Labels add to queries' logits [B, H, blocks, queries, L]; each pair has a
    label, and may be hidden, [..., queries, keys]."""
    q, k, v, added = given
    logits = at_least_float32((q * q.size(-1) ** -0.5) @ k.mT)  # scaled first: half precision
    if not logits.numel():  # no global token
        return v.flatten(2, 3), logits.sum(-1).flatten(2, 3)
    logits = logits + added.gather(-1, label.expand_as(logits))
    logits = logits.masked_fill(hidden, torch.finfo(logits.dtype).min)  # -inf has no gradient
    highest = logits.detach().amax(-1, keepdim=True)
    weights = (logits - highest).exp()  # once for the softmax and its log-sum-exp
    total = weights.sum(-1, keepdim=True)
    out = dropout(weights / total).to(v.dtype) @ v
    return out.flatten(2, 3), (highest + total.log()).squeeze(-1).flatten(2, 3)
