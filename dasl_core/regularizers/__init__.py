"""Regularizers for any base loss: difference alignment (DAR), spherical embedding (SEC), and others.

Each has a module of its name, with a function or `nn.Module` for any training loop, and the loss term of a job.
"""

from importlib import import_module

from dasl_core.regularizers.base import REGISTRY, Regularizer
from dasl_core.regularizers.dar import (
    DifferenceAlignment,
    chain_length,
    difference_alignment,
    inter_class_chain,
    pair_count,
)
from dasl_core.regularizers.embedding_stats import angular_update, norm_distribution
from dasl_core.regularizers.koleo import koleo_loss
from dasl_core.regularizers.negative_margin import negative_margin_loss
from dasl_core.regularizers.norms import ctv_norm
from dasl_core.regularizers.schedule import weight_at
from dasl_core.regularizers.sec import SphericalEmbeddingConstraint
from dasl_core.regularizers.shares import GradientShare, gradient_shares
from dasl_core.regularizers.sigreg import sigreg_loss
from dasl_core.regularizers.uniformity import uniformity_loss
from dasl_core.regularizers.visreg import visreg_loss
from dasl_core.spec.regularizers import REGULARIZERS

for _name in REGULARIZERS:
    import_module(f"{__name__}.{_name}")
assert REGISTRY.keys() == REGULARIZERS.keys(), (
    "a module registers the regularizer that it is named after"
)

__all__ = [
    "REGISTRY",
    "DifferenceAlignment",
    "GradientShare",
    "Regularizer",
    "SphericalEmbeddingConstraint",
    "angular_update",
    "chain_length",
    "ctv_norm",
    "difference_alignment",
    "gradient_shares",
    "inter_class_chain",
    "koleo_loss",
    "negative_margin_loss",
    "norm_distribution",
    "pair_count",
    "sigreg_loss",
    "uniformity_loss",
    "visreg_loss",
    "weight_at",
]
