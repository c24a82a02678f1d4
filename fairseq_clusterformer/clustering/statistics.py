"""How evenly clusters are used."""

from typing import NamedTuple

import torch
from torch import Tensor


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
    """Statistics of the tokens in each cluster [K]; all zeros count as one empty use."""
    sizes = sizes.float()
    share = sizes / sizes.sum().clamp(min=1.0)
    entropy = -torch.special.xlogy(share, share).sum()
    return ClusterUse(
        entropy=entropy,
        effective=entropy.exp(),
        largest=share.max(),
        empty=(sizes == 0).sum().float(),
    )
