"""What hashing promises; routing heads, and how their centroids move."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..kinds import pads
from .plain import BATCH, HEADS, WIDTH, layer, projected

LENGTH = 17


def inputs(batch: int = BATCH) -> Tensor:
    return torch.randn(batch, LENGTH, WIDTH, dtype=torch.float64)


def nearest(vector: Tensor, centroids: Tensor) -> int:
    cosines = [float(vector @ centroid) for centroid in centroids]  # of length 1
    return cosines.index(max(cosines))


def moved_by_a_loop(centroids: Tensor, vectors: Tensor, momentum: float) -> Tensor:
    """The centroids [K, E] of one head after an update that saw vectors [n, E]."""
    unit = [vector / math.sqrt(float(vector @ vector)) for vector in vectors]
    members: dict[int, list[Tensor]] = {c: [] for c in range(len(centroids))}
    for vector in unit:
        members[nearest(vector, centroids)].append(vector)
    moved = []
    for c, centroid in enumerate(centroids):
        total = sum(members[c] or unit)
        target = total / math.sqrt(float(total @ total))
        new = momentum * centroid + (1 - momentum) * target
        moved.append(new / math.sqrt(float(new @ new)))
    return torch.stack(moved)


@torch.no_grad()
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("num_clusters", [3, 40])
def test_centroids_are_a_moving_average(causal, num_clusters):
    module = layer("routing", causal=causal, num_clusters=num_clusters).train()
    means = module.routers[0].means
    means.momentum = 0.75
    mask = pads([LENGTH, 9], LENGTH, "right")
    for _ in range(3):
        batches = [inputs() for _ in range(2)]
        before = means.centroids.clone()
        seen: list[list[Tensor]] = [[] for _ in range(HEADS)]
        for batch in batches:
            module.observe(module(batch, mask)[1])
            q, k, _ = projected(module, batch)
            for vectors in (q,) if causal else (q, k):
                for head in range(HEADS):
                    seen[head].append(vectors[:, head][~mask])
        assert torch.equal(means.centroids, before)  # fixed while a batch runs
        module.commit()
        for head in range(HEADS):
            expected = moved_by_a_loop(before[head], torch.cat(seen[head]), 0.75)
            torch.testing.assert_close(means.centroids[head], expected)
    before = means.centroids.clone()
    module.commit()  # nothing new was observed
    means.observe(means.take())
    module.commit()
    assert torch.equal(means.centroids, before)


@torch.no_grad()
def test_keys_are_queries_at_length_1():
    q, k, _ = projected(layer("lsh", causal=True), inputs())
    torch.testing.assert_close(k, normalize(q, dim=-1))


@torch.no_grad()
def test_rotations_change_in_training_only():
    module, x = layer("lsh", causal=True, num_clusters=4), inputs()
    kept = module.routers[0].rotations.clone()
    assert torch.equal(module(x)[0], module(x)[0])
    module.train()
    assert not torch.allclose(module(x)[0], module(x)[0])
    assert torch.equal(module.routers[0].rotations, kept)
    assert "routers.0.rotations" in module.state_dict()


@torch.no_grad()
def test_bucket_sizes_are_reported():
    module = layer("lsh", causal=True, num_clusters=3)
    (report,) = module(inputs())[1]
    assert report.cluster_sizes.shape == (2 * 2, 3)  # rounds and heads
    assert report.cluster_sizes.sum(-1).eq(BATCH * LENGTH).all()
    assert report.clustering_loss is None
