"""What a kind of attention is: one function that assigns tokens to clusters, and its options. It
never touches softmax: what its queries see follows from what it assigns and from its rule. Shape
letters: L rounds of clustering, M kept keys, N new tokens, T = M + N."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ..clustering.learner import Learner
from ..clustering.report import Report, State
from ..kernels import Layout, Listed, Own
from .layout import chunk_layout, listed, recent_layouts, sink_layout, window_layouts, without_own
from .options import OptionError, Options
from .past import Stores
from .projections import QKV
from .tokens import Assignment, Batch, Round, Shape, Tokens, any_padding, either

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
    """Which keys a query sees: W by its cluster, its own included (not causal: W on either side of
    it); besides them sinks, and with a gap of G the G - 1 keys that are nearer."""

    clusters: int = 1
    causal: bool = True  # a query sees no later token
    name: str = "recent"  # or "chunk", or "leaking-chunk" (CF22's Appendix B)
    gap: int = 0  # G; keys that are nearer than G tokens are seen by position, not by cluster
    sinks: int = 0  # first tokens of a document that each of its queries sees
    index: int = 0  # T: of all keys by cluster, a query sees the T of largest logit; 0: W of each

    @property
    def by_cluster(self) -> int | None:
        """Keys that a query sees by its cluster: W, or without its own where that is apart."""
        apart = self.causal and self.gap > 0 and self.window is not None
        return self.window - 1 if apart else self.window

    @property
    def own_bias(self) -> float:
        """Of the query's own key where it is seen besides others."""
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
    rings: Tensor  # the clusters of keys as they are kept, K for none, int64 [B, G, L, T]
    batch: Batch  # what stands in ranges: no padding, empty slot, or sink
    sinks: Batch  # what sinks are counted among: no padding, or kept key but a sink
    kept: Tensor | None = None  # [B, J, M, C]; None: M is 0

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


@dataclass(frozen=True)
class Sight:
    """What each query of a text sees, under one softmax; what two layouts show counts twice."""

    ranges: tuple[Layout, ...] = ()  # keys by cluster
    near: tuple[Layout, ...] = ()  # keys by position
    sinks: tuple[Layout, ...] = ()  # the first tokens of its document
    constant: tuple[Layout, ...] = ()  # keys whose states get no gradient
    own: Own | None = None  # its own key, where no layout shows it
    lists: Listed | None = None  # keys by cluster from which an index chooses, in place of ranges

    @property
    def layouts(self) -> tuple[Layout, ...]:
        by_cluster = self.ranges if self.lists is None else self.lists.layouts
        return by_cluster + self.near + self.sinks + self.constant


Result = tuple[Tensor, Tensor]  # values [B, H, N, E], and their log-sum-exp [B, H, N]


class Other(ABC):
    """What a kind shows besides single keys, or a selection of keys, with a store of its own."""

    @abstractmethod
    def attend(self, heads: QKV, kept: Any, rest: Tensor | None) -> tuple[Result, Any]:
        """What new tokens, one or several, see of it and of those before them, under a softmax of
        its own, and what is kept behind them, a tensor or a :class:`Kept`. ``kept``: that of the
        tokens before; None: there are none. ``rest``: for each cluster that a query looks into,
        the log-sum-exp of the logits of those of its keys that an index does not show, [B, H, N,
        P]; -inf: it shows all. None: it is no index."""

    def in_cpu_step(self, heads: QKV, kept: Any) -> tuple[dict[str, Any], Any] | None:
        """Arguments of :func:`~fairseq_clusterformer.kernels.cpu.step` by which that function
        attends to it and changes what is kept; None: it does not know how."""
        return None


class Seen(NamedTuple):
    """What a kind decides about its tokens."""

    x: Tensor  # input of the layer; torch's backward hooks look for a tensor in front
    tokens: Tokens
    assignment: Assignment
    assigned: State  # for the assignment of the next tokens
    others: tuple[Other, ...]
    #: None: of one token, which the stores show more
    text: Text | None = None
    sight: Sight | None = None


