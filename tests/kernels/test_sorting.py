"""Sorting by cluster against Python's."""

import pytest
import torch

from fairseq_clusterformer.kernels import sorting
from fairseq_clusterformer.kernels.sorting import MOST_CLUSTERS, sort_by_cluster

from ..conftest import REPO_ROOT  # noqa: F401  sets TRITON_INTERPRET before Triton is imported

CASES = [
    ((1, 1, 1), 1),
    ((2, 1, 127), 5),
    ((2, 2, 128), 1),
    ((1, 3, 300), 300),
    ((3, 1, 257), 7),
    ((2, 1, 130), 1 << 15),
    ((2, 1, 130), 50_000),
]


@pytest.mark.parametrize("impl", ["auto", "blocks", "cpu", "triton"])
@pytest.mark.parametrize(("shape", "num_clusters"), CASES)
def test_by_cluster_then_by_position(impl, shape, num_clusters):
    length = shape[-1]
    clusters = torch.randint(num_clusters, shape)
    order, codes = sort_by_cluster(clusters, num_clusters, impl)
    for row, slots, numbers in zip(
        clusters.view(-1, length).tolist(),
        order.view(-1, length).tolist(),
        codes.view(-1, length).tolist(),
        strict=True,
    ):
        assert slots == sorted(range(length), key=row.__getitem__)
        assert numbers == [row[token] * length + token for token in slots]


@pytest.mark.parametrize("impl", ["triton"])
def test_only_triton_counts_and_only_a_table_of_few_clusters(impl, monkeypatch):
    from fairseq_clusterformer.kernels.triton import sorting as kernels

    counted = []

    def count(clusters, num_clusters):
        counted.append(num_clusters)
        return clusters, clusters

    monkeypatch.setattr(kernels, "counting_sort", count)
    clusters = torch.zeros(1, 1, 4, dtype=torch.long)
    for number in (MOST_CLUSTERS, MOST_CLUSTERS + 1):
        for name in (impl, "blocks", "reference"):
            sorting.sort_by_cluster(clusters, number, name)
    assert counted == [MOST_CLUSTERS]
