"""Neural clustering against plain-loop transcriptions of the paper's equations, in float64."""

import math

import pytest
import torch

from fairseq_clusterformer.clustering import NeuralClustering
from fairseq_clusterformer.metrics.clusters import cluster_use

BATCH, LENGTH, WIDTH, CLUSTERS = 2, 9, 6, 4
SIMILARITIES = ("dot", "scaled-dot", "cosine")


def phi(a, b, similarity):
    product = float(a @ b)
    if similarity == "cosine":
        return product / (float(a.norm()) * float(b.norm()))
    return product / math.sqrt(len(a)) if similarity == "scaled-dot" else product


def paper(x, centroids, w_c, similarity, temperature):
    """CF22 eq. 2-4, 6 and 11 for one row of real tokens [n, D], one number at a time."""
    n, k = len(x), len(centroids)
    keys = [w_c @ token for token in x]  # X_j W^C
    exponents = [
        [phi(centroids[i], keys[j], similarity) / temperature for j in range(n)] for i in range(k)
    ]
    u = [[math.exp(s) / sum(math.exp(t) for t in row) for s in row] for row in exponents]  # eq. 2
    updated = [sum(u[i][j] * keys[j] for j in range(n)) for i in range(k)]  # eq. 3
    assigned = [max(range(k), key=lambda i: u[i][j]) for j in range(n)]  # eq. 4
    l1 = -sum(phi(x[j], updated[assigned[j]], similarity) for j in range(n)) / n  # eq. 6
    ring = sum(phi(updated[i], updated[i - 1], similarity) for i in range(1, k))
    l2 = -(ring + phi(updated[0], updated[k - 1], similarity)) / k  # eq. 11
    return exponents, updated, assigned, l1, l2


def make(similarity="cosine", normalizer="sentence", temperature=0.5):
    module = NeuralClustering(
        WIDTH, CLUSTERS, similarity=similarity, normalizer=normalizer, temperature=temperature
    )
    return module.double()


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("lengths", [[LENGTH, LENGTH], [LENGTH, 4]])
def test_equations_2_to_6_and_11(similarity, lengths):
    module = make(similarity)
    x = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    mask = torch.arange(LENGTH) >= torch.tensor(lengths).unsqueeze(-1)
    clusters, report, _ = module(x, mask if mask.any() else None)
    l1 = l2 = 0.0
    sizes = [0] * CLUSTERS
    for row, n in enumerate(lengths):
        _, updated, assigned, row_l1, row_l2 = paper(
            x[row, :n], module.centroids.detach(), module.w_c.weight.detach(), similarity, 0.5
        )
        assert clusters[row, :n].tolist() == assigned
        torch.testing.assert_close(report.centroids[row], torch.stack(updated))
        l1 += row_l1 * n / sum(lengths)
        l2 += row_l2 * n / sum(lengths)
        for cluster in assigned:
            sizes[cluster] += 1
    torch.testing.assert_close(report.clustering_loss.item(), l1)
    torch.testing.assert_close(report.sorting_loss.item(), l2)
    assert report.cluster_sizes.tolist() == sizes


def test_the_average_normaliser_is_the_mean_over_what_was_seen():
    module = make(normalizer="average")
    module.momentum = 0.75
    expected = None
    for _ in range(3):
        batches = [torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64) for _ in range(2)]
        before = module.log_normalizer.clone()
        for batch in batches:
            _, report, _ = module(batch)
            module.observe(report.observation)
        assert torch.equal(module.log_normalizer, before)  # fixed while a batch runs
        module.commit()
        tokens = torch.cat(batches).flatten(0, 1)
        exponents = torch.tensor(
            paper(tokens, module.centroids.detach(), module.w_c.weight.detach(), "cosine", 0.5)[0],
            dtype=torch.float64,
        )
        seen = exponents.exp().mean(1).log()
        expected = seen if expected is None else 0.75 * expected + 0.25 * seen
        torch.testing.assert_close(module.log_normalizer.double(), expected, rtol=1e-5, atol=1e-5)
    module.commit()  # nothing new was observed
    torch.testing.assert_close(module.log_normalizer.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("normalizer", ["sentence", "running", "average"])
def test_nothing_that_teaches_is_computed_in_evaluation(normalizer):
    module = make(normalizer=normalizer)
    x = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    clusters, taught, _ = module(x)
    with torch.no_grad():
        again, same, _ = module(x)  # as in an activation checkpoint
        evaluated, report, _ = module.eval()(x)
        handed_on, module.centroids = module.centroids, None
        _, from_before, _ = module(x, None, handed_on)
    assert torch.equal(clusters, again)
    assert torch.equal(clusters, evaluated)
    for one, other in zip(taught, same, strict=True):
        assert one is other is None or torch.equal(one, other)
    assert torch.equal(report.cluster_sizes, taught.cluster_sizes)
    assert {name for name, value in report._asdict().items() if value is not None} == {
        "cluster_sizes"
    }
    assert torch.equal(from_before.centroids, taught.centroids)
    assert from_before.clustering_loss is None


def test_cluster_use():
    use = cluster_use(torch.tensor([2, 0, 2, 4]))
    torch.testing.assert_close(use.entropy.item(), 1.5 * math.log(2))
    torch.testing.assert_close(use.effective.item(), 2**1.5)
    assert use.largest == 0.5
    assert use.empty == 1
    assert cluster_use(torch.zeros(3)).entropy == 0
