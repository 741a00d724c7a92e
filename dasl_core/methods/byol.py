"""BYOL (Grill et al., NeurIPS 2020)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from dasl_core.methods.base import BuildInputs, Outputs, Step
from dasl_core.methods.ema_teacher import PredictorMethod
from dasl_core.models.heads import projection_head
from dasl_core.spec.methods.byol import ResolvedBYOL
from dasl_core.tensors import check_two_views, full_precision


class BYOL(PredictorMethod, name="byol"):
    """BYOL: from one view of an image the student predicts the teacher's projection of the other view."""

    accumulates = True
    targets = "targets"

    def __init__(self, settings: ResolvedBYOL, inputs: BuildInputs) -> None:
        hidden, width = settings.hidden_dim, settings.projection_dim
        projector = projection_head(inputs.features, hidden, width)
        super().__init__(settings, inputs, projector, projection_head(width, hidden, width))

    def loss(self, outputs: Outputs, step: Step) -> Tensor:
        self._expect_update(step)
        return byol_loss(outputs["embeddings"], outputs["targets"])


def byol_loss(predictions: Tensor, targets: Tensor) -> Tensor:
    """Compute BYOL's loss: ``2 - 2 cos(prediction of one view, target of the other)``.

    It is the mean over samples, summed over both directions (Grill et al. 2020, eq. 2 and the
    symmetrized loss below it).

    Args:
        predictions: (2, B, h), raw; float16 and bfloat16 are computed in float32.
        targets: (2, B, h), raw; they get no gradient.

    Raises:
        ValueError: a shape differs from these.
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
