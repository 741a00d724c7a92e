"""BYOL (Grill et al., NeurIPS 2020)."""

from collections.abc import Sequence
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dasl_core.methods.base import Outputs, Step
from dasl_core.methods.taught import TaughtMethod
from dasl_core.models.backbone import build_backbone, feature_width
from dasl_core.models.ema import Teacher
from dasl_core.models.heads import projection_head
from dasl_core.spec import ResolvedJobSpec
from dasl_core.spec import methods as settings_of
from dasl_core.tensors import check_two_views, full_precision


class BYOL(TaughtMethod):
    """From one view of an image the student predicts what its teacher sees in the other view.

    Args:
        momentum: of the teacher at the first step; it grows to 1 in a half cosine.
        keep: whose backbone is evaluated and exported.
    """

    accumulates = True

    def __init__(
        self,
        backbone: nn.Module,
        projector: nn.Module,
        predictor: nn.Module,
        *,
        momentum: float,
        keep: Literal["student", "teacher"],
    ) -> None:
        super().__init__()
        self.backbone, self.projector, self.predictor = backbone, projector, predictor
        self.teacher = Teacher(backbone, projector)
        self.momentum, self.keep = momentum, keep

    @classmethod
    def from_spec(cls, spec: ResolvedJobSpec, num_classes: int | None) -> Self:
        settings = spec.method
        assert isinstance(settings, settings_of.ResolvedBYOL)
        backbone = build_backbone(spec.backbone)
        hidden, width = settings.hidden_dim, settings.projection_dim
        return cls(
            backbone,
            projection_head(feature_width(backbone), hidden, width),
            projection_head(width, hidden, width),
            momentum=settings.teacher_momentum,
            keep=settings.keep,
        )

    def forward(self, views: Sequence[Tensor]) -> Outputs:
        """``embeddings``: the predictions; ``targets``: the teacher's projections; both (2, B, h)."""
        # One pass over both views, as with SimCLR: batch statistics are those of both together. The
        # paper's code makes two passes of half the size; the function of a view is then its own.
        images = torch.cat(list(views))
        predictions = self.predictor(self.projector(self.backbone(images)))
        return {
            "embeddings": predictions.unflatten(0, (len(views), -1)),
            "targets": self.teacher(images).unflatten(0, (len(views), -1)),
        }

    def loss(self, outputs: Outputs, step: Step) -> Tensor:
        return byol_loss(outputs["embeddings"], outputs["targets"])

    @property
    def taught_head(self) -> nn.Module:
        return self.projector


def byol_loss(predictions: Tensor, targets: Tensor) -> Tensor:
    """``2 - 2 cos(prediction of one view, target of the other)``, the sum over both ways of the mean
    over samples (Grill et al. 2020, eq. 2 and the symmetrised loss below it).

    Args:
        predictions: (2, B, h), raw; float16 and bfloat16 are computed in float32.
        targets: (2, B, h), raw; they get no gradient.

    Raises:
        ValueError: when the shapes are not these.
    """
    check_two_views("predictions", predictions)
    if targets.shape != predictions.shape:
        raise ValueError(
            f"targets must have the shape of predictions, {tuple(predictions.shape)}; given "
            f"{tuple(targets.shape)}"
        )
    with torch.autocast(predictions.device.type, enabled=False):
        others = full_precision(targets.detach()).flip(0)
        cosines = F.cosine_similarity(full_precision(predictions), others, dim=-1)  # (2, B)
        return (2 - 2 * cosines).mean(dim=1).sum()
