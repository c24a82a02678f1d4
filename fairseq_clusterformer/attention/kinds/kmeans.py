"""Attention within clusters that K-Means finds from time to time (CF20)."""

from dataclasses import dataclass

from ...clustering import KMeansClustering, Report, State, cluster_sizes
from ..kind import Kind, Sight, Text, Traits
from ..layout import own_chunk_layout
from ..options import IndexOptions, OptionError, option, register_attention, rule_option
from ..tokens import Assignment, Shape, Tokens


@dataclass(frozen=True)
class KMeansOptions(IndexOptions):
    rule: str = rule_option("recent", "chunk")
    bank_size: int = option(
        100_000, "number of latest states that kmeans heads cluster", flag="kmeans_bank_size"
    )
    interval: int = option(
        0,
        "updates between two runs of K-Means; 0: one run per epoch",
        flag="kmeans_interval",
        at_least=0,
    )

    def __post_init__(self):
        super().__post_init__()
        if self.bank_size < self.clusters:
            allowed = f"{self.clusters} or more, the clusters"
            raise OptionError("bank_size", self.bank_size, allowed)


@register_attention("kmeans", KMeansOptions)
class KMeans(Kind):
    """One clustering of the layer's input, shared by the heads; queries and keys alike. Rule
    "chunk" (the paper's, for encoders): a query sees its chunk of W tokens, sorted by cluster."""

    @staticmethod
    def declare(options: KMeansOptions, shape: Shape) -> Traits:
        return Traits(reads_qk=False)

    def __init__(self, options: KMeansOptions, shape: Shape):
        super().__init__(options, shape)
        how = {"bank_size": options.bank_size, "interval": options.interval}
        self.clustering = KMeansClustering(shape.embed_dim, options.clusters, **how)

    def assign(self, tokens: Tokens, state: State) -> tuple[Assignment, State]:
        x, mask = tokens.x, tokens.padding_mask
        clusters = self.clustering(x).unsqueeze(1)
        if tokens.decoding:
            return Assignment.once(clusters), state
        sizes = cluster_sizes(clusters, self.options.clusters, mask)[0]
        seen = self.clustering.observation(x, mask) if self.training else None
        report = Report(cluster_sizes=sizes, clusters=clusters, observation=seen)
        return Assignment.once(clusters, report=report), state

    def chunks(self, text: Text) -> Sight:
        (clusters,), _ = text.rounds[0]
        rule, mask = self.rule, text.batch.padding_mask
        return Sight((own_chunk_layout(clusters, rule.clusters, rule.window, padding_mask=mask),))
