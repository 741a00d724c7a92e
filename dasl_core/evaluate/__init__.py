"""Metrics of a representation. All take torch tensors on any device, or NumPy arrays.

Metrics read features in blocks: a million of them need only a few additional tiles of 16 MiB.
"""

from dasl_core.clustering import (
    clustering_metrics,
    nmi,
    normalized_mutual_information,
    pairwise_f1,
    pairwise_precision_recall,
)
from dasl_core.clustering.kmeans import kmeans
from dasl_core.evaluate.distances import distance_histogram, inter_class_distances
from dasl_core.evaluate.finetune import FineTuneResult, fine_tune
from dasl_core.evaluate.health import (
    alignment,
    dimension_std,
    effective_rank,
    mean_norm,
    uniformity,
)
from dasl_core.evaluate.knn import knn_accuracy, knn_hits, nearest_neighbors
from dasl_core.evaluate.linear import LinearProbeResult, RateResult, linear_probe
from dasl_core.evaluate.pairs import verification
from dasl_core.evaluate.retrieval import instance_hits, recall_at_k, recall_hits
from dasl_core.tensors import NotFiniteError

__all__ = [
    "FineTuneResult",
    "LinearProbeResult",
    "NotFiniteError",
    "RateResult",
    "alignment",
    "clustering_metrics",
    "dimension_std",
    "distance_histogram",
    "effective_rank",
    "fine_tune",
    "instance_hits",
    "inter_class_distances",
    "kmeans",
    "knn_accuracy",
    "knn_hits",
    "linear_probe",
    "mean_norm",
    "nearest_neighbors",
    "nmi",
    "normalized_mutual_information",
    "pairwise_f1",
    "pairwise_precision_recall",
    "recall_at_k",
    "recall_hits",
    "uniformity",
    "verification",
]
