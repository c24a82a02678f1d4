"""Centroids: how they are learned, and how tokens are assigned to them."""

from .average import AverageNormalizer
from .kmeans import KMeansClustering
from .neural import NeuralClustering, initial_centroids
from .report import Report, State
from .statistics import LOSSES, ClusterUse, cluster_sizes, cluster_use, summary

__all__ = [
    "LOSSES",
    "AverageNormalizer",
    "ClusterUse",
    "KMeansClustering",
    "NeuralClustering",
    "Report",
    "State",
    "cluster_sizes",
    "cluster_use",
    "initial_centroids",
    "summary",
]
