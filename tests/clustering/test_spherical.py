"""Spherical means of a batch in chunks and by index, against all cosines and a one-hot product."""

import pytest
import torch
from torch.nn.functional import normalize, one_hot

from fairseq_clusterformer.clustering import KMeansClustering, fuzzy
from fairseq_clusterformer.clustering.spherical import SphericalMeans

from ..kinds import pads

BATCH, HEADS, LENGTH, WIDTH, CLUSTERS = 3, 2, 100, 6, 5


def vectors(dtype=torch.float64):
    return torch.randn(BATCH, LENGTH, HEADS, WIDTH, dtype=dtype).transpose(1, 2)


@pytest.mark.parametrize("limit", [1, 1 << 20])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_nearest_alone(limit, dtype, monkeypatch):
    monkeypatch.setattr(fuzzy, "CHUNK_NUMBERS_CPU", limit)
    means, x = SphericalMeans(HEADS, CLUSTERS, WIDTH), vectors(dtype)
    torch.testing.assert_close(means.centroids.norm(dim=-1), torch.ones(HEADS, CLUSTERS))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype != torch.float64):
        clusters, cosines = means(x)
        assert torch.equal(means.nearest(x), clusters)
    centroids = means.centroids.to(torch.float64)
    expected = torch.einsum("bhne,hke->bhnk", normalize(x.double(), dim=-1), centroids)
    assert torch.equal(clusters, expected.argmax(-1))
    torch.testing.assert_close(cosines.double(), expected, rtol=0, atol=1e-6)

    kmeans = KMeansClustering(WIDTH, CLUSTERS, bank_size=CLUSTERS, interval=0)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype != torch.float64):
        of_one = kmeans(x[:, 0])
    cosines = normalize(x[:, 0].double(), dim=-1) @ kmeans.centroids.double().t()
    assert torch.equal(of_one, cosines.argmax(-1))


@pytest.mark.parametrize("side", [None, "left", "right"])
def test_sums_of_each_cluster(side):
    means, x = SphericalMeans(HEADS, CLUSTERS, WIDTH), vectors()
    mask = pads([LENGTH, 9, 0], LENGTH, side) if side else None
    real = torch.ones(BATCH, LENGTH, dtype=torch.bool) if mask is None else ~mask
    x = x.masked_fill(~real[:, None, :, None], float("nan"))
    clusters = means.nearest(x)
    members = one_hot(clusters, CLUSTERS).double() * real[:, None, :, None]
    unit = normalize(x.nan_to_num(), dim=-1)
    sums = means.sums(x, clusters, mask)
    torch.testing.assert_close(
        sums[..., :-1], torch.einsum("bhnk,bhne->hke", members, unit), rtol=0, atol=1e-12
    )
    assert torch.equal(sums[..., -1], members.sum((0, 2)))
    means.observe(sums)
    assert torch.equal(means.pending, sums.float())


def test_sums_are_the_same_each_time():
    means, x = SphericalMeans(4, 8, 64), torch.randn(2, 4, 3000, 64)
    clusters, threads = means.nearest(x), torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        first, *others = [means.sums(x, clusters, None) for _ in range(5)]
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(first, other) for other in others)
