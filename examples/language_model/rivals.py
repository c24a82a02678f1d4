"""A dense language model whose queries see few keys, without any training.

Each query sees sinks, the latest keys, and so many others: those with the largest logits, which an
oracle knows; or the latest of some clusters of the text's keys. Clusters are found by K-Means, and
chosen by the query's product with their centroids (ClusterKV, Liu et al. 2024). Both look at the
whole text first: they can score texts, and not write.

Shape letters: H heads, N tokens, n of a block of queries, E head width, K clusters.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fairseq_clusterformer.attention import Batch
from fairseq_clusterformer.attention.heads import Projected
from fairseq_clusterformer.checkpoints.load import Loaded
from fairseq_clusterformer.clustering import Report
from fairseq_clusterformer.clustering.kmeans import kmeans
from fairseq_clusterformer.conversion.convert import rebuilt
from fairseq_clusterformer.conversion.model import attentions
from fairseq_clusterformer.errors import UserError

BLOCK = 256  # queries at once


class Sight(NamedTuple):
    """What a query sees besides the first ``sinks`` tokens and the latest ``near``."""

    near: int
    sinks: int
    clusters: int  # K of the text's keys
    probes: int  # of which it looks into so many
    window: int  # and sees the latest so many keys of each

    @property
    def far(self) -> int:
        """Most keys beyond the latest, and as many as the oracle shows."""
        return self.probes * self.window


def sight_of(model: nn.Module) -> Sight:
    """What the kind that sees most keys of a model shows a query, on one side; UserError for a
    model that sees all."""
    kinds = [router for layer in attentions(model).values() for router in layer.routers]
    if any(kind.rule.window is None for kind in kinds):
        raise UserError("CHECKPOINT has heads of the kind full; allowed: kinds with a window")
    sights = []
    for kind in kinds:
        clusters, probes = (getattr(kind.options, name, 1) for name in ("clusters", "probes"))
        rule = kind.rule
        sights.append(Sight(rule.gap, rule.sinks, clusters, probes, rule.by_cluster))
    most = max(sights, key=lambda sight: sight.near + sight.far)
    return most._replace(sinks=max(sight.sinks for sight in sights))


#: given which queries of a row, and logits [H, n, N], -inf where a key is not far: which keys are
#: seen, bool [H, n, N]
Choice = Callable[[slice, Tensor], Tensor]


def heaviest(sight: Sight, q: Tensor, k: Tensor) -> Choice:
    """The far keys of the largest logits."""

    def choose(_: slice, far: Tensor) -> Tensor:
        best = far.topk(min(sight.far, far.size(-1)), dim=-1)
        seen = torch.zeros_like(far, dtype=torch.bool)
        return seen.scatter(-1, best.indices, best.values > -torch.inf)

    return choose


def by_kmeans(sight: Sight, q: Tensor, k: Tensor) -> Choice:
    """The latest far keys of the clusters whose centroids have the largest products with queries
    [H, N, E]; heads that share keys [H, N, E] have the same clusters."""
    number = min(sight.clusters, k.size(1))
    centroids = torch.stack([kmeans(of_head, number, spherical=False) for of_head in k])
    of_keys = torch.cdist(k, centroids).argmin(-1)  # [H, N]
    chosen = (q @ centroids.mT).topk(min(sight.probes, number), dim=-1).indices  # [H, N, probes]

    def choose(block: slice, far: Tensor) -> Tensor:
        seen = torch.zeros_like(far, dtype=torch.bool)
        for cluster in chosen[:, block].unbind(-1):
            inside = (of_keys[:, None] == cluster[..., None]) & (far > -torch.inf)
            later = inside.flip(-1).cumsum(-1).flip(-1)  # keys of the cluster from here on
            seen |= inside & (later <= sight.window)
        return seen

    return choose


RIVALS = {"oracle": heaviest, "K-Means of the text's keys": by_kmeans}


def rival(dense: Loaded, name: str, sight: Sight) -> Loaded:
    """A copy of a dense model that sees by one of ``RIVALS``."""
    found = rebuilt(dense, {"decoder": "full"})
    for attention in attentions(found.model).values():

        def attend(i: int, heads: Projected, batch: Batch, _, given: dict, of=attention):
            qkv = of._of_kind(i, heads, batch, given)[1].repeated()
            rows = zip(qkv.q, qkv.k, qkv.v, strict=True)
            out = torch.stack([few_keys(*row, RIVALS[name], sight) for row in rows])
            return out, None, Report()

        attention._attend = attend
    return found


def few_keys(q: Tensor, k: Tensor, v: Tensor, rule: Callable, sight: Sight) -> Tensor:
    """Causal attention of a row over the keys that a rule of ``RIVALS`` shows, [H, N, E]."""
    choose, place = rule(sight, q, k), torch.arange(q.size(1))
    outputs = []
    for first in range(0, q.size(1), BLOCK):
        block = slice(first, first + BLOCK)
        logits = q[:, block] @ k.mT * q.size(-1) ** -0.5
        behind = place[block, None] - place  # how far a key stands back
        near = (behind >= 0) & ((behind < sight.near) | (place < sight.sinks))
        far = logits.masked_fill((behind < 0) | near, -torch.inf)
        seen = choose(block, far) | near
        outputs.append(logits.masked_fill(~seen, -torch.inf).softmax(-1) @ v)
    return torch.cat(outputs, dim=1)
