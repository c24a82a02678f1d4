"""What is handed from routing to the rest of a model."""

from typing import NamedTuple

from torch import Tensor

#: State of step-by-step decoding; every tensor has the batch first.
State = dict[str, Tensor]


class Report(NamedTuple):
    """What a router says about one forward pass, besides the layout.

    Tensors only, so that a report can leave an activation checkpoint; None where a kind has
    nothing to say.

    Attributes:
        clustering_loss: float32 scalar, CF22 eq. 6, a mean over real tokens.
        sorting_loss: float32 scalar, CF22 eq. 11, a mean over rows weighted by their real tokens.
        routing_loss: float32 scalar, what teaches clusters where attention goes: minus the nats by
            which attention lands in a query's cluster more often than by chance.
        cluster_sizes: tokens in each cluster over the batch, float32 [K]; of several clusterings
            in one layer, [..., K].
        clusters: of each query, int64 [B, G, N] where G heads cluster apart, or G = 1; at padding
            it has no meaning. Of several hash rounds, the first.
        centroids: updated centroids for the next layer, CF22 eq. 3, float32 [B, K, D].
        observation: what the router wants to remember of a training batch, once the forward
            pass is over; of a shape that the kind chooses.
    """

    clustering_loss: Tensor | None = None
    sorting_loss: Tensor | None = None
    routing_loss: Tensor | None = None
    cluster_sizes: Tensor | None = None
    clusters: Tensor | None = None
    centroids: Tensor | None = None
    observation: Tensor | None = None
