"""Tokens in the order of their clusters."""

from importlib.util import find_spec

import numpy as np
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
            sort of up to 1,024 clusters, "auto" the same on CUDA where Triton is installed. On a
            CPU "auto" and "cpu" are numpy's radix sort of up to 32,768. All else is torch's
            sort, and what torch.compile traces.

    Returns:
        The token at each slot, and ``cluster * N + token`` of each slot; int64 [..., N].
    """
    if impl == "auto" and clusters.is_cuda and find_spec("triton") is not None:
        impl = "triton"
    length, compiled = clusters.size(-1), torch.compiler.is_compiling()
    if impl == "triton" and num_clusters <= MOST_CLUSTERS and not compiled:
        from .triton.sorting import counting_sort

        return counting_sort(clusters, num_clusters)
    on_cpu = clusters.device.type == "cpu" and impl in ("auto", "cpu")
    if on_cpu and num_clusters <= 1 << 15 and not compiled:  # of 16 bits: radix, stable
        numbers = clusters.to(torch.int16).numpy()
        order = torch.from_numpy(np.argsort(numbers, axis=-1, kind="stable"))
        return order, clusters.gather(-1, order).mul_(length).add_(order)
    codes = clusters * length + torch.arange(length, device=clusters.device)
    codes, order = codes.sort(dim=-1)
    return order, codes
