"""Centroids: how they are learned, and how tokens are assigned to them. Shape letters in this
folder: B batch, H heads, N tokens, D width, E head width, K clusters. A ``padding_mask``, bool
[B, N], is True where a token is padding; None: there is none."""

from .kmeans import KMeansClustering  # noqa: F401
from .learner import AverageNormalizer, Learner  # noqa: F401
from .neural import NeuralClustering, initial_centroids  # noqa: F401
from .report import LOSSES, Report, State, cluster_sizes  # noqa: F401