class Kind(nn.Module, ABC):
    """A kind of attention for some heads of a layer.

    Subclasses define ``assign``. What a kind learns from data other than by gradient is that of
    a :class:`~fairseq_clusterformer.clustering.learner.Learner` among its parts, of which
    ``assign`` reports an observation. ``options`` are of the dataclass that it was registered
    with; raises OptionError: one that does not go with the others.
    """

    def __init__(self, options: Options, shape: Shape):
        super().__init__()
        self.shape, self.options = shape, options
        traits = self.declare(options, shape)
        apart = shape.causal and traits.own != "in_cluster"
        least_gap = max(traits.least_gap, int(apart or options.index > 0))
        given = {"causal": shape.causal, "name": options.rule, "sinks": options.sinks}
        given["clusters"], given["index"] = traits.clusters or options.clusters, options.index
        given["window"] = None if options.index else traits.window or options.window
        self.rule = rule = Rule(**vars(traits) | given | {"gap": max(options.gap, least_gap)})
        allowed = ("recent", "leaking-chunk") if shape.causal else ("chunk", "recent")
        if rule.name not in allowed:
            known = type(options).__dataclass_fields__["rule"].metadata["range"].choices
            where = "a causal model" if shape.causal else "an encoder"
            those = ", ".join(name for name in known if name in allowed)
            raise OptionError("rule", rule.name, f"{those} in {where}")
        if rule.gap > least_gap and rule.name != "recent":
            raise OptionError("gap", rule.gap, f"{least_gap} with the rule {rule.name}")
        if rule.index and rule.name != "recent":
            raise OptionError("index", rule.index, f"0 with the rule {rule.name}")
        if rule.sinks and not rule.can_step:
            raise OptionError("sinks", rule.sinks, "0 but in a causal model with the rule recent")
        if rule.by_cluster == 0:
            raise OptionError("window", rule.window, "2 or more, the query's own included")

    @staticmethod
    def declare(options: Options, shape: Shape) -> Traits:
        """What the kind is, with these options."""
        return Traits()

    @property
    def learner(self) -> Learner | None:
        """The part that learns from observations; None: none does."""
        return next((part for part in self.children() if isinstance(part, Learner)), None)

    @property
    def by_tokens(self) -> bool:
        """Whether it looks at tokens, and not at whole rows."""
        return self.rule.name == "recent" and self.rule.per_token

    @property
    def why_no_steps(self) -> str:
        """The error for a user who asks for steps although the rule cannot step."""
        name = f"{type(self).__name__} with the rule {self.rule.name}"
        problem = f"attention of kind {name} cannot decode step by step, for it sees later tokens"
        return f"{problem}; allowed: a causal model that you train with the rule recent"

    @property
    def why_apart(self) -> str:
        """The error for rows of several documents where tokens are not assigned ``per_token``."""
        problem = f"of kind {type(self).__name__} carries what it saw from token to token"
        allowed = f"allowed in rows of several documents: {self.rule.per_token_with}"
        return f"attention {problem}; {allowed}"

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys [B, H, N, E] as this kind assigns and attends them, made from the
        projected ones, separately for each token."""
        return q, k

    @abstractmethod
    def assign(self, tokens: Tokens, state: State) -> tuple[Assignment, State]:
        """Assign the tokens of a batch, or one or more tokens behind those that made the state,
        which is empty at first. Returns the assignment, and the next state, the batch first."""

    def sight(self, text: Text, assignment: Assignment) -> Sight:
        """What each query of a text sees, sinks apart: by the rule "recent" the latest keys of its
        cluster ``gap`` tokens back or more, and nearer ones by position (see :class:`Rule`)."""
        rule = self.rule
        if rule.name != "recent":
            return self.chunks(text)
        causal, gap, own_bias = rule.causal, rule.gap, rule.own_bias
        if not text.rounds:
            return Sight(text.window(rule.by_cluster, causal))
        how, ranges, lists = {"causal": causal, "gap": gap, "batch": text.batch}, (), None
        if rule.index:
            queries = torch.stack(text.rounds[0].queries, dim=-1)[:, :, text.past :]
            lists = listed(queries, text.rings[:, :, 0], rule.clusters, **how)
        else:
            count = rule.clusters + (rule.drops_keys or text.past > 0)  # the last: of keys in none
            how |= {"num_clusters": count, "window": rule.by_cluster}
            for found in text.rounds:
                how |= {"key_clusters": found.keys, "rounds": len(found.queries)}
                ranges += recent_layouts(torch.cat(found.queries, dim=1), **how)
        sight = Sight(ranges, lists=lists)
        if gap > 1:
            near = text.window(gap if causal else gap - 1, causal)
            if rule.own != "fallback":
                return replace(sight, near=near)
            sides = without_own(near[0])
            return replace(sight, near=sides[:1] if causal else sides, own=Own(own_bias))
        if gap == 1 or rule.own == "fallback":
            return replace(sight, own=Own(own_bias))
        if rule.own == "in_cluster" or text.rounds[0].keys is None:
            return sight
        ((probed, keys),) = text.rounds  # where it is in none of these clusters
        hidden = torch.stack([clusters == keys for clusters in probed]).any(0)
        return replace(sight, own=Own(hidden=hidden))

    def chunks(self, text: Text) -> Sight:
        """By the rule "chunk": see :func:`.layout.chunk_layout`."""
        how = {"earlier_only": self.rule.causal, "padding_mask": text.batch.padding_mask}
        clusters, count = (found.queries[0] for found in text.rounds), self.rule.clusters
        layouts = [chunk_layout(of_round, count, **how) for of_round in clusters]
        if self.rule.own != "fallback":
            return Sight(tuple(layouts))
        sides = (side for layout in layouts for side in without_own(layout))
        return Sight(tuple(sides), own=Own(self.rule.own_bias))

    def others(self, tokens: Tokens, assignment: Assignment) -> tuple[Other, ...]:
        """What queries see besides single keys; sinks are seen apart."""
        return ()

    def forward(self, tokens: Tokens, stores: Stores | None = None) -> Seen:
        """What tokens see, behind those of the stores. Raises ValueError: a cluster that the kind
        does not have, or a state of an assignment that is said to be ``per_token``."""
        assignment, state = self.assign(tokens, {} if stores is None else stores.assigned)
        if state and self.rule.per_token:
            problem = "is declared per_token=True, and assign returned a state; allowed: False"
            raise ValueError(f"{type(self).__name__} {problem}")
        seen = Seen(tokens.x, tokens, assignment, state, self.others(tokens, assignment))
        if stores is not None and tokens.x.size(1) == 1:
            return seen
        self._check(tokens, assignment)
        behind = tokens.behind(self.rule.sinks)
        text = self._text(tokens, behind, assignment.rounds, stores)
        sight, rule, batch = self.sight(text, assignment), self.rule, text.sinks
        own, mask = sight.own, (batch if rule.gap > 0 else text.batch).padding_mask
        if own is not None and mask is not None:  # it is not seen by padding
            own = own._replace(hidden=either(own.hidden, mask.unsqueeze(1)))
        sight = replace(sight, own=own)
        if rule.sinks:
            positions = batch.positions(text.rings[:, 0, 0])
            itself = own is None or rule.gap == 0  # else it would be seen twice
            key, how = ("sinks", rule.sinks, itself), {"itself": itself, "batch": batch}
            layout = batch.cached(key, lambda: sink_layout(positions, rule.sinks, **how))
            sight = replace(sight, sinks=(layout,))
        return seen._replace(text=text, sight=sight)

    def attended(self, out: Tensor, heads: QKV, seen: Seen) -> tuple[Tensor, Report]:
        """What several tokens attended to [B, H, N, E], by which kinds may teach, and a report."""
        return out, seen.assignment.report

    def _check(self, tokens: Tokens, assignment: Assignment) -> None:
        """Clusters that the kind does not have would show keys of others, or memory that is no
        key. On CUDA, which is not waited for, and in a compiled graph it is torch's assertion."""
        number = self.rule.clusters
        for found in assignment.rounds:
            of_keys = found.of_keys, number + self.rule.drops_keys
            for clusters, count in ((torch.stack(found.queries), number), of_keys):
                wrong = (clusters < 0) | (clusters >= count)
                if tokens.padding_mask is not None:
                    wrong = wrong & ~tokens.padding_mask.unsqueeze(1)
                who, allowed = type(self).__name__, f"allowed: 0 to {count - 1}"
                if torch.compiler.is_compiling() or clusters.device.type != "cpu":
                    problem = f"{who} assigned clusters that it does not have; {allowed}"
                    torch._assert_async(~wrong.any(), problem)
                elif wrong.any():
                    raise ValueError(f"{who} assigned cluster {clusters[wrong][0]}; {allowed}")

    def _text(
        self, tokens: Tokens, behind: Tokens, new: tuple[Round, ...], stores: Stores | None
    ) -> Text:
        """The text that new tokens see; ``behind`` are those without sinks."""
        (batch, length), masks = tokens.x.shape[:2], []
        rings = tokens.positions.new_zeros(()).expand(batch, 1, 1, length)  # all are in one
        if new:
            rings = torch.stack([found.of_keys for found in new], dim=2)
        kept = None if stores is None else stores.keys(tokens.before, behind.before)
        if kept is None:
            rounds = tuple(found.for_each_head() for found in new)
            return Text(behind, rounds, rings, behind.batch, tokens.batch)
        (entries, old, hidden), no_sink = kept
        past, rings, rounds = entries.size(2), torch.cat([old, rings], dim=-1), []
        for found, keys in zip(new, rings.unbind(2), strict=False):
            clusters = (pad(q, (past, 0), value=self.rule.clusters) for q in found.queries)
            rounds.append(Round(tuple(clusters), keys).for_each_head())
        for of_kept, mask in ((hidden, behind.padding_mask), (no_sink, tokens.padding_mask)):
            mask = of_kept.new_zeros(len(of_kept), length) if mask is None else mask
            masks.append(Batch(any_padding(torch.cat([of_kept, mask], dim=-1))))
        return Text(behind, tuple(rounds), rings, *masks, entries)

    def commit(self) -> None:
        """Apply what was observed since the last call; called before each update."""
        if self.learner is not None:
            self.learner.commit()
