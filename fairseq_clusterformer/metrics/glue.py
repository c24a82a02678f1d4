"""The scores of GLUE (Wang et al., 2018) beside accuracy, as shares."""

import math

import numpy as np


def f1_score(size: int, found: int, right: int, both: int) -> float:
    """F1 of one of two classes, from 0 to 1; 0 where it is nowhere.

    Args:
        size: examples.
        found, right, both: examples of which the class was said, is right, or both.
    """
    return 2 * both / (found + right) if found + right else 0.0


def matthews_correlation(size: int, found: int, right: int, both: int) -> float:
    """Matthews' correlation of two classes, from -1 to 1; 0 where one side is constant. Arguments
    as of :func:`f1_score`."""
    norm = found * (size - found) * right * (size - right)
    return (size * both - found * right) / math.sqrt(norm) if norm else 0.0


def pearson_correlation(found: np.ndarray, right: np.ndarray) -> float:
    """Pearson's correlation of numbers [n], from -1 to 1; 0 where one side is constant."""
    a, b = found - found.mean(), right - right.mean()
    norm = np.sqrt((a * a).sum() * (b * b).sum())
    return float((a * b).sum() / norm) if norm else 0.0


def spearman_correlation(found: np.ndarray, right: np.ndarray) -> float:
    """Pearson's correlation of the ranks of numbers [n]; equal numbers have their mean rank."""
    from scipy.stats import rankdata  # here, since it takes long to import

    return pearson_correlation(rankdata(found), rankdata(right))
