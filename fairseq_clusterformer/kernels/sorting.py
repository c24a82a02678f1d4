"""Tokens in the order of their clusters."""

from importlib.util import find_spec

import torch
from torch import Tensor

# Beyond, the counting sort's table of clusters by tiles of tokens costs more than sorting does.
MOST_CLUSTERS = 1024


def sort_by_cluster(
    clusters: Tensor, num_clusters: int, impl: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Tokens by cluster, then by position: exact and stable, whatever sorts them.

    Args:
        clusters: int64 [..., N] in [0, K).
        num_clusters: K.
        impl: of :func:`~fairseq_clusterformer.kernels.ranged_attention`; "triton" is a counting
            sort, "auto" the same on CUDA where Triton is installed, the others are torch's sort.
            So is every one beyond 1,024 clusters, and in what torch.compile traces.

    Returns:
        The token at each slot, and ``cluster * N + token`` of each slot; int64 [..., N].
    """
    if impl == "auto" and clusters.is_cuda and find_spec("triton") is not None:
        impl = "triton"
    if impl == "triton" and num_clusters <= MOST_CLUSTERS and not torch.compiler.is_compiling():
        from .triton import counting_sort

        return counting_sort(clusters, num_clusters)
    length = clusters.size(-1)
    codes = clusters * length + torch.arange(length, device=clusters.device)
    codes, order = codes.sort(dim=-1)
    return order, codes
