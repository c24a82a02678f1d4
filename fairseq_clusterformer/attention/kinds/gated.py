"""Gated clustering: clusters that the task teaches.

In the papers one clustering serves a token as query and as key, and no gradient of the task
reaches it. Here a query and a key of a head are assigned apart, and how sure a key was of its
cluster weighs what it gives there: with p the softmax over clusters of the key's scores,

    logit of an earlier key = q . k / sqrt(E) + log p(cluster of the key)

so a key that helps nobody in its cluster is pushed out of it, until it comes to where it helps.
Queries of another cluster never see a key that would help them, so it gets no gradient. In
training some keys are therefore put into a cluster drawn at random, as if they were sure of it: a
bias of 0 there, with the gradient of log p. One that helps there is drawn to it.
"""

from dataclasses import dataclass

import torch
from torch import nn

from ...clustering import AverageNormalizer, Report, State
from ...clustering.fuzzy import Similarity
from ...clustering.shares import assign_both
from ..kind import Kind, Traits
from ..options import FuzzyOptions, option, register_attention
from ..tokens import Assignment, Shape, Tokens


@dataclass(frozen=True)
class GatedOptions(FuzzyOptions):
    exploration: float = option(
        0.1,
        "share of the keys of gated heads that training puts into a random cluster",
        flag="cluster_exploration",
        at_least=0,
        below=1,
    )


@register_attention("gated", GatedOptions)
class Gated(Kind):
    """Each head clusters its queries and its keys, apart, around the same centroids. Parameters
    learn from the task alone: the losses of CF22 (eq. 6 and 11) are not for this kind."""

    @staticmethod
    def declare(options: GatedOptions, shape: Shape) -> Traits:
        return Traits(own="always")  # which may lie in another cluster

    def __init__(self, options: GatedOptions, shape: Shape):
        super().__init__(options, shape)
        self.similarity = Similarity(options.similarity)
        self.temperature = options.temperature or 0.2
        clusters, width = (shape.num_heads, options.clusters), shape.head_dim
        self.centroids = nn.Parameter(torch.randn(*clusters, width) * width**-0.5)
        self.normalizer = AverageNormalizer((2, *clusters))  # of queries, and of keys

    def assign(self, tokens: Tokens, state: State) -> tuple[Assignment, State]:
        how = {"similarity": self.similarity, "temperature": self.temperature}
        how |= {"log_normalizer": self.normalizer.log_normalizer, "impl": tokens.impl}
        how["exploration"] = self.options.exploration if self.training else 0.0
        given = tokens.q, tokens.k, self.centroids
        found = assign_both(*given, padding_mask=tokens.padding_mask, **how)
        seen = self.normalizer.observation(found.log_mass, found.tokens)
        report = Report(cluster_sizes=found.sizes, clusters=found.queries, observation=seen)
        how = {"key_bias": found.log_share, "report": report}
        return Assignment.once(found.queries, found.keys, **how), state
