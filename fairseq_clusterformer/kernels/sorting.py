"""Tokens in the order of their clusters."""

import numpy as np
import torch
from torch import Tensor


def sort_by_cluster(clusters: Tensor, num_clusters: int) -> tuple[Tensor, Tensor]:
    """Tokens by cluster, then by position: exact and stable, whatever sorts them. On a CPU that is
    numpy's radix sort of up to 32,768 clusters, else torch's sort, which torch.compile traces.

    Args:
        clusters: int64 [..., N] in [0, K).
        num_clusters: K.

    Returns:
        The token at each slot, and ``cluster * N + token`` of each slot; int64 [..., N].
    """
    length, traced = clusters.size(-1), torch.compiler.is_compiling()
    if clusters.is_cpu and num_clusters <= 1 << 15 and not traced:  # of 16 bits: radix, stable
        numbers = clusters.to(torch.int16).numpy()
        order = torch.from_numpy(np.argsort(numbers, axis=-1, kind="stable"))
        return order, clusters.gather(-1, order).mul_(length).add_(order)
    codes = clusters * length + torch.arange(length, device=clusters.device)
    codes, order = codes.sort(dim=-1)
    return order, codes
