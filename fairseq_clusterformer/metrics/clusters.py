"""How evenly the layers of a model use their clusters, and what the clusters lose."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..clustering import LOSSES, Report


class ClusterUse(NamedTuple):
    """Statistics of clusters' shares of the tokens, float32 scalars."""

    entropy: Tensor  # of the shares, in nats
    effective: Tensor  # number of clusters, exp(entropy), from 1 to K
    largest: Tensor  # share of the largest cluster
    empty: Tensor  # number of clusters without a token


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
