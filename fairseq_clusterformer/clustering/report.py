"""What routing reports to the rest of a model, and how evenly clusters are used."""

from typing import NamedTuple

import torch
from torch import Tensor

#: State of step-by-step decoding; every tensor has the batch first.
State = dict[str, Tensor]
LOSSES = ("clustering_loss", "sorting_loss", "routing_loss")


class Report(NamedTuple):
    """What a router says about one forward pass; None where a kind has nothing to say. Tensors
    only, so that a report can leave an activation checkpoint."""

    #: float32 scalars: CF22 eq. 6, a mean over real tokens; eq. 11, a mean over rows weighted by
    #: their real tokens; and what teaches clusters where attention goes: minus the nats by which
    #: attention lands in a query's cluster more often than by chance
    clustering_loss: Tensor | None = None
    sorting_loss: Tensor | None = None
    routing_loss: Tensor | None = None
    #: tokens in each cluster over the batch, float32 [K]; of several clusterings, [..., K]
    cluster_sizes: Tensor | None = None
    #: of each query, int64 [B, G, N] where G heads cluster apart, or G = 1; at padding it has no
    #: meaning. Of several hash rounds, the first.
    clusters: Tensor | None = None
    #: updated centroids for the next layer, CF22 eq. 3, float32 [B, K, D]
    centroids: Tensor | None = None
    #: what the router wants to remember of a training batch, once the forward pass is over
    observation: Tensor | None = None


class ClusterUse(NamedTuple):
    """Statistics of clusters' shares of the tokens, float32 scalars."""

    entropy: Tensor  # of the shares, in nats
    effective: Tensor  # number of clusters, exp(entropy), from 1 to K
    largest: Tensor  # share of the largest cluster
    empty: Tensor  # number of clusters without a token


@torch.no_grad()
def cluster_sizes(clusters: Tensor, number: int, padding_mask: Tensor | None = None) -> Tensor:
    """Tokens in each of K clusters over a batch, float32 [G, K], by the clusters of several
    clusterings, int64 [B, G, N]; ``padding_mask``, bool [B, N], is True at padding."""
    if padding_mask is not None:  # padding is counted in a cluster K, which is cut off
        clusters = clusters.masked_fill(padding_mask.unsqueeze(1), number)
    members = clusters.transpose(0, 1).flatten(1)
    sizes = torch.zeros(len(members), number + 1, device=members.device)
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
    """What a criterion needs of the reports of each side's layers; None if no layer clusters.
    Returns float32 scalars: each of ``LOSSES``, a mean over the layers that have it, so that its
    weight means the same at any depth; ``cluster_`` and each field of :class:`ClusterUse`, means
    too; and ``SIDE_cluster_effective`` of each side that clusters, such as "encoder"."""
    clustered = [
        (side, report, cluster_use(report.cluster_sizes.detach()))
        for side, layers in reports.items()
        for report in layers
        if report.cluster_sizes is not None
    ]
    if not clustered:
        return None
    values: dict[str, list[Tensor]] = {name: [] for name in LOSSES}
    for side, report, use in clustered:
        of_report = {name: getattr(report, name) for name in LOSSES}
        of_report |= {f"cluster_{name}": value for name, value in use._asdict().items()}
        of_report[f"{side}_cluster_effective"] = use.effective
        for name, value in of_report.items():
            values.setdefault(name, []).extend([] if value is None else [value])
    zero = [use.entropy.new_zeros(())]
    return {name: torch.stack(of_layers or zero).mean() for name, of_layers in values.items()}
