"""What queries see: a kind's numbers, a text of keys, and the ranges of it that each query sees.

A batch and a portion of a text are one thing: kept keys stand in front of the new tokens as if
they were a short text, of which the new tokens alone ask. In training nothing is kept.

The rule "recent" is the one that is causal, and that decoding follows token by token.

Shape letters: L rounds of clustering, M kept keys, N new tokens, T = M + N.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..kernels import Layout, Own
from .batch import Batch, any_padding
from .layout import recent_layouts, sink_layout, window_layouts, without_own
from .past import Stores
from .projections import QKV
from .tokens import Assignment, Round, Tokens

# Bias of a key that counts only where a query sees nothing else: next to any other its weight is
# 0, and float16 still holds the logit.
LAST_RESORT = -5e4


@dataclass(frozen=True)
class Traits:
    """What a kind declares of itself."""

    #: how a query sees its own key: "in_cluster" (like any other of its cluster), "always", or
    #: "fallback" (only where it sees nothing else: for kinds whose query and key are one vector);
    #: of the last two and causal, the gap is 1 at least
    own: str = "in_cluster"
    least_gap: int = 0  # 1 where it is not seen as one of its cluster, in what is not causal, too
    drops_keys: bool = False  # a key may be in no cluster, which is then number K
    clusters: int | None = None  # K; None, as of W: as the options have it
    window: int | None = None  # W
    #: where a query stands behind sinks, at most, by rotary positions; None: where it is
    last_place: int | None = None
    per_token: bool = True  # a token is assigned without regard to other tokens of its row
    per_token_with: str = "a kind that does not"  # allowed where it must be, for the error message
    reads_qk: bool = True  # it reads ``tokens.q`` or ``tokens.k``
    reads_constants: bool = False  # its sight has ``constant`` layouts
    needs_centroids: bool = False  # it must be given the centroids of the layer before


@dataclass(frozen=True)
class Rule(Traits):
    """Which keys a query of a kind sees.

    W is said here, for all kinds: a query sees W keys by its cluster, its own included; besides
    them sinks, and with a gap of G the G - 1 keys that are nearer. What is not causal sees W on
    either side, and its own.
    """

    clusters: int = 1
    causal: bool = True  # a query sees no later token
    name: str = "recent"  # or "chunk", or "leaking-chunk" (CF22's Appendix B)
    gap: int = 0  # G; keys that are nearer than G tokens are seen by position, not by cluster
    sinks: int = 0  # first tokens of a document that each of its queries sees

    @property
    def by_cluster(self) -> int | None:
        """Keys that a query sees by its cluster: W, or without its own where that is apart."""
        apart = self.causal and self.gap > 0 and self.window is not None
        return self.window - 1 if apart else self.window

    @property
    def own_bias(self) -> float:
        """Bias of the query's own key where it is seen besides others."""
        return LAST_RESORT if self.own == "fallback" else 0.0

    @property
    def can_step(self) -> bool:
        """Whether it can decode step by step: no output depends on a later token."""
        return self.causal and self.name == "recent"

    def beyond(self, tokens: Tokens) -> Tensor | None:
        """How far queries stand behind the last place, int64 [1 or B, N]."""
        if self.last_place is None:
            return None
        return (tokens.positions - self.last_place).clamp(min=0)


@dataclass(frozen=True)
class Text:
    """Keys that may be seen: M that are kept, and those of the new tokens, which alone ask."""

    tokens: Tokens  # the new ones; sinks among them count as padding
    rounds: tuple[Round, ...]  # clusters of T tokens, for each head
    #: the clusters of keys as they are kept, K for none, int64 [B, G, L, T]; None: nothing is
    #: kept, and all are in one
    rings: Tensor | None
    batch: Batch  # what stands in ranges: no padding, empty slot, or sink
    sinks: Batch  # what sinks are counted among: no padding, or kept key but a sink
    kept: Tensor | None = None  # [B, J, M, C]; None: M is 0
    key_bias: Tensor | None = None  # of the new tokens, as of :class:`Assignment`

    @property
    def past(self) -> int:
        """M."""
        return 0 if self.kept is None else self.kept.size(2)

    @property
    def length(self) -> int:
        """T."""
        return self.past + self.tokens.x.size(1)

    def window(self, window: int | None, causal: bool) -> tuple[Layout, ...]:
        """Keys by position: see :func:`~fairseq_clusterformer.attention.layout.window_layouts`."""
        device = self.tokens.x.device
        return window_layouts(self.length, window, causal=causal, batch=self.batch, device=device)


