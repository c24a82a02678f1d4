"""What routing reports to the rest of a model."""

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


@torch.no_grad()
def cluster_sizes(clusters: Tensor, number: int, padding_mask: Tensor | None = None) -> Tensor:
    """Tokens in each of K clusters over a batch, float32 [G, K], by the clusters of several
    clusterings, int64 [B, G, N]."""
    if padding_mask is not None:  # padding is counted in a cluster K, which is cut off
        clusters = clusters.masked_fill(padding_mask.unsqueeze(1), number)
    members = clusters.transpose(0, 1).flatten(1)
    sizes = torch.zeros(len(members), number + 1, device=members.device)
    return sizes.scatter_add_(1, members, sizes.new_ones(()).expand_as(members))[:, :-1]
