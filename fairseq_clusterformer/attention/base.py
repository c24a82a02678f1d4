"""What a kind of attention is: a router, registered by name.

A router decides which tokens see which. It never touches softmax: it returns one or several
:class:`~fairseq_clusterformer.kernels.Layout`, and one ranged attention does the rest.
A new kind is one file with one registered class.

Shape letters: B batch, N tokens, D model width, H heads of this kind, E head width, K clusters,
G groups of heads that share an order (1 or H), W window.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from ..clustering.fuzzy import SIMILARITIES
from ..clustering.report import Report, State
from ..kernels import IMPLEMENTATIONS, Layout

RULES = ("recent", "chunk", "leaking-chunk")
KERNELS = ("auto", *IMPLEMENTATIONS)
NORMALIZERS = ("average", "running")
STRIDED_PATTERNS = ("strided", "fixed")


@dataclass(frozen=True)
class AttentionConfig:
    """Options that kinds of attention share; each kind reads the ones that it needs.

    Attributes:
        window: W, tokens that a query of a windowed or clustered head can see, its own included;
            not causal: W on either side of its own. By the rule "chunk" of kmeans heads, tokens
            of a chunk.
        num_clusters: K.
        cluster_rule: how a query sees its cluster: "recent" (the W latest of its cluster; causal
            where asked for), "chunk" (CF22 eq. 8, bidirectional only) or "leaking-chunk" (the same
            in a causal model, CF22 appendix B: later tokens change earlier outputs).
        cluster_similarity: phi of CF22 eq. 2: "dot", "scaled-dot" or "cosine".
        cluster_temperature: divides phi inside eq. 2's exponent; None: what suits the kind.
        cluster_normalizer: eq. 2's normaliser in causal routing: "average" (a moving average over
            training batches) or "running" (over the tokens so far).
        cluster_exploration: share of the keys of gated heads that, in training, lie in a cluster
            drawn at random.
        own_centroids: each layer owns the centroids that it starts from; False: they are handed on
            from layer to layer (bidirectional only), and given to each ``forward``.
        hash_rounds: R, how often lsh heads hash each token.
        stride: of strided heads; 0: as many as ``num_clusters``, so that a query sees the same
            share of the text as one that sees its cluster.
        strided_pattern: "strided" (every ``stride``-th token) or "fixed" (the last of each block
            of ``stride`` tokens).
        kmeans_bank_size: M, states that kmeans heads find their centroids among.
        kmeans_interval: updates between two times that they do; 0: an epoch.
        kernel: how ranges are attended, see
            :func:`fairseq_clusterformer.kernels.ranged_attention`.

    Raises:
        ValueError: a value that is not allowed; the message names the command-line option.
    """

    window: int = 128
    num_clusters: int = 8
    cluster_rule: str = "recent"
    cluster_similarity: str = "cosine"
    cluster_temperature: float | None = None
    cluster_normalizer: str = "average"
    cluster_exploration: float = 0.1
    own_centroids: bool = True
    hash_rounds: int = 2
    stride: int = 0
    strided_pattern: str = "strided"
    kmeans_bank_size: int = 100_000
    kmeans_interval: int = 0
    kernel: str = "auto"

    def __post_init__(self):
        for option, value in (
            ("--attention-window", self.window),
            ("--num-clusters", self.num_clusters),
            ("--hash-rounds", self.hash_rounds),
        ):
            if value < 1:
                raise ValueError(f"{option} is {value}; allowed: 1 or more")
        if self.kmeans_bank_size < self.num_clusters:
            raise ValueError(
                f"--kmeans-bank-size is {self.kmeans_bank_size}; allowed: --num-clusters, which "
                f"is {self.num_clusters}, or more"
            )
        if self.kmeans_interval < 0:
            raise ValueError(
                f"--kmeans-interval is {self.kmeans_interval}; allowed: 1 or more updates, or 0 "
                "for an epoch"
            )
        if self.stride < 0:
            raise ValueError(
                f"--stride is {self.stride}; allowed: 1 or more, or 0 for --num-clusters"
            )
        for option, value, allowed in (
            ("--cluster-rule", self.cluster_rule, RULES),
            ("--cluster-similarity", self.cluster_similarity, SIMILARITIES),
            ("--cluster-normalizer", self.cluster_normalizer, NORMALIZERS),
            ("--strided-pattern", self.strided_pattern, STRIDED_PATTERNS),
            ("--attention-kernel", self.kernel, KERNELS),
        ):
            if value not in allowed:
                raise ValueError(f"{option} is {value}; allowed: {', '.join(allowed)}")
        if not 0 <= self.cluster_exploration < 1:
            raise ValueError(
                f"--cluster-exploration is {self.cluster_exploration}; allowed: 0 or more, below 1"
            )
        if self.cluster_temperature is not None and not self.cluster_temperature > 0:
            raise ValueError(
                f"--cluster-temperature is {self.cluster_temperature}; allowed: above 0"
            )

    def temperature(self, suits: float) -> float:
        """Return what divides phi; `suits` is the kind's own default."""
        return suits if self.cluster_temperature is None else self.cluster_temperature


class Routing(NamedTuple):
    """What a router decides about a batch.

    Attributes:
        layouts: who sees whom; the results of several are joined by their log-sum-exp, as if each
            query had one softmax over all that it sees (what two layouts show it counts twice).
        report: for the losses, the log and the layer above.
    """

    layouts: tuple[Layout, ...]
    report: Report = Report()


class Ring(NamedTuple):
    """One token's place in one layout of a step-by-step decoder.

    Attributes:
        query: the ring that the token's query reads, int64 [B, G] in [0, ``num_rings``).
        key: the ring that its key is stored in, the same.
        key_bias: of its key, floating point [B, G]; None: 0.
    """

    query: Tensor
    key: Tensor
    key_bias: Tensor | None = None


