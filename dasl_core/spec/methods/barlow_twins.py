"""Settings of Barlow Twins."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from dasl_core.spec.base import Auto
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
from dasl_core.spec.recipes import AtMostAllEpochs, Authors


class BarlowTwins(TwoViewConfig):
    """Barlow Twins (Zbontar et al., ICML 2021, https://arxiv.org/abs/2103.03230).

    Makes each coordinate of an embedding agree between the two views of an image and decorrelates it from
    all other coordinates.
    The loss compares coordinates, not directions, so `sec` is refused.
    """

    # The authors' code for a batch of 2048 and 1000 epochs (facebookresearch/barlowtwins, main.py).
    recipe: ClassVar[Recipe] = BYOL_RECIPE._replace(weight_decay={"lars": 1e-6})
    # facebookresearch/barlowtwins, main.py.
    authors: ClassVar[Authors | None] = Authors(
        families=("resnet",),
        settings={
            "method.separate_views": True,
            "method.projection_dim": 8192,
            "method.hidden_dim": 8192,
            "augment.interpolation": "bicubic",
            "augment.saturation": 0.5,
            "train.optimizer.name": "lars",
            "train.optimizer.lr_end": 0.001,
            "train.warmup_epochs": AtMostAllEpochs(10),
        },
    )
    compares_directions: ClassVar[bool] = False

    name: Literal["barlow_twins"] = "barlow_twins"
    projection_dim: Annotated[EmbeddingWidth | Auto, FIXES_SHAPES] = "auto"
    """Width of the projector's outputs, which the loss and DAR use. "auto": four times the width of the
    backbone's features, at most 8192, the paper's value for a ResNet-50."""
    hidden_dim: Annotated[Width | Auto, FIXES_SHAPES] = "auto"
    """Width of the projector's two hidden layers. "auto": `projection_dim`."""
    redundancy: float = Field(0.0051, ge=0, le=1e6)
    """Weight of the squared correlations between different coordinates, the paper's lambda: 0.005 in the
    paper, 0.0051 in the authors' code."""
    loss_scale: float = Field(0.024, gt=0, le=1e6)
    """Factor on the loss, as in the authors' first code. With LARS, which adapts weights to the size of their
    gradients, it is a factor on the learning rate of biases and norms: 0.2 times 0.024 is the 0.0048 of their
    current code."""

    def automatic(self, context: ResolveContext) -> dict[str, Any]:
        width = min(8192, 4 * context.features)
        output = width if self.projection_dim == "auto" else self.projection_dim
        return {"projection_dim": width, "hidden_dim": output}


class ResolvedBarlowTwins(ResolvedTwoViewConfig, BarlowTwins):
    """Barlow Twins' settings without "auto"."""

    projection_dim: EmbeddingWidth
    hidden_dim: Width
