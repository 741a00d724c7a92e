"""Settings of HCL."""

from typing import ClassVar, Literal

from pydantic import Field

from dasl_core.spec.methods.config import (
    ProjectionHeadConfig,
    ResolvedTwoViewConfig,
    TwoViewConfig,
    Width,
)
from dasl_core.spec.recipes import Authors


class HCL(TwoViewConfig, ProjectionHeadConfig):
    """HCL (Robinson et al., ICLR 2021, https://arxiv.org/abs/2010.04592).

    SimCLR with hard negatives: negatives get more weight the closer they are, corrected for those expected
    to have the anchor's class. With `tau_plus` and `beta` at 0 it is SimCLR's loss.
    """

    # joshr17/HCL, image: CIFAR-10 and STL-10 at 32 pixels.
    authors: ClassVar[Authors | None] = Authors(
        families=("resnet",),
        settings={
            "method.separate_views": True,
            "method.hidden_dim": 512,
            "augment.crop_scale": (0.08, 1.0),
            "augment.blur": 0.5,
            "train.optimizer.name": "adam",
            "train.optimizer.lr": 1e-3,
            "train.optimizer.lr_end": 1.0,
            "train.optimizer.weight_decay": 1e-6,
            "train.warmup_epochs": 0,
        },
    )

    name: Literal["hcl"] = "hcl"
    temperature: float = Field(0.5, ge=0.02, le=10)
    """Divides the cosine similarities."""
    tau_plus: float = Field(0.1, ge=0, lt=1)
    """Probability that a negative has the anchor's class: about one divided by the number of classes. 0: no
    correction."""
    beta: float = Field(1.0, ge=0, le=100)
    """How much more weight hard negatives get. 0: all have the same weight."""


class ResolvedHCL(ResolvedTwoViewConfig, HCL):
    """HCL's settings without "auto"."""

    hidden_dim: Width
