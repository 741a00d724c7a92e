"""Settings of BYOL."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from dasl_core.spec.base import Auto
from dasl_core.spec.methods.config import (
    BYOL_RECIPE,
    FIXES_SHAPES,
    EMATeacherConfig,
    EmbeddingWidth,
    Momentum,
    Recipe,
    ResolveContext,
    ResolvedTwoViewConfig,
    TwoViewConfig,
    Width,
)
from dasl_core.spec.recipes import AtMostAllEpochs, Authors, ByEpochs


class BYOL(TwoViewConfig, EMATeacherConfig):
    """BYOL (Grill et al., NeurIPS 2020, https://arxiv.org/abs/2006.07733).

    Predicts from one view of an image what an EMA teacher computes for the other view. DAR and SEC act on
    the predictions.
    """

    recipe: ClassVar[Recipe] = BYOL_RECIPE
    # google-deepmind/deepmind-research, byol/configs/byol.py and byol/utils.
    authors: ClassVar[Authors | None] = Authors(
        families=("resnet",),
        settings={
            "method.separate_views": True,
            "method.hidden_dim": 4096,
            "method.teacher_momentum": ByEpochs({40: 0.97, 100: 0.99, 300: 0.99, 1000: 0.996}),
            "augment.interpolation": "bicubic",
            "augment.saturation": 0.5,
            "train.optimizer.name": "lars",
            "train.optimizer.base_lr": ByEpochs({40: 0.45, 100: 0.45, 300: 0.3, 1000: 0.2}),
            "train.optimizer.weight_decay": ByEpochs(
                {40: 1e-6, 100: 1e-6, 300: 1e-6, 1000: 1.5e-6}
            ),
            "train.warmup_epochs": AtMostAllEpochs(10),
        },
    )
    # Base momentum of the paper's code by epochs; between them it is interpolated.
    _MOMENTA: ClassVar = ((40, 0.97), (100, 0.99), (300, 0.99), (1000, 0.996))

    name: Literal["byol"] = "byol"
    projection_dim: Annotated[EmbeddingWidth, FIXES_SHAPES] = 256
    """Width of the projections and of their predictions."""
    hidden_dim: Annotated[Width | Auto, FIXES_SHAPES] = "auto"
    """Width of the hidden layers of projector and predictor. "auto": twice the width of the backbone's
    features: 4096 for the paper's ResNet-50."""
    teacher_momentum: Momentum | Auto = "auto"
    """Momentum of the EMA teacher at the first step; it grows to 1 along a half cosine. "auto": 0.97 up to 40
    epochs, 0.99 for 100 to 300, 0.996 from 1000, as in the authors' code; interpolated in between."""

    def automatic(self, context: ResolveContext) -> dict[str, Any]:
        return {
            "hidden_dim": min(65_536, 2 * context.features),
            "teacher_momentum": _interpolated(context.epochs, self._MOMENTA),
        }


class ResolvedBYOL(ResolvedTwoViewConfig, BYOL):
    """BYOL's settings without "auto"."""

    hidden_dim: Width
    teacher_momentum: Momentum


def _interpolated(x: float, points: Sequence[tuple[float, float]]) -> float:
    """Interpolate linearly between `points`, constant outside; four digits, since people read it."""
    for (low, start), (high, end) in pairwise(points):
        if x < high:
            return round(start + (end - start) * max(0.0, x - low) / (high - low), 4)
    return points[-1][1]
