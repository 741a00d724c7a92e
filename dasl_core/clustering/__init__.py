"""k-means over rows that are distributed over ranks, and metrics of clusterings."""

from dasl_core.clustering.agreement import (
    cluster_quality,
    clustering_metrics,
    nmi,
    normalized_mutual_information,
    pairwise_f1,
    pairwise_precision_recall,
)
from dasl_core.clustering.kmeans import Clustering, cluster

__all__ = [
    "Clustering",
    "cluster",
    "cluster_quality",
    "clustering_metrics",
    "nmi",
    "normalized_mutual_information",
    "pairwise_f1",
    "pairwise_precision_recall",
]
