"""Pretraining methods, by name."""

from dasl_core.methods.base import Method, Outputs, Step
from dasl_core.methods.byol import BYOL, byol_loss
from dasl_core.methods.simclr import SimCLR, nt_xent
from dasl_core.methods.swav import SwAV, sinkhorn, swapped_prediction
from dasl_core.spec import JobSpec

REGISTRY: dict[str, type[Method]] = {
    "byol": BYOL,
    "simclr": SimCLR,
    "swav": SwAV,
}

__all__ = [
    "BYOL",
    "REGISTRY",
    "Method",
    "Outputs",
    "SimCLR",
    "Step",
    "SwAV",
    "build_method",
    "byol_loss",
    "nt_xent",
    "sinkhorn",
    "swapped_prediction",
]


def build_method(spec: JobSpec, num_classes: int | None = None) -> Method:
    """The method that a resolved spec names, with a backbone at random weights.

    Args:
        num_classes: of the training images; None without labels.
    """
    return REGISTRY[spec.method.name].from_spec(spec, num_classes)