class Step(NamedTuple):
    """What a router decides about one more token.

    Attributes:
        rings: for each layout that looks back.
        state: for the next step; every tensor has batch first.
        own_bias: where ``own_apart``, the bias of the token's own key, [B, 1 or H]; None: 0.
    """

    rings: tuple[Ring, ...]
    state: State
    own_bias: Tensor | None = None


class Router(nn.Module, ABC):
    """A kind of attention for some heads of a layer.

    Subclasses take ``(config, *, embed_dim, num_heads, head_dim, causal)``: D, H, E. What a router
    learns from data other than by gradient must not change while a batch runs, or activation
    checkpointing would compute the batch twice in different ways: ``forward`` returns an
    observation, ``observe`` stores it once the forward pass is over, and ``commit`` applies it
    before the next update.
    """

    #: keys that a step-by-step decoder keeps of each ring; None: all of them
    window: int | None
    #: rings, that is separate histories, that a step-by-step decoder keeps for each layout
    num_rings: int = 1
    #: whether a query sees its own key by a layout of its own (the last one), and by the others
    #: only earlier keys; a step-by-step decoder keeps nothing for that layout
    own_apart: bool = False
    #: whether each worker's observations stay with it; else all workers' are exchanged each batch
    observes_alone: bool = False
    #: whether ``forward`` must be given the centroids of the layer before
    needs_centroids: bool = False
    #: whether ``step`` can equal ``forward``: no output depends on a later token
    can_step: bool

    def __init__(
        self,
        config: AttentionConfig,
        *,
        embed_dim: int,
        num_heads: int,
        head_dim: int,
        causal: bool,
    ):
        super().__init__()
        self.config = config
        self.causal = causal
        self.can_step = causal and type(self).step is not Router.step

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys [B, H, N, E] as this kind routes and attends them, made from the
        projected ones, separately for each token."""
        return q, k

    @abstractmethod
    def forward(
        self,
        x: Tensor,
        q: Tensor,
        k: Tensor,
        padding_mask: Tensor | None = None,
        centroids: Tensor | None = None,
    ) -> Routing:
        """Route a batch.

        Args:
            x: input of the attention layer [B, N, D].
            q, k: of this kind's heads [B, H, N, E], as ``project`` returned them.
            padding_mask: bool [B, N], True where a token is padding.
            centroids: handed on by the layer before, [B, K, D]; kinds without centroids ignore it.
        """

    def step(
        self, x: Tensor, q: Tensor, k: Tensor, state: State, padding_mask: Tensor | None = None
    ) -> Step:
        """Route one more token of a causal sequence, exactly as ``forward`` would; called
        only where ``can_step``.

        Args:
            x, q, k: as in ``forward``, with N = 1.
            state: what the last call returned; empty at first.
            padding_mask: bool [B, 1].

        Raises:
            ValueError: the kind has no steps.
        """
        raise ValueError(self.why_no_steps)

    @property
    def why_no_steps(self) -> str:
        """The error for a user who asks for steps although ``can_step`` is false."""
        return f"attention of kind {type(self).__name__} cannot decode step by step" + (
            "" if self.causal else ", for it sees later tokens; allowed: a causal one"
        )

    def nothing_observed(self) -> Tensor | None:
        """The observation of a batch without tokens, for a layer that was dropped or a worker that
        saw less; None for kinds that observe nothing."""
        return None

    def observe(self, observation: Tensor) -> None:
        """Store a training batch's observation; called outside of any activation checkpoint."""

    def commit(self) -> None:
        """Apply what was observed since the last call; called before each update."""


def check_rule(kind: str, rule: str, *, causal: bool) -> None:
    """Refuse a cluster rule that a kind lacks which has "recent", and not causal "chunk".

    Raises:
        ValueError: saying which are allowed.
    """
    allowed = ("recent",) if causal else ("chunk", "recent")
    if rule not in allowed:
        where = "a causal model" if causal else "an encoder"
        raise ValueError(
            f"--cluster-rule is {rule}; allowed for {kind} in {where}: {', '.join(allowed)}"
        )


def shared_vector(q: Tensor, k: Tensor) -> Tensor:
    """One vector a token [B, H, N, E] for kinds whose query and key are the same: of both
    projections, so that each is trained, and of the variance of one."""
    return (q + k) * 0.5**0.5


_KINDS: dict[str, type[Router]] = {}


def register_attention(name: str) -> Callable[[type[Router]], type[Router]]:
    """Class decorator: make a router available in attention specs under ``name``.

    Raises:
        ValueError: the name is taken, or holds a character of the spec's grammar.
    """

    def register(cls: type[Router]) -> type[Router]:
        if name in _KINDS:
            raise ValueError(f"attention kind {name!r} is registered already, by {_KINDS[name]}")
        if not name or set(name) & set(",+* "):
            raise ValueError(f"attention kind {name!r}: a name has none of ',', '+', '*', ' '")
        _KINDS[name] = cls
        return cls

    return register


def attention_kinds() -> tuple[str, ...]:
    """Registered names, sorted."""
    return tuple(sorted(_KINDS))


def build_router(
    kind: str,
    config: AttentionConfig,
    *,
    embed_dim: int,
    num_heads: int,
    head_dim: int,
    causal: bool,
) -> Router:
    """Make the router of a registered kind.

    Args:
        kind: its name.
        config: its options.
        embed_dim: D.
        num_heads: H, heads of this kind.
        head_dim: E.
        causal: a query sees no later token.
    """
    return _KINDS[kind](
        config, embed_dim=embed_dim, num_heads=num_heads, head_dim=head_dim, causal=causal
    )
