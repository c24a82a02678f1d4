"""Which cluster each token of a batch falls into, as a trained model has it.

Shape letters: B batch, G heads that cluster apart (1 if together), N tokens, W window.
"""

from functools import partial

import torch
from torch import Tensor, nn

from .base import Router, Routing


@torch.no_grad()
def token_clusters(model: nn.Module, *inputs, **named_inputs) -> dict[str, Tensor]:
    """Run a model, and return the cluster of each token in each layer that clusters.

    Args:
        model: any module with routers in it; call ``eval()`` first, or dropout has a say.
        inputs, named_inputs: of ``model``, which is called once.

    Returns:
        For each router that clusters, in the order in which they ran, its name in ``model`` (such
        as ``decoder.layers.0.self_attn.routers.1``) and the clusters of the queries, int64
        [B, G, N] on the CPU. Empty if nothing clusters.
    """
    clusters: dict[str, Tensor] = {}

    def keep(name: str, module: nn.Module, args: tuple, routing: Routing) -> None:
        if routing.report.clusters is not None:
            clusters[name] = routing.report.clusters.cpu()

    hooks = [
        module.register_forward_hook(partial(keep, name))
        for name, module in model.named_modules()
        if isinstance(module, Router)
    ]
    try:
        model(*inputs, **named_inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return clusters


def oldest_key_in_sight(clusters: Tensor, window: int) -> Tensor:
    """Position of the oldest key that each query of the causal recent rule sees.

    Args:
        clusters: int64 [N], of one text without padding.
        window: W, keys of its own cluster that a query sees, its own included.

    Returns:
        int64 [N]; at most the query's own position.
    """
    oldest = torch.empty_like(clusters)
    for cluster in clusters.unique():
        (members,) = (clusters == cluster).nonzero(as_tuple=True)
        rank = torch.arange(len(members), device=members.device)
        oldest[members] = members[(rank - window + 1).clamp(min=0)]
    return oldest
