"""Pretraining methods, by name; each is implemented in the module of the same name."""

from importlib import import_module

from dasl_core.methods.base import REGISTRY, Method, Outputs, Step
from dasl_core.methods.simclr import nt_xent
from dasl_core.spec import METHODS, ResolvedJobSpec

for _name in METHODS:
    import_module(f"{__name__}.{_name}")
assert REGISTRY.keys() == METHODS.keys(), "a module registers the method that it is named after"

__all__ = ["REGISTRY", "Method", "Outputs", "Step", "build_method", "nt_xent"]


def build_method(spec: ResolvedJobSpec, num_classes: int | None = None) -> Method:
    """Build the method that a resolved spec names, with its backbone.

    Args:
        num_classes: of the training images; None without labels.
    """
    method = REGISTRY[spec.method.name].from_settings(spec.method, spec.backbone, num_classes)
    if spec.backbone.freeze_batch_norm != "none":
        method.freeze_batch_norm(affine=spec.backbone.freeze_batch_norm == "all")
    return method
