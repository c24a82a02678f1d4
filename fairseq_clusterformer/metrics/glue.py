"""The scores of GLUE (Wang et al., 2018) beside accuracy, as shares: of what is found and what is
right, numbers [n] each. scikit-learn and scipy are imported here, for they take long."""

import numpy as np


def f1_score(found: np.ndarray, right: np.ndarray) -> float:
    """F1 of class 1 among 0 and 1, from 0 to 1; 0 where it is nowhere."""
    from sklearn.metrics import f1_score

    return float(f1_score(right, found, zero_division=0))


def matthews_correlation(found: np.ndarray, right: np.ndarray) -> float:
    """Matthews' correlation of classes, from -1 to 1; 0 where one side is constant."""
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(right, found))


def pearson_correlation(found: np.ndarray, right: np.ndarray) -> float:
    """Pearson's correlation of numbers, from -1 to 1; 0 where one side is constant."""
    return float(np.corrcoef(found, right)[0, 1]) if np.ptp(found) and np.ptp(right) else 0.0


def spearman_correlation(found: np.ndarray, right: np.ndarray) -> float:
    """Pearson's correlation of the ranks; equal numbers have their mean rank."""
    from scipy.stats import rankdata

    return pearson_correlation(rankdata(found), rankdata(right))
