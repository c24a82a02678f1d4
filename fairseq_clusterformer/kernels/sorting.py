"""Tokens in the order of their clusters."""

from importlib.util import find_spec

import torch
from torch import Tensor

_HAS_TRITON = find_spec("triton") is not None


def sort_by_cluster(clusters: Tensor, num_clusters: int) -> tuple[Tensor, Tensor]:
    """Tokens by cluster, then by position: a counting sort on CUDA with Triton, else torch's.

    Args:
        clusters: int64 [..., N] in [0, K).
        num_clusters: K.

    Returns:
        The token at each slot, and ``cluster * N + token`` of each slot; int64 [..., N].
    """
    if clusters.is_cuda and _HAS_TRITON:
        from .triton import counting_sort

        return counting_sort(clusters, num_clusters)
    length = clusters.size(-1)
    codes = clusters * length + torch.arange(length, device=clusters.device)
    codes, order = codes.sort(dim=-1)
    return order, codes
