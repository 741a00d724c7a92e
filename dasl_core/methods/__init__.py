"""Pretraining methods, by name, and their losses; each is in the module of the name of its method."""

from importlib import import_module

from torch import nn

from dasl_core.methods.barlow_twins import barlow_twins_loss
from dasl_core.methods.base import REGISTRY, BuildInputs, Method, Outputs, Step
from dasl_core.methods.byol import byol_loss
from dasl_core.methods.dino import DINOLoss, TemperatureWarmup, dino_loss
from dasl_core.methods.hcl import hard_negative_loss
from dasl_core.methods.moco_v3 import moco_v3_loss
from dasl_core.methods.simclr import nt_xent
from dasl_core.methods.swav import sinkhorn, swapped_prediction
from dasl_core.methods.triplet import semihard_triplet_loss
from dasl_core.methods.vicreg import vicreg_loss
from dasl_core.models.backbone import build_backbone
from dasl_core.models.cut_init import cut_weights
from dasl_core.models.freeze import freeze_first_blocks
from dasl_core.models.own import check_own_backbone
from dasl_core.spec import METHODS, ResolvedJobSpec
from dasl_core.spec.methods.config import MultiCropConfig, TwoViewConfig

for _name in METHODS:
    import_module(f"{__name__}.{_name}")
assert REGISTRY.keys() == METHODS.keys(), "a module registers the method that it is named after"

__all__ = [
    "REGISTRY",
    "BuildInputs",
    "DINOLoss",
    "Method",
    "Outputs",
    "Step",
    "TemperatureWarmup",
    "barlow_twins_loss",
    "build_method",
    "byol_loss",
    "dino_loss",
    "hard_negative_loss",
    "moco_v3_loss",
    "nt_xent",
    "semihard_triplet_loss",
    "sinkhorn",
    "swapped_prediction",
    "vicreg_loss",
]


def build_method(
    spec: ResolvedJobSpec, num_classes: int | None = None, backbone: nn.Module | None = None
) -> Method:
    """Build the method that a resolved spec names, with its backbone.

    Args:
        num_classes: of the training images; None without labels.
        backbone: the network itself, if `spec.backbone.name` is "own". The method trains it in place.

    Raises:
        ValueError: `backbone` is missing, is not expected, or does not return features.
    """
    check_own_backbone(backbone, spec.backbone)
    if backbone is None:
        has_local_crops = isinstance(spec.method, MultiCropConfig) and spec.method.local_crops > 0
        backbone = build_backbone(spec.backbone, any_size=has_local_crops)
    inputs = BuildInputs(backbone, spec.backbone, num_classes)
    method = REGISTRY[spec.method.name](spec.method, inputs)
    if isinstance(spec.method, TwoViewConfig):
        method.separate_views = spec.method.separate_views is True
    if spec.backbone.freeze_blocks:
        freeze_first_blocks(method.backbone, spec.backbone.freeze_blocks)
    if spec.train.cut_init is not None:
        cut_weights(method, spec.train.cut_init, keep=method.unit_layers())
    if spec.backbone.freeze_batch_norm != "none":
        method.freeze_batch_norm(affine=spec.backbone.freeze_batch_norm == "all")
    return method
