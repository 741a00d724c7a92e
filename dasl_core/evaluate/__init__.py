"""Measures of a representation. All take torch tensors on any device, or NumPy arrays."""

from dasl_core.evaluate.clustering import kmeans, nmi, normalized_mutual_information
from dasl_core.evaluate.health import (
    alignment,
    dimension_std,
    effective_rank,
    inter_class_distances,
    mean_norm,
    uniformity,
)
from dasl_core.evaluate.inputs import NotFiniteError
from dasl_core.evaluate.knn import knn_accuracy
from dasl_core.evaluate.retrieval import recall_at_k

__all__ = [
    "NotFiniteError",
    "alignment",
    "dimension_std",
    "effective_rank",
    "inter_class_distances",
    "kmeans",
    "knn_accuracy",
    "mean_norm",
    "nmi",
    "normalized_mutual_information",
    "recall_at_k",
    "uniformity",
]
