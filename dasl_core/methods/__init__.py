"""Pretraining methods, by name."""

from dasl_core.methods.base import Method, Outputs, Step
from dasl_core.methods.byol import BYOL, byol_loss
from dasl_core.methods.dino import DINO, dino_loss
from dasl_core.methods.hcl import HCL, hard_negative_loss
from dasl_core.methods.moco_v3 import MoCoV3, moco_v3_loss
from dasl_core.methods.multi_similarity import MultiSimilarity
from dasl_core.methods.npair import NPair
from dasl_core.methods.proxy_anchor import ProxyAnchor
from dasl_core.methods.simclr import SimCLR, nt_xent
from dasl_core.methods.swav import SwAV, sinkhorn, swapped_prediction
from dasl_core.methods.triplet import Triplet
from dasl_core.methods.vicreg import VICReg, vicreg_loss
from dasl_core.spec import METHODS, ResolvedJobSpec

REGISTRY: dict[str, type[Method]] = {
    "byol": BYOL,
    "dino": DINO,
    "moco_v3": MoCoV3,
    "vicreg": VICReg,
    "simclr": SimCLR,
    "swav": SwAV,
    "npair": NPair,
    "proxy_anchor": ProxyAnchor,
    "triplet": Triplet,
    "multi_similarity": MultiSimilarity,
    "hcl": HCL,
}
assert REGISTRY.keys() == METHODS.keys(), "every method has settings and code"

__all__ = [
    "BYOL",
    "DINO",
    "HCL",
    "REGISTRY",
    "Method",
    "MoCoV3",
    "MultiSimilarity",
    "NPair",
    "Outputs",
    "ProxyAnchor",
    "SimCLR",
    "Step",
    "SwAV",
    "Triplet",
    "VICReg",
    "build_method",
    "byol_loss",
    "dino_loss",
    "hard_negative_loss",
    "moco_v3_loss",
    "nt_xent",
    "sinkhorn",
    "swapped_prediction",
    "vicreg_loss",
]


def build_method(spec: ResolvedJobSpec, num_classes: int | None = None) -> Method:
    """The method that a resolved spec names, with a backbone at random weights.

    Args:
        num_classes: of the training images; None without labels.
    """
    return REGISTRY[spec.method.name].from_spec(spec, num_classes)
