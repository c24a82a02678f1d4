"""What a kind of attention is: one function that assigns tokens to clusters, and its options.

A kind never touches softmax. From what it assigns follow the parts that a query sees
(:mod:`~fairseq_clusterformer.attention.parts`), in training and in decoding.

Shape letters: B batch, N tokens, D model width, H heads of this kind, E head width, K clusters,
G groups of heads that are assigned apart (1, H, or of keys J), W window.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import fields
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..clustering.report import Report, State
from .assignment import Assignment, Shape, Tokens
from .options import OptionError, Options, flag_of
from .parts import Part
from .ranged import RangedKeys
from .scouts import Scouts
from .sinks import Sinks
from .summaries import ClusterMeans


class Routing(NamedTuple):
    """Who sees whom in a batch.

    Attributes:
        x: input of the layer; torch's backward hooks look for a tensor in front.
        parts: what a query sees.
        report: for the losses, the log and the layer above.
        scouts: queries that teach, and see every key by layouts of the first part.
    """

    x: Tensor
    parts: list[Part]
    report: Report
    scouts: Scouts | None = None


class Kind(nn.Module, ABC):
    """A kind of attention for some heads of a layer.

    Subclasses define ``assign``. What a kind learns from data other than by gradient must not
    change while a batch runs, or activation checkpointing would compute the batch twice in
    different ways: ``assign`` reports an observation, ``observe`` stores it once the forward pass
    is over, and ``commit`` applies it before the next update. The attribute that ``learner`` names
    does all three.

    Args:
        options: of the dataclass that the kind was registered with.
        shape: what it is built for.
    """

    self_key = "in_cluster"
    """How a query sees its own key: "in_cluster" (like any other of its cluster), "always", or
    "fallback" (only where it sees nothing else: for kinds whose query and key are one vector)."""
    chunk_rule = "two_chunks"
    """What a query sees by the rule "chunk": "two_chunks" (CF22: its own and the one before),
    "own_chunk" (CF20) or "top_keys" of its cluster (Routing Transformer)."""
    learner = ""
    """Name of the attribute that learns from observations; "": none."""
    local_observations = False
    """Whether each worker's observations stay with it; else all workers' are exchanged."""
    needs_centroids = False
    """Whether it must be given the centroids of the layer before."""
    per_token = True
    """Whether a token is assigned without regard to other tokens of its row."""
    per_token_with = "a kind that does not"
    """Options with which it would be, for the error message."""
    reads_qk = True
    """Whether it reads ``tokens.q`` or ``tokens.k``."""
    drops_keys = False
    """Whether the last cluster is of keys that no query sees and decoding does not keep."""

    def __init__(self, options: Options, shape: Shape):
        super().__init__()
        self.counts_own = True
        self.options, self.shape = options, shape
        self.causal = shape.causal
        self.rule = getattr(options, "rule", "recent")
        self.gap = max(getattr(options, "gap", 0), self.least_gap)
        allowed = ("recent", "leaking-chunk") if self.causal else ("chunk", "recent")
        if self.rule not in allowed:
            rules = type(options).__dataclass_fields__["rule"].metadata["range"].choices
            where = "a causal model" if self.causal else "an encoder"
            raise OptionError(
                "rule", self.rule, f"{', '.join(r for r in rules if r in allowed)} in {where}"
            )
        if self.gap > self.least_gap and self.rule != "recent":
            raise OptionError("gap", self.gap, f"{self.least_gap} with the rule {self.rule}")
        if self.sinks and not self.can_step:
            raise OptionError("sinks", self.sinks, "0 but in a causal model with the rule recent")
        if self.cluster_window == 0:
            raise OptionError("window", self.window, "2 or more, the query's own included")
        # Checkpoints from before W counted the query's own key do not have this number.
        if self.causal and self.least_gap:
            self.register_buffer("own_in_window", torch.ones(()))

    @property
    def least_gap(self) -> int:
        """1 where a query's own key is not seen as one of its cluster."""
        return int(self.causal and self.self_key != "in_cluster")

    @property
    def window(self) -> int | None:
        """W, keys that a query sees, its own included, and besides them ``gap - 1`` near ones;
        None: all. Not causal: on either side. By the rule "chunk" of CF20, tokens of a chunk."""
        return self.options.window

    @property
    def cluster_window(self) -> int | None:
        """Keys that a query sees by its cluster: all of W, or without its own."""
        apart = self.causal and self.gap > 0 and self.window is not None and self.counts_own
        return self.window - 1 if apart else self.window

    @property
    def num_clusters(self) -> int:
        """K."""
        return getattr(self.options, "clusters", 1)

    @property
    def sinks(self) -> int:
        """First tokens of a document that each of its queries sees, besides W others."""
        return getattr(self.options, "sinks", 0)

    @property
    def last_place(self) -> int | None:
        """Where a query stands behind sinks, at most, by rotary positions; None: where it is."""
        return None

    @property
    def num_rings(self) -> int:
        """Clusters whose latest keys decoding keeps."""
        return self.num_clusters - self.drops_keys

    @property
    def by_tokens(self) -> bool:
        """Whether it looks at tokens, and not at whole rows."""
        return self.rule == "recent" and self.per_token

    @property
    def can_step(self) -> bool:
        """Whether it can decode step by step: no output depends on a later token."""
        return self.causal and self.rule == "recent"

    @property
    def why_no_steps(self) -> str:
        """The error for a user who asks for steps although ``can_step`` is false."""
        if self.causal:
            return (
                f"the cluster rule is {self.rule!r}: it lets later tokens change earlier outputs, "
                "so text cannot be generated with it; allowed: a model that you train with the "
                "rule recent"
            )
        return (
            f"attention of kind {type(self).__name__} cannot decode step by step, for it sees "
            "later tokens; allowed: a causal one"
        )

    @property
    def why_apart(self) -> str:
        """The error for rows of several documents where tokens are not assigned ``per_token``."""
        return (
            f"attention of kind {type(self).__name__} carries what it saw from token to token; "
            f"allowed in rows of several documents: {self.per_token_with}"
        )

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys [B, H, N, E] as this kind assigns and attends them, made from the
        projected ones, separately for each token."""
        return q, k

    @abstractmethod
    def assign(self, tokens: Tokens, state: State) -> tuple[Assignment, State]:
        """Assign the tokens of a batch, or one or more tokens behind those that made the state.

        Args:
            tokens: what may be read of them.
            state: what this function returned for the tokens before; empty at first.

        Returns:
            The assignment, and the state for the next tokens: tensors with the batch first.
        """

    def seen(
        self, tokens: Tokens, assignment: Assignment, state: State | None = None
    ) -> list[Part]:
        """What a query sees; ``state``: of the parts, for the tokens before; None: a batch."""
        if not self.sinks:
            return self.parts(tokens, assignment, state)
        others = self.parts(tokens.behind(self.sinks), assignment, state)
        return [*others, Sinks(self, tokens, assignment, state)]

    def parts(
        self, tokens: Tokens, assignment: Assignment, state: State | None = None
    ) -> list[Part]:
        """What a query sees besides sinks; arguments as of ``seen``."""
        parts: list[Part] = [RangedKeys(self, tokens, assignment, state)]
        if getattr(self.options, "summaries", 0):
            parts.append(ClusterMeans.of(self, tokens, assignment, state))
        return parts

    def forward(self, tokens: Tokens) -> Routing:
        """Who sees whom in a batch. Raises ValueError: a cluster that the kind does not have, or a
        state of an assignment that is said to be ``per_token``."""
        assignment, state = self.assign(tokens, {})
        if state and self.per_token:
            raise ValueError(
                f"{type(self).__name__}.per_token is True, and assign returned a state; allowed: "
                "False"
            )
        return Routing(
            tokens.x, self.seen(tokens, assignment), assignment.report, assignment.scouts
        )

    def observe(self, observation: Tensor) -> None:
        """Store a training batch's observation; called outside of any activation checkpoint."""
        if self.learner:
            getattr(self, self.learner).observe(observation)

    def commit(self) -> None:
        """Apply what was observed since the last call; called before each update."""
        if self.learner:
            getattr(self, self.learner).commit()

    def _load_from_state_dict(self, state_dict, prefix, *args):
        """Also take a checkpoint from before W counted the query's own key."""
        name = prefix + "own_in_window"
        if "own_in_window" in self._buffers and name not in state_dict:
            state_dict[name] = torch.zeros(())
        if name in state_dict:
            self.counts_own = bool(state_dict[name])
        super()._load_from_state_dict(state_dict, prefix, *args)


