"""Attention by locality-sensitive hashing (Reformer, Kitaev et al. 2020)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...clustering import Report, State, cluster_sizes
from ...clustering.fuzzy import lowest_argmax
from ...precision import Float32Buffers, at_least_float32, full_float32
from ..kind import Kind, Traits
from ..options import ClusterOptions, option, register_attention, rule_option
from ..tokens import Assignment, Round, Shape, Tokens


@dataclass(frozen=True)
class LshOptions(ClusterOptions):
    rule: str = rule_option("recent", "chunk")
    rounds: int = option(2, "hashes of each token in lsh heads", flag="hash_rounds", at_least=1)


@register_attention("lsh", LshOptions)
class Lsh(Float32Buffers, Kind):
    """A query sees keys of its own bucket, in each round. A token's query and key are one vector,
    the key at length 1; so that its own key does not outweigh all others, it counts only where
    nothing else is seen. A key that shares a bucket with the query in several rounds counts that
    often, and W is of each round. By the rule "chunk" buckets may differ, as by default in the
    package reformer-pytorch; the paper also hides keys of other buckets, and counts a key once.

    Each training step draws its rotations anew, from torch's generator, whose state activation
    checkpoints replay; evaluation and decoding use those of the checkpoint.
    """

    @staticmethod
    def declare(options: LshOptions, shape: Shape) -> Traits:
        return Traits(own="fallback", least_gap=int(options.rule == "recent"))

    def __init__(self, options: LshOptions, shape: Shape):
        super().__init__(options, shape)
        directions = -(-options.clusters // 2)  # two buckets each, or one of the last
        sizes = options.rounds, shape.num_heads, shape.head_dim, directions
        self.register_buffer("rotations", torch.randn(sizes))

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        shared = (q + k) * 0.5**0.5  # of the variance of one
        return shared, nn.functional.normalize(at_least_float32(shared), dim=-1).to(shared.dtype)

    def assign(self, tokens: Tokens, state: State) -> tuple[Assignment, State]:
        count, rotations = self.options.clusters, self.rotations
        rotations = torch.randn_like(rotations) if self.training else rotations
        with torch.no_grad(), full_float32():
            turned = [tokens.k @ rotation for rotation in rotations.to(tokens.k.dtype)]
            # Of an odd number of buckets, the last direction has one.
            buckets = [lowest_argmax(torch.cat([t, -t], dim=-1)[..., :count]) for t in turned]
        rounds = tuple(Round((of_round,)) for of_round in buckets)
        if tokens.decoding:
            return Assignment(rounds), state
        sizes = cluster_sizes(torch.cat(buckets, dim=1), count, tokens.padding_mask)
        report = Report(cluster_sizes=sizes, clusters=buckets[0])
        return Assignment(rounds, report=report), state
