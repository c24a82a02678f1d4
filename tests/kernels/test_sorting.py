"""Sorting by cluster against Python's."""

import pytest
import torch

from fairseq_clusterformer.kernels.kernel import sort_by_cluster

CASES = [
    ((1, 1, 1), 1),
    ((2, 1, 127), 5),
    ((2, 2, 128), 1),
    ((1, 3, 300), 300),
    ((3, 1, 257), 7),
    ((2, 1, 130), 1 << 15),
    ((2, 1, 130), 50_000),
]


@pytest.mark.parametrize(("shape", "num_clusters"), CASES)
def test_by_cluster_then_by_position(shape, num_clusters):
    length = shape[-1]
    clusters = torch.randint(num_clusters, shape)
    order, codes = sort_by_cluster(clusters, num_clusters)
    for row, slots, numbers in zip(
        clusters.view(-1, length).tolist(),
        order.view(-1, length).tolist(),
        codes.view(-1, length).tolist(),
        strict=True,
    ):
        assert slots == sorted(range(length), key=row.__getitem__)
        assert numbers == [row[token] * length + token for token in slots]
