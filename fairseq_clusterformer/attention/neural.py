"""Neural clustering attention (CF22): a query sees tokens of its own, learned cluster.

The paper's eq. 2 is similarity dot at temperature 1, which may diverge; the default is not.
"""

from dataclasses import dataclass

from ..clustering import NeuralClustering, State
from ..clustering.fuzzy import SIMILARITIES
from .kind import Assignment, Kind, Shape, Tokens, register_attention
from .options import ClusterOptions, OptionError, option, rule_option


@dataclass(frozen=True)
class FuzzyOptions(ClusterOptions):
    """Options of kinds that assign by a similarity over a temperature (CF22 eq. 2)."""

    similarity: str = option(
        "cosine",
        "similarity of tokens and centroids",
        flag="cluster_similarity",
        choices=SIMILARITIES,
    )
    temperature: float | None = option(
        None,
        "number that divides the similarity before the softmax (default: 0.2 for gated heads, 0.1 "
        "for the others)",
        flag="cluster_temperature",
        above=0,
    )

    def temperature_or(self, suits: float) -> float:
        """The temperature, or what suits the kind."""
        return suits if self.temperature is None else self.temperature


@dataclass(frozen=True)
class NeuralOptions(FuzzyOptions):
    """Options of neural clustering."""

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

    learner, reads_qk = "clustering", False
    per_token_with = "normalizer=average"

    def __init__(self, options: NeuralOptions, shape: Shape):
        super().__init__(options, shape)
        if shape.causal and not options.own_centroids:
            raise OptionError(
                "own_centroids",
                False,
                "True in a causal model, for centroids that are handed on sum over later tokens",
            )
        self.needs_centroids = not options.own_centroids
        # What depends on later tokens anyway uses the normaliser of the paper.
        normalizer = options.normalizer if self.can_step else "sentence"
        self.per_token = normalizer == "average"
        self.clustering = NeuralClustering(
            shape.embed_dim,
            options.clusters,
            similarity=options.similarity,
            temperature=options.temperature_or(0.1),
            normalizer=normalizer,
            own_centroids=options.own_centroids,
        )

    def assign(self, tokens: Tokens, state: State) -> tuple[Assignment, State]:
        clusters, report, state = self.clustering.assign(
            tokens.x,
            tokens.padding_mask,
            tokens.centroids if self.needs_centroids else None,
            state,
            reports=not tokens.decoding,
        )
        clusters = clusters.unsqueeze(1)
        updated = report.centroids if self.needs_centroids else None
        report = report._replace(clusters=clusters, centroids=updated)
        return Assignment(clusters, report=report), state
