"""How evenly clusters are used, in numbers for a criterion, and how well they match labels."""

from typing import NamedTuple

import torch
from torch import Tensor

from .report import Report

LOSSES = ("clustering_loss", "sorting_loss", "routing_loss")


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


@torch.no_grad()
def cluster_sizes(
    clusters: Tensor, num_clusters: int, padding_mask: Tensor | None = None
) -> Tensor:
    """Tokens in each cluster over a batch, float32 [G, K].

    Args:
        clusters: of several clusterings, int64 [B, G, N] in [0, K).
        num_clusters: K.
        padding_mask: bool [B, N], True where a token is padding.
    """
    if padding_mask is not None:
        clusters = clusters.masked_fill(padding_mask.unsqueeze(1), num_clusters)
    members = clusters.transpose(0, 1).flatten(1)
    sizes = torch.zeros(len(members), num_clusters + 1, device=members.device)
    return sizes.scatter_add_(1, members, sizes.new_ones(()).expand_as(members))[:, :-1]


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
        Float32 scalars: each of ``LOSSES``, a mean over the layers that have it, so that its
        weight means the same at any depth; ``cluster_`` and each field of :class:`ClusterUse`,
        means too; and ``SIDE_cluster_effective`` of each side that clusters.
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
    for name in LOSSES:
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


def majority_accuracy(
    train_clusters: Tensor,
    train_labels: Tensor,
    clusters: Tensor,
    labels: Tensor,
) -> float:
    """Share of vectors that have their cluster's label, from 0 to 1.

    A cluster's label is the most frequent one of its members in training (the lowest of several);
    a vector in a cluster that had none counts as wrong. All int64, [N] of training and [M].
    """
    size = (int(max(train_clusters.max(), clusters.max())) + 1, int(train_labels.max()) + 1)
    counts = torch.zeros(size, dtype=torch.long)
    counts.index_put_((train_clusters, train_labels), torch.tensor(1), accumulate=True)
    most, majority = counts.max(1)
    majority = torch.where(most > 0, counts.argmax(1), -1)
    return float((majority[clusters] == labels).double().mean())
