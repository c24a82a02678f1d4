"""What the routers of a model decide about a batch: clusters, and who sees whom."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..kernels import Layout, times_seen
from .kind import LAST_RESORT, Kind, Seen


def token_clusters(model: nn.Module, *inputs, **named_inputs) -> dict[str, Tensor]:
    """Run a model, any module with routers in it, on its inputs once; call ``eval()`` first, or
    dropout has a say. Returns the clusters of the queries, int64 [B, G, N] on the CPU, for each
    router that clusters, by its name in the model, such as
    ``decoder.layers.0.self_attn.routers.1``, in the order in which they ran. Raises ValueError: a
    router ran more than once (a model that reads two texts, one by one)."""
    of = _of_routers(lambda seen: seen.assignment.report.clusters, model, *inputs, **named_inputs)
    return {name: clusters.cpu() for name, clusters in of.items() if clusters is not None}


def tokens_seen(model: nn.Module, *inputs, **named_inputs) -> dict[str, Tensor]:
    """As :func:`token_clusters`, of each router which key (the last dimension) each query sees,
    bool [B, G, N, N]; B and G are 1 where all rows or heads agree. It takes N x N of memory. A key
    that counts only where nothing else is seen is seen by such a query alone. The mean of a
    cluster is no key; of an index, these are the keys that it chooses from."""
    return _of_routers(_seen_by_any, model, *inputs, **named_inputs)


def seen_keys(layout: Layout) -> Tensor:
    """Which key (the last dimension) each query of a layout sees, by token, bool [B, G, N, N]; B
    and G are 1 where all rows or heads agree."""
    return times_seen(layout)[..., :-1] > 0


def _seen_by_any(found: Seen) -> Tensor:
    sight = found.sight
    seen = torch.stack(torch.broadcast_tensors(*map(seen_keys, sight.layouts))).any(0)
    if (own := sight.own) is None:
        return seen
    itself = torch.eye(seen.size(-1), dtype=torch.bool, device=seen.device)
    if own.hidden is not None:
        itself = itself & ~own.hidden.unsqueeze(-1)
    if own.bias <= LAST_RESORT:
        itself = itself & ~seen.any(-1, keepdim=True)
    return seen | itself


@torch.no_grad()
def _of_routers(
    of: Callable[[Seen], Any], model: nn.Module, *inputs, **named_inputs
) -> dict[str, Any]:
    """Run a model; what ``of`` makes of each router's decision, by its name."""
    found: dict[str, Any] = {}

    def keep(name: str, module: nn.Module, args: tuple, seen: Seen) -> None:
        if found.get(name) is not None:
            allowed = "allowed: a model that reads one text at a time"
            raise ValueError(f"{name} ran more than once; {allowed}")
        found[name] = of(seen)

    routers = [pair for pair in model.named_modules() if isinstance(pair[1], Kind)]
    hooks = [module.register_forward_hook(partial(keep, name)) for name, module in routers]
    try:
        model(*inputs, **named_inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return found
