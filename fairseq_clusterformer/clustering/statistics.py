"""How evenly clusters are used, and what a criterion is told of it."""

from typing import NamedTuple

import torch
from torch import Tensor

from .report import Report


class ClusterUse(NamedTuple):
    """Float32 scalars.

    Attributes:
        entropy: of the clusters' shares of the tokens, in nats.
        effective: effective number of clusters, exp(entropy), from 1 to K.
        largest: share of the largest cluster.
        empty: number of clusters without a token.
    """

    entropy: Tensor
    effective: Tensor
    largest: Tensor
    empty: Tensor


def cluster_use(sizes: Tensor) -> ClusterUse:
    """Statistics of the tokens in each cluster [K], or means over several clusterings [..., K];
    all zeros count as one empty use."""
    sizes = sizes.float()
    share = sizes / sizes.sum(-1, keepdim=True).clamp(min=1.0)
    entropy = -torch.special.xlogy(share, share).sum(-1)
    return ClusterUse(
        entropy=entropy.mean(),
        effective=entropy.exp().mean(),
        largest=share.amax(-1).mean(),
        empty=(sizes == 0).sum(-1).float().mean(),
    )


def summary(reports: dict[str, list[Report]]) -> dict[str, Tensor] | None:
    """What a criterion needs of a model's reports; None if no layer clusters.

    Args:
        reports: of the layers of each side of the model, such as "encoder" and "decoder".

    Returns:
        Float32 scalars: ``clustering_loss`` and ``sorting_loss``, means over the layers that
        cluster, so that their weights mean the same at any depth; ``cluster_`` and each field of
        :class:`ClusterUse`, means too; and ``SIDE_cluster_effective`` of each side that clusters.
    """
    sides = {
        side: [report for report in of_side if report.cluster_sizes is not None]
        for side, of_side in reports.items()
    }
    clustered = [report for of_side in sides.values() for report in of_side]
    if not clustered:
        return None

    def mean(values: list[Tensor]) -> Tensor:
        return torch.stack(values).mean()

    found = {}
    for name in ("clustering_loss", "sorting_loss"):
        losses = [getattr(report, name) for report in clustered]
        losses = [loss for loss in losses if loss is not None]
        found[name] = mean(losses) if losses else clustered[0].cluster_sizes.new_zeros(())
    uses = {
        side: [cluster_use(report.cluster_sizes.detach()) for report in of_side]
        for side, of_side in sides.items()
    }
    everywhere = [use for of_side in uses.values() for use in of_side]
    for name in ClusterUse._fields:
        found[f"cluster_{name}"] = mean([getattr(use, name) for use in everywhere])
    for side, of_side in uses.items():
        if of_side:
            found[f"{side}_cluster_effective"] = mean([use.effective for use in of_side])
    return found
