"""Settings of VICReg."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from dasl_core.spec.base import problem
from dasl_core.spec.methods.config import DecorrelationConfig, ResolvedDecorrelationConfig
from dasl_core.spec.recipes import AtMostAllEpochs, Authors, ByEpochs


class VICReg(DecorrelationConfig):
    """VICReg (Bardes, Ponce and LeCun, ICLR 2022, https://arxiv.org/abs/2105.04906).

    Pulls the views of an image together while each coordinate keeps its variance over the batch and
    coordinates are decorrelated. The loss compares coordinates, not directions, so `sec` is refused.
    """

    # facebookresearch/vicreg, README.md, main_vicreg.py and augmentations.py.
    authors: ClassVar[Authors | None] = Authors(
        families=("resnet",),
        settings={
            "method.separate_views": True,
            "method.projection_dim": 8192,
            "method.hidden_dim": 8192,
            "augment.interpolation": "bicubic",
            "augment.saturation": 0.5,
            "train.optimizer.name": "lars",
            "train.optimizer.base_lr": ByEpochs({100: 0.3, 1000: 0.2}),
            "train.optimizer.lr_end": 0.001,
            "train.warmup_epochs": AtMostAllEpochs(10),
        },
    )

    name: Literal["vicreg"] = "vicreg"
    invariance: float = Field(25.0, ge=0, le=1e6)
    """Weight of the distance between the views of an image."""
    variance: float = Field(25.0, ge=0, le=1e6)
    """Weight of the hinge that keeps the standard deviation of each coordinate at 1."""
    covariance: float = Field(1.0, ge=0, le=1e6)
    """Weight of the squared covariances between coordinates."""

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        if not self.invariance + self.variance + self.covariance:
            raise problem(
                "is 0 like the other two weights, so that there is nothing to learn",
                self.invariance,
                "one weight above 0",
                field="method.invariance",
            )
        return self


class ResolvedVICReg(ResolvedDecorrelationConfig, VICReg):
    """VICReg's settings without "auto"."""
