"""Settings of SimCLR."""

from typing import Annotated, ClassVar, Literal

from dasl_core.spec.base import Auto
from dasl_core.spec.methods.config import (
    FIXES_SHAPES,
    ProjectionHeadConfig,
    Recipe,
    ResolvedTwoViewConfig,
    Temperature,
    TwoViewConfig,
    Width,
)
from dasl_core.spec.recipes import AtMostAllEpochs, Authors, ByImageSize


class SimCLR(TwoViewConfig, ProjectionHeadConfig):
    """SimCLR (Chen et al., ICML 2020, https://arxiv.org/abs/2002.05709).

    Two views of an image attract each other and repel all other images.
    """

    recipe: ClassVar[Recipe] = Recipe(
        settings={"method.temperature": 0.2, "method.last_batch_norm": False}
    )
    # google-research/simclr, README.md, and for ImageNet the decay of the paper.
    authors: ClassVar[Authors | None] = Authors(
        families=("resnet",),
        settings={
            "method.temperature": ByImageSize(small=0.5, large=0.1),
            "method.last_batch_norm": True,
            "augment.crop_scale": (0.08, 1.0),
            "augment.interpolation": "bicubic",
            "augment.jitter": ByImageSize(small=0.5, large=1.0),
            "train.optimizer.name": "lars",
            # ImageNet: 0.075 x the root of the batch, which is the paper's 4.8 at 4096.
            "train.optimizer.base_lr": ByImageSize(small=1.0, large=0.075 * 256**0.5),
            "train.optimizer.lr_scaling": ByImageSize(small="linear", large="sqrt"),
            "train.optimizer.weight_decay": ByImageSize(small=1e-4, large=1e-6),
            "train.warmup_epochs": AtMostAllEpochs(10),
        },
    )

    name: Literal["simclr"] = "simclr"
    temperature: Temperature | Auto = "auto"
    """Divides the cosine similarities. "auto": 0.2."""
    last_batch_norm: Annotated[bool | Auto, FIXES_SHAPES] = "auto"
    """Batch normalization without a shift at the end of the projection head, as in the authors' code. "auto":
    false."""


class ResolvedSimCLR(ResolvedTwoViewConfig, SimCLR):
    """SimCLR's settings without "auto"."""

    hidden_dim: Width
    temperature: Temperature
    last_batch_norm: bool
