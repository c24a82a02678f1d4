"""What layers learn from data other than by gradient."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from fairseq_clusterformer.attention import MultiheadAttention
from fairseq_clusterformer.clustering import KMeansClustering, fuzzy
from fairseq_clusterformer.clustering.learner import SphericalMeans

from ..kinds import pads

LENGTH, WIDTH = 15, 8
KINDS = ("neural", "gated", "routing", "taught(drop_keys=0.4,routing_convolution=0)")


def layer(kind: str) -> MultiheadAttention:
    torch.manual_seed(1)
    return MultiheadAttention(WIDTH, 2, kinds=kind, causal=True).double().train()


def learned(module: MultiheadAttention) -> list[Tensor]:
    """What observations change, committed."""
    module.commit()
    return [buffer.clone() for buffer in module.buffers()]


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def test_two_workers_observe_what_one_does_with_twice_the_batch(kind):
    together, apart = layer(kind), layer(kind)
    x = torch.randn(4, LENGTH, WIDTH, dtype=torch.float64)
    mask = pads([LENGTH, 3, 1, 0], LENGTH, "right")
    if "drop" in kind:  # the least gate is a batch's own
        x, mask = x[:1].expand(4, -1, -1), mask[:1].expand(4, -1)
    together.observe(together(x, mask)[1])
    for part in (slice(0, 1), slice(1, 4)):
        apart.observe(apart(x[part], mask[part])[1])
    learner = apart.routers[0].learner
    learner.observe(learner.take())  # as they are exchanged: nothing is left behind
    found = learned(apart)
    torch.testing.assert_close(found, learned(together))
    torch.testing.assert_close(learned(apart), found)  # nothing new was observed


def test_an_overflow_is_dropped_and_the_first_observation_taken_as_it_is(kind):
    module, other, x = layer(kind), layer(kind), torch.randn(2, LENGTH, WIDTH).double()
    before = [buffer.clone() for buffer in module.buffers()]
    broken = x.clone()
    broken[0, 3] = math.inf
    module.observe(module(broken)[1])
    assert all(map(torch.equal, learned(module), before))
    for of in (module, other):
        of.observe(of(x)[1])
    found = learned(module)
    assert all(map(torch.equal, found, learned(other)))
    assert all(t.isfinite().all() or (t == -math.inf).all() for t in found)
    assert not all(map(torch.equal, found, before))


@pytest.mark.parametrize("limit", [1, 1 << 20])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_nearest_alone(limit, dtype, monkeypatch):
    monkeypatch.setattr(fuzzy, "CHUNK_NUMBERS_CPU", limit)
    means, x = SphericalMeans(2, 5, 6), torch.randn(3, 100, 2, 6, dtype=dtype).transpose(1, 2)
    torch.testing.assert_close(means.centroids.norm(dim=-1), torch.ones(2, 5))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype != torch.float64):
        clusters, cosines = fuzzy.nearest_by_cosine(x, means.centroids), means(x)
    centroids = means.centroids.to(torch.float64)
    expected = torch.einsum("bhne,hke->bhnk", normalize(x.double(), dim=-1), centroids)
    assert torch.equal(clusters, expected.argmax(-1))
    torch.testing.assert_close(cosines.double(), expected, rtol=0, atol=1e-6)

    kmeans = KMeansClustering(6, 5, bank_size=5, interval=0)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype != torch.float64):
        of_one = kmeans(x[:, 0])
    cosines = normalize(x[:, 0].double(), dim=-1) @ kmeans.centroids.double().t()
    assert torch.equal(of_one, cosines.argmax(-1))


def test_sums_are_the_same_each_time():
    means, x = SphericalMeans(4, 8, 64), torch.randn(2, 4, 3000, 64)
    clusters, threads = fuzzy.nearest_by_cosine(x, means.centroids), torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        first, *others = [means.sums(x, clusters, None) for _ in range(5)]
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(first, other) for other in others)
