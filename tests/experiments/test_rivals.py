"""Rivals without training: the oracle and K-Means against plain loops."""

import pytest
import torch

from examples.language_model.rivals import BLOCK, RIVALS, Sight, few_keys
from fairseq_clusterformer.clustering.kmeans import kmeans

SIGHT = Sight(near=8, sinks=2, clusters=5, probes=2, window=3)
H, N, E = 2, BLOCK + 40, 4


def _seen_by_heaviest(q, k, far: list[int], centroids) -> set[int]:
    return set(sorted(far, key=lambda j: -float(q @ k[j]))[: SIGHT.probes * SIGHT.window])


def _seen_by_clusters(q, k, far: list[int], centroids) -> set[int]:
    cluster = [int((centroids - key).norm(dim=-1).argmin()) for key in k]
    looked_into = sorted(range(SIGHT.clusters), key=lambda c: -float(q @ centroids[c]))
    seen = set()
    for c in looked_into[: SIGHT.probes]:
        seen |= set([j for j in far if cluster[j] == c][-SIGHT.window :])
    return seen


@pytest.mark.parametrize(
    ("name", "choose"), [*zip(RIVALS, (_seen_by_heaviest, _seen_by_clusters), strict=True)]
)
def test_equal_to_a_loop(name, choose):
    torch.manual_seed(1)
    q, k, v = torch.randn(3, H, N, E)
    found = few_keys(q, k, v, RIVALS[name], SIGHT)
    for head in range(H):
        centroids = kmeans(k[head], SIGHT.clusters, spherical=False)
        for i in (0, 3, 9, 60, BLOCK - 1, BLOCK, N - 1):
            near = {j for j in range(i + 1) if j < SIGHT.sinks or j > i - SIGHT.near}
            far = [j for j in range(i + 1) if j not in near]
            seen = sorted(near | choose(q[head, i], k[head], far, centroids))
            weights = (k[head, seen] @ q[head, i] / E**0.5).softmax(0)
            torch.testing.assert_close(found[head, i], weights @ v[head, seen])
