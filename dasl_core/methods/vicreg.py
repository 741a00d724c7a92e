"""VICReg (Bardes, Ponce and LeCun, ICLR 2022)."""

from collections.abc import Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dasl_core.distributed import gather_views, rank, world_size
from dasl_core.methods.base import Method, Outputs, Step
from dasl_core.models.backbone import build_backbone, feature_width
from dasl_core.models.heads import deep_head
from dasl_core.spec import ResolvedJobSpec
from dasl_core.spec import methods as settings_of
from dasl_core.tensors import check_two_views, full_precision

# Added to a variance before its root is taken, whose slope is infinite at 0 (section 4.1).
EPSILON = 1e-4


class VICReg(Method):
    """Two views of an image come together while the coordinates of the batch keep their spread and
    lose their correlations: no negatives, no teacher.

    Args:
        invariance, variance, covariance: weights of the three terms.
    """

    def __init__(
        self,
        backbone: nn.Module,
        expander: nn.Module,
        *,
        invariance: float,
        variance: float,
        covariance: float,
    ) -> None:
        super().__init__()
        self.backbone, self.expander = backbone, expander
        self.invariance, self.variance, self.covariance = invariance, variance, covariance

    @classmethod
    def from_spec(cls, spec: ResolvedJobSpec, num_classes: int | None) -> Self:
        settings = spec.method
        assert isinstance(settings, settings_of.ResolvedVICReg)
        backbone = build_backbone(spec.backbone)
        hidden = settings.hidden_dim
        widths = [feature_width(backbone), hidden, hidden, settings.projection_dim]
        return cls(
            backbone,
            deep_head(widths, normalised_output=False),
            invariance=settings.invariance,
            variance=settings.variance,
            covariance=settings.covariance,
        )

    def forward(self, views: Sequence[Tensor]) -> Outputs:
        # One pass over both views: batch statistics are those of both, as with SimCLR.
        embeddings = self.expander(self.backbone(torch.cat(list(views))))
        return {"embeddings": embeddings.unflatten(0, (len(views), -1))}

    def loss(self, outputs: Outputs, step: Step) -> Tensor:
        return vicreg_loss(outputs["embeddings"], self.invariance, self.variance, self.covariance)


def vicreg_loss(
    embeddings: Tensor, invariance: float, variance: float, covariance: float
) -> Tensor:
    """The three terms of Bardes et al. 2022, eq. 6; its mean over ranks is that of the global batch.

    As in the authors' code, the variance term is the mean over the two views and the covariance term
    their sum.

    Args:
        embeddings: (2, B, D), raw; float16 and bfloat16 are computed in float32.
        invariance, variance, covariance: weights.

    Raises:
        ValueError: when `embeddings` have another shape, or the global batch has no variance.
    """
    check_two_views("embeddings", embeddings)
    with torch.autocast(embeddings.device.type, enabled=False):
        own = full_precision(embeddings)
        everyone = gather_views(own)  # (2, N, D)
        if everyone.shape[1] < 2:
            raise ValueError(
                "embeddings must be of at least 2 samples, for there to be a variance; given "
                f"{everyone.shape[1]}"
            )
        centred = everyone - everyone.mean(dim=1, keepdim=True)
        spread = torch.sqrt(centred.square().sum(dim=1) / (centred.shape[1] - 1) + EPSILON)
        return (
            invariance * F.mse_loss(own[0], own[1])
            + variance * F.relu(1 - spread).mean()
            + covariance * (correlation_penalty(centred[0]) + correlation_penalty(centred[1]))
        )


def correlation_penalty(centred: Tensor) -> Tensor:
    """Sum of the squared covariances of different coordinates, divided by the coordinates (eq. 4).

    The squares of X^T X and of X X^T have the same sum, so the smaller of the two is computed. Each
    rank takes a share of its rows: the mean over ranks is the penalty.

    Args:
        centred: (N, D), the global batch with zero mean, the same on all ranks.
    """
    samples, width = centred.shape
    rows = centred if samples < width else centred.T
    own = rows.tensor_split(world_size())[rank()]
    squares = world_size() * (own @ rows.T).square().sum()
    variances = centred.square().sum(dim=0)  # the diagonal of X^T X
    return (squares - variances.square().sum()) / (samples - 1) ** 2 / width
