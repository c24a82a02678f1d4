"""What a kind of attention is: one function that assigns tokens to clusters, and its options.

A kind never touches softmax. From what it assigns follows what a query sees
(:mod:`~fairseq_clusterformer.attention.sight`), in training and in decoding.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from ..clustering.learner import Learner
from ..clustering.report import Report, State
from ..kernels import Own
from .layout import chunk_layout, without_own
from .options import OptionError, Options
from .past import Stores
from .projections import QKV
from .sight import Other, Rule, Seen, Sight, Text, Traits, completed, recent, text_of
from .tokens import Assignment, Shape, Tokens


class Kind(nn.Module, ABC):
    """A kind of attention for some heads of a layer.

    Subclasses define ``assign``. What a kind learns from data other than by gradient is that of
    a :class:`~fairseq_clusterformer.clustering.learner.Learner` among its parts, of which
    ``assign`` reports an observation.

    Args:
        options: of the dataclass that the kind was registered with.
        shape: what it is built for.
    """

    def __init__(self, options: Options, shape: Shape):
        super().__init__()
        self.shape = shape
        self.take(options)

    def take(self, options: Options) -> None:
        """Have these options from now on; of a kind that is built, none that shapes parameters.
        Raises OptionError: one that does not go with the others."""
        shape, self.options = self.shape, options
        traits = self.declare(options, shape)
        apart = shape.causal and traits.own != "in_cluster"
        least_gap = max(traits.least_gap, int(apart))
        given = {"causal": shape.causal, "name": options.rule, "sinks": options.sinks}
        given["clusters"] = traits.clusters or options.clusters
        given["window"] = traits.window or options.window
        self.rule = rule = Rule(**vars(traits) | given | {"gap": max(options.gap, least_gap)})
        allowed = ("recent", "leaking-chunk") if shape.causal else ("chunk", "recent")
        if rule.name not in allowed:
            rules = type(options).__dataclass_fields__["rule"].metadata["range"].choices
            where = "a causal model" if shape.causal else "an encoder"
            raise OptionError(
                "rule", rule.name, f"{', '.join(r for r in rules if r in allowed)} in {where}"
            )
        if rule.gap > least_gap and rule.name != "recent":
            raise OptionError("gap", rule.gap, f"{least_gap} with the rule {rule.name}")
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
    def can_step(self) -> bool:
        """Whether it can decode step by step."""
        return self.rule.can_step

    @property
    def why_no_steps(self) -> str:
        """The error for a user who asks for steps although ``can_step`` is false."""
        if self.rule.causal:
            return (
                f"the cluster rule is {self.rule.name!r}: it lets later tokens change earlier "
                "outputs, so text cannot be generated with it; allowed: a model that you train "
                "with the rule recent"
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
            f"allowed in rows of several documents: {self.rule.per_token_with}"
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

    def sight(self, text: Text, assignment: Assignment) -> Sight:
        """What each query of a text sees, sinks apart."""
        if self.rule.name == "recent":
            return recent(self.rule, text)
        return self.chunks(text, assignment)

    def chunks(self, text: Text, assignment: Assignment) -> Sight:
        """By the rule "chunk": a chunk of the tokens sorted by cluster, and the one before (CF22).
        Not causal, for where it begins depends on all."""
        how = {"earlier_only": self.rule.causal, "padding_mask": text.batch.padding_mask}
        layouts = [
            chunk_layout(found.queries[0], self.rule.clusters, **how) for found in text.rounds
        ]
        if self.rule.own != "fallback":
            return Sight(tuple(layouts))
        sides = (side for layout in layouts for side in without_own(layout))
        return Sight(tuple(sides), own=Own(self.rule.own_bias))

    def others(self, tokens: Tokens, assignment: Assignment) -> tuple[Other, ...]:
        """What queries see besides single keys, of tokens without sinks."""
        return ()

    def forward(self, tokens: Tokens, stores: Stores | None = None) -> Seen:
        """What tokens see, behind those of the stores. Raises ValueError: a cluster that the kind
        does not have, or a state of an assignment that is said to be ``per_token``."""
        assignment, state = self.assign(tokens, {} if stores is None else stores.assigned)
        if state and self.rule.per_token:
            raise ValueError(
                f"{type(self).__name__} is declared per_token=True, and assign returned a state; "
                "allowed: False"
            )
        behind = tokens.behind(self.rule.sinks) if self.rule.sinks else tokens
        seen = Seen(tokens.x, tokens, assignment, state, self.others(behind, assignment))
        if stores is not None and tokens.x.size(1) == 1:
            return seen
        self._check(tokens, assignment)
        text = text_of(self.rule, tokens, assignment, stores)
        sight = completed(self.rule, text, self.sight(text, assignment))
        return seen._replace(text=text, sight=sight)

    def attended(self, out: Tensor, heads: QKV, seen: Seen) -> tuple[Tensor, Report]:
        """The values that several tokens attended to [B, H, N, E], and the report: where a kind
        teaches by them."""
        return out, seen.assignment.report

    def _check(self, tokens: Tokens, assignment: Assignment) -> None:
        """Clusters that the kind does not have would show keys of others, or memory that is no
        key. On CUDA, which is not waited for, and in a graph of ``torch.compile`` the error is
        torch's assertion."""
        for found in assignment.rounds:
            for clusters in (*found.queries, found.keys):
                if clusters is None:
                    continue
                count = self.rule.clusters + (self.rule.drops_keys and clusters is found.keys)
                wrong = (clusters < 0) | (clusters >= count)
                if tokens.padding_mask is not None:
                    wrong = wrong & ~tokens.padding_mask.unsqueeze(1)
                who, allowed = type(self).__name__, f"allowed: 0 to {count - 1}"
                if torch.compiler.is_compiling() or clusters.device.type != "cpu":
                    problem = f"{who} assigned clusters that it does not have"
                    torch._assert_async(~wrong.any(), f"{problem}; {allowed}")
                elif wrong.any():
                    raise ValueError(f"{who} assigned cluster {clusters[wrong][0]}; {allowed}")

    def observe(self, observation: Tensor) -> None:
        """Store a training batch's observation; called outside of any activation checkpoint."""
        if self.learner is not None:
            self.learner.observe(observation)

    def commit(self) -> None:
        """Apply what was observed since the last call; called before each update."""
        if self.learner is not None:
            self.learner.commit()


def shared_vector(q: Tensor, k: Tensor) -> Tensor:
    """One vector a token [B, H, N, E] for kinds whose query and key are the same: of both
    projections, so that each is trained, and of the variance of one."""
    return (q + k) * 0.5**0.5
