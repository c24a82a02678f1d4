"""Neural clustering attention (CF22): a query sees tokens of its own, learned cluster. The paper's
eq. 2 is similarity dot at temperature 1, which may diverge; the default is not."""

from dataclasses import dataclass

from ...clustering import NeuralClustering, State
from ..kind import Kind, Traits
from ..options import FuzzyOptions, OptionError, option, register_attention, rule_option
from ..tokens import Assignment, Shape, Tokens


@dataclass(frozen=True)
class NeuralOptions(FuzzyOptions):
    rule: str = rule_option("recent", "chunk", "leaking-chunk")
    normalizer: str = option(
        "average",
        "what normalises the softmax over tokens in causal neural heads: an average over training "
        "batches, or the tokens so far",
        flag="cluster_normalizer",
        choices=("average", "running"),
    )
    own_centroids: bool = option(
        True,
        "each layer owns its centroids, instead of those that the layer before has updated",
        on={"encoder": False},
    )


@register_attention("neural", NeuralOptions)
class Neural(Kind):
    """One clustering of the layer's input, shared by the heads; queries and keys alike."""

    @staticmethod
    def declare(options: NeuralOptions, shape: Shape) -> Traits:
        return Traits(
            per_token=_normalizer(options, shape) == "average",
            per_token_with="normalizer=average",
            reads_qk=False,
            needs_centroids=not options.own_centroids,
        )

    def __init__(self, options: NeuralOptions, shape: Shape):
        super().__init__(options, shape)
        if shape.causal and not options.own_centroids:
            why = "for centroids that are handed on sum over later tokens"
            raise OptionError("own_centroids", False, f"True in a causal model, {why}")
        how = {"similarity": options.similarity, "temperature": options.temperature or 0.1}
        how |= {"normalizer": _normalizer(options, shape), "own_centroids": options.own_centroids}
        self.clustering = NeuralClustering(shape.embed_dim, options.clusters, **how)

    def assign(self, tokens: Tokens, state: State) -> tuple[Assignment, State]:
        handed_on = self.rule.needs_centroids
        given = tokens.x, tokens.padding_mask, tokens.centroids if handed_on else None, state
        clusters, report, state = self.clustering(*given, reports=not tokens.decoding)
        clusters, updated = clusters.unsqueeze(1), report.centroids if handed_on else None
        report = report._replace(clusters=clusters, centroids=updated)
        return Assignment.once(clusters, report=report), state


def _normalizer(options: NeuralOptions, shape: Shape) -> str:
    """What depends on later tokens anyway uses the normaliser of the paper."""
    by_tokens = shape.causal and options.rule == "recent"
    return options.normalizer if by_tokens else "sentence"
