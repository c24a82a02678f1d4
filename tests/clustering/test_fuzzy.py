"""Clustering in chunks against CF22's equations written out with all scores at once."""

import math

import pytest
import torch

from fairseq_clusterformer.clustering import fuzzy
from fairseq_clusterformer.clustering.fuzzy import (
    SIMILARITIES,
    Similarity,
    fuzzy_clusters,
    lowest_argmax,
)

from ..clusters import phi
from ..kinds import pads

BATCH, LENGTH, WIDTH, CLUSTERS, TEMPERATURE = 3, 50, 6, 5, 0.3


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("normalizer", ["sentence", "running", "average"])
@pytest.mark.parametrize("handed_on", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_equal_to_the_equations(similarity, normalizer, handed_on, padded):
    shape = (BATCH, CLUSTERS, WIDTH) if handed_on else (CLUSTERS, WIDTH)
    keys = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64, requires_grad=True)
    centroids = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    mask = pads([LENGTH, 20, 1], LENGTH, "left") if padded else None
    weight = torch.randn(BATCH, CLUSTERS, WIDTH, dtype=torch.float64)
    average = torch.randn(CLUSTERS, dtype=torch.float64)

    scores = phi(similarity, keys, centroids) / TEMPERATURE
    if padded:
        scores = scores.masked_fill(mask.unsqueeze(-1), -math.inf)
    mass = scores.logsumexp(1, keepdim=True)
    denominator = {"sentence": mass, "running": scores.logcumsumexp(1), "average": average}
    log_membership = scores - denominator[normalizer]
    sizes = torch.stack(
        [t.abs().expand_as(scores) for t in (log_membership, denominator[normalizer])]
    )
    tie = fuzzy.TIE * sizes.amax((0, -1)).unsqueeze(-1)
    best = log_membership >= log_membership.amax(-1, keepdim=True) - tie
    expected = best.to(torch.uint8).argmax(-1)  # of those that tie, the first
    membership = scores.softmax(1)
    expected_updated = membership.transpose(1, 2) @ keys
    expected_gradients = torch.autograd.grad((expected_updated * weight).sum(), (keys, centroids))

    clusters, log_mass, updated, _ = fuzzy_clusters(
        keys,
        centroids,
        similarity=Similarity(similarity),
        temperature=TEMPERATURE,
        normalizer=average if normalizer == "average" else normalizer,
        padding_mask=mask,
    )
    gradients = torch.autograd.grad((updated * weight).sum(), (keys, centroids))
    real = torch.ones(BATCH, LENGTH, dtype=torch.bool) if mask is None else ~mask
    assert torch.equal(clusters[real], expected[real])
    assert clusters[~real].eq(0).all()
    torch.testing.assert_close(log_mass, mass.squeeze(1))
    torch.testing.assert_close(updated, expected_updated)
    torch.testing.assert_close(gradients, expected_gradients)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_a_tie_is_relative_to_the_scores(scale):
    """Whatever their scale, and with offsets that cancel them."""
    scores = scale * torch.tensor([[1.0, 3.0, 3.00001, 0.5], [1.0, 3.0, 3.001, 0.5]])
    assert lowest_argmax(scores).tolist() == [1, 2]
    assert lowest_argmax(-scores[:, [3, 0, 1, 2]]).tolist() == [0, 0]
    # 1e-4 of 1, in numbers near 1e4: no more than their rounding
    close = torch.tensor([[0.0, 1e-4 * scale]])
    assert lowest_argmax(close).item() == 1
    large = torch.full_like(close, 1e4 * scale)
    assert lowest_argmax(large + close, large).item() == 0


def test_scores_of_wide_vectors_tie_as_those_of_narrow_ones():
    """Sums of 4,096 products in another order: the largest of two equal centroids is the first."""
    x, centroid = torch.randn(500, 4096), torch.randn(1, 4096)
    order = torch.randperm(4096)
    scores = torch.cat([x @ centroid.t(), x[:, order] @ centroid[:, order].t()], dim=-1)
    assert scores.diff().abs().max() > fuzzy.TIE  # more than a constant would allow
    assert lowest_argmax(scores).eq(0).float().mean() > 0.95  # some are nearly orthogonal
