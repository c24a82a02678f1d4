"""Centroids: how they are learned, and how tokens are assigned to them."""

from .average import AverageNormalizer
from .kmeans import KMeansClustering
from .neural import NeuralClustering, initial_centroids
from .report import LOSSES, ClusterUse, Report, State, cluster_sizes, cluster_use, summary

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