def text_of(rule: Rule, tokens: Tokens, assignment: Assignment, stores: Stores | None) -> Text:
    """The text that new tokens see."""
    behind = tokens.behind(rule.sinks) if rule.sinks else tokens
    new, bias = assignment.rounds, assignment.key_bias
    rings = torch.stack([found.of_keys for found in new], dim=2) if new else None
    kept = None if stores is None else stores.keys(tokens.before, behind.before)
    if kept is None:
        rounds = tuple(found.for_each_head() for found in new)
        return Text(behind, rounds, rings, behind.batch, tokens.batch, key_bias=bias)
    (entries, old, hidden), no_sink = kept
    past, length = entries.size(2), tokens.x.size(1)
    if rings is None:
        rings = old.new_zeros(*old.shape[:3], length)
    rings = torch.cat([old, rings], dim=-1)
    rounds = []
    for found, keys in zip(new, rings.unbind(2), strict=False):
        queries = tuple(
            pad(clusters, (past, 0), value=rule.clusters) for clusters in found.queries
        )
        rounds.append(Round(queries, keys).for_each_head())

    def whole(hidden: Tensor, mask: Tensor | None) -> Batch:
        mask = hidden.new_zeros(len(hidden), length) if mask is None else mask
        return Batch(any_padding(torch.cat([hidden, mask], dim=-1)))

    batch, sinks = whole(hidden, behind.padding_mask), whole(no_sink, tokens.padding_mask)
    return Text(behind, tuple(rounds), rings, batch, sinks, entries, bias)


@dataclass(frozen=True)
class Sight:
    """What each query of a text sees, under one softmax; what two layouts show counts twice."""

    ranges: tuple[Layout, ...] = ()  # keys by cluster
    near: tuple[Layout, ...] = ()  # keys by position
    sinks: Layout | None = None  # the first tokens of its document
    constant: tuple[Layout, ...] = ()  # keys whose states get no gradient
    own: Own | None = None  # its own key, where no layout shows it

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """All of them."""
        sinks = () if self.sinks is None else (self.sinks,)
        return (*self.ranges, *self.near, *sinks, *self.constant)


def recent(rule: Rule, text: Text) -> Sight:
    """The latest keys of its cluster that are ``gap`` tokens back or more, and those that are
    nearer by position; not causal: on either side."""
    causal, gap = rule.causal, rule.gap
    if not text.rounds:
        return Sight(text.window(rule.by_cluster, causal))
    count = rule.clusters + (rule.drops_keys or text.past > 0)  # the last: of keys in none
    how = {"causal": causal, "gap": gap, "batch": text.batch}
    ranges = tuple(
        layout
        for found in text.rounds
        for queries in found.queries
        for layout in recent_layouts(
            queries, count, rule.by_cluster, key_clusters=found.keys, **how
        )
    )
    if gap == 0:
        return Sight(ranges, own=_own_by_cluster(rule, text))
    if gap == 1:
        return Sight(ranges, own=Own(rule.own_bias))
    near = text.window(gap if causal else gap - 1, causal)
    if rule.own != "fallback":
        return Sight(ranges, near)
    sides = without_own(near[0])
    return Sight(ranges, sides[:1] if causal else sides, own=Own(LAST_RESORT))


def _own_by_cluster(rule: Rule, text: Text) -> Own | None:
    """The own key without a gap."""
    if rule.own == "fallback":
        return Own(LAST_RESORT)
    if rule.own == "in_cluster" or text.rounds[0].keys is None:
        return None  # its cluster shows it
    ((probed, keys),) = text.rounds
    return Own(hidden=torch.stack([queries == keys for queries in probed]).any(0))


def completed(rule: Rule, text: Text, sight: Sight) -> Sight:
    """What is seen, with sinks; a query's own key is seen once, and not by padding."""
    own = sight.own
    if own is not None:
        own = own.within((text.sinks if rule.gap > 0 else text.batch).padding_mask)
    if not rule.sinks:
        return replace(sight, own=own)
    batch, itself = text.sinks, own is None or rule.gap == 0
    like = text.rings[:, 0, 0] if text.past else text.tokens.x
    layout = batch.cached(
        ("sinks", rule.sinks, itself),
        lambda: sink_layout(batch.positions(like), rule.sinks, itself=itself, batch=batch),
    )
    return replace(sight, own=own, sinks=layout)


Result = tuple[Tensor, Tensor]  # values [B, H, N, E], and their log-sum-exp [B, H, N]


class Other(ABC):
    """What a kind shows besides single keys, or a selection of keys, with a store of its own."""

    @abstractmethod
    def attend(self, heads: QKV, kept: Any) -> tuple[Result, Any]:
        """What new tokens, one or several, see of it and of those before them, under a softmax of
        its own, and what is kept behind them.

        Args:
            heads: of the new tokens.
            kept: the second result for the tokens before, a :class:`Kept`; None: there are none.
        """

    def in_cpu_step(self, heads: QKV, kept: Any) -> tuple[dict[str, Any], Any] | None:
        """Arguments of :func:`~fairseq_clusterformer.kernels.cpu.step.step` by which that function
        attends to it and changes what is kept; None: it does not know how."""
        return None


class Seen(NamedTuple):
    """What a kind decides about its tokens."""

    x: Tensor  # input of the layer; torch's backward hooks look for a tensor in front
    tokens: Tokens
    assignment: Assignment
    assigned: dict[str, Tensor]  # for the assignment of the next tokens
    others: tuple[Other, ...]
    #: None: of one token, which the stores show more
    text: Text | None = None
    sight: Sight | None = None
