"""The scores of GLUE, against scikit-learn and scipy."""

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import f1_score as sklearn_f1
from sklearn.metrics import matthews_corrcoef

from fairseq_clusterformer.metrics import (
    f1_score,
    matthews_correlation,
    pearson_correlation,
    spearman_correlation,
)

DRAW = np.random.default_rng(1)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_two_classes(share):
    found, right = (DRAW.random((2, 200)) < share).astype(int)
    counts = 200, found.sum(), right.sum(), (found * right).sum()
    assert f1_score(*counts) == pytest.approx(sklearn_f1(right, found))
    assert matthews_correlation(*counts) == pytest.approx(matthews_corrcoef(right, found))


def test_a_class_that_is_nowhere():
    assert f1_score(9, 0, 0, 0) == 0
    assert matthews_correlation(9, 0, 4, 0) == matthews_correlation(9, 9, 4, 4) == 0


def test_numbers():
    found, right = DRAW.integers(0, 9, (2, 100)).astype(float)  # with equal ones
    assert pearson_correlation(found, right) == pytest.approx(pearsonr(found, right)[0])
    assert spearman_correlation(found, right) == pytest.approx(spearmanr(found, right)[0])
    assert spearman_correlation(np.ones(4), np.arange(4.0)) == 0
