"""Regularizers for any base loss: difference alignment (DAR) and spherical embedding (SEC)."""

from dasl_core.regularizers.dar import (
    chain_length,
    difference_alignment,
    inter_class_chain,
    pair_count,
)
from dasl_core.regularizers.embedding_stats import angular_update, norm_distribution
from dasl_core.regularizers.norms import ctv_norm
from dasl_core.regularizers.schedule import weight_at
from dasl_core.regularizers.sec import SphericalEmbeddingConstraint

__all__ = [
    "SphericalEmbeddingConstraint",
    "angular_update",
    "chain_length",
    "ctv_norm",
    "difference_alignment",
    "inter_class_chain",
    "norm_distribution",
    "pair_count",
    "weight_at",
]