def shared_vector(q: Tensor, k: Tensor) -> Tensor:
    """One vector a token [B, H, N, E] for kinds whose query and key are the same: of both
    projections, so that each is trained, and of the variance of one."""
    return (q + k) * 0.5**0.5


class Registered(NamedTuple):
    """A kind, and the dataclass of its options."""

    kind: type[Kind]
    options: type[Options]


_KINDS: dict[str, Registered] = {}
_LISTENERS: list[Callable[[Registered], None]] = []


def register_attention(
    name: str, options: type[Options] = Options
) -> Callable[[type[Kind]], type[Kind]]:
    """Class decorator: make a kind available in attention specs under ``name``.

    Args:
        name: of the kind.
        options: dataclass of its options; each becomes an option of the command line.

    Raises:
        ValueError: the name is taken, or holds a character of the spec's grammar; or an option
            that is not an :func:`option`, or whose flag has another default for another kind.
    """
    for item in fields(options):
        if "help" not in item.metadata:
            raise ValueError(f"attention kind {name!r}: {item.name} is no option(default, help)")
        for other, known in _KINDS.items():
            for shared in fields(known.options):
                if flag_of(shared) == flag_of(item) and shared.default != item.default:
                    raise ValueError(
                        f"attention kind {name!r}: {flag_of(item)} is {item.default} by default; "
                        f"allowed: {shared.default}, as for {other}, or another flag"
                    )

    def register(cls: type[Kind]) -> type[Kind]:
        if name in _KINDS:
            raise ValueError(
                f"attention kind {name!r} is registered already, by {_KINDS[name].kind}"
            )
        if not name or set(name) & set(",+*()= "):
            raise ValueError(f"attention kind {name!r}: a name has none of ',+*()= '")
        _KINDS[name] = Registered(cls, options)
        for listener in _LISTENERS:
            listener(_KINDS[name])
        return cls

    return register


def listen(listener: Callable[[Registered], None]) -> None:
    """Call ``listener`` for each kind that is registered, and for those that will be."""
    _LISTENERS.append(listener)
    for registered in _KINDS.values():
        listener(registered)


def attention_kinds() -> tuple[str, ...]:
    """Registered names, sorted."""
    return tuple(sorted(_KINDS))


def registered(name: str) -> Registered:
    """The kind of a registered name."""
    return _KINDS[name]
