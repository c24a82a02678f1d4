"""The scores of GLUE, by hand; what is constant has none."""

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from fairseq_clusterformer.metrics import (
    f1_score,
    matthews_correlation,
    pearson_correlation,
    spearman_correlation,
)


def test_two_classes():
    found, right = np.array([1, 1, 1, 0, 0, 0.0]), np.array([1, 1, 0, 1, 0, 0.0])
    assert f1_score(found, right) == pytest.approx(2 / 3)
    assert matthews_correlation(found, right) == pytest.approx((2 * 2 - 1 * 1) / 9)
    nowhere = np.zeros(6)
    assert f1_score(nowhere, nowhere) == matthews_correlation(nowhere, right) == 0


def test_numbers():
    found, right = np.random.default_rng(1).integers(0, 9, (2, 100)).astype(float)  # some equal
    assert pearson_correlation(found, right) == pytest.approx(pearsonr(found, right)[0])
    assert spearman_correlation(found, right) == pytest.approx(spearmanr(found, right)[0])
    assert spearman_correlation(np.ones(4), np.arange(4.0)) == 0
