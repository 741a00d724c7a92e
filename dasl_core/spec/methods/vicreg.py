"""Settings of VICReg."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from dasl_core.spec.base import Auto, problem
from dasl_core.spec.methods.config import (
    BYOL_RECIPE,
    FIXES_SHAPES,
    EmbeddingWidth,
    Recipe,
    ResolveContext,
    ResolvedTwoViewConfig,
    TwoViewConfig,
    Width,
)
from dasl_core.spec.recipes import AtMostAllEpochs, Authors, ByEpochs


class VICReg(TwoViewConfig):
    """VICReg (Bardes, Ponce and LeCun, ICLR 2022, https://arxiv.org/abs/2105.04906).

    Pulls the views of an image together while each coordinate keeps its variance over the batch and
    coordinates are decorrelated. The loss compares coordinates, not directions, so `sec` is refused.
    """

    recipe: ClassVar[Recipe] = BYOL_RECIPE._replace(weight_decay={"lars": 1e-6})
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
    compares_directions: ClassVar[bool] = False

    name: Literal["vicreg"] = "vicreg"
    projection_dim: Annotated[EmbeddingWidth | Auto, FIXES_SHAPES] = "auto"
    """Width of the expander's outputs, which the loss and DAR use. "auto": four times the width of the
    backbone's features, at most 8192, the paper's value for a ResNet-50."""
    hidden_dim: Annotated[Width | Auto, FIXES_SHAPES] = "auto"
    """Width of the expander's two hidden layers. "auto": `projection_dim`."""
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

    def automatic(self, context: ResolveContext) -> dict[str, Any]:
        width = min(8192, 4 * context.features)
        output = width if self.projection_dim == "auto" else self.projection_dim
        return {"projection_dim": width, "hidden_dim": output}


class ResolvedVICReg(ResolvedTwoViewConfig, VICReg):
    """VICReg's settings without "auto"."""

    projection_dim: EmbeddingWidth
    hidden_dim: Width
