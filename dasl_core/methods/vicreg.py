"""VICReg (Bardes, Ponce and LeCun, ICLR 2022)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from dasl_core.distributed import gather_views, group_rank, group_size
from dasl_core.methods.base import BuildInputs, Outputs, Step
from dasl_core.methods.two_views import TwoViewMethod
from dasl_core.models.heads import deep_head
from dasl_core.spec.methods.vicreg import ResolvedVICReg
from dasl_core.tensors import check_two_views, full_precision

# Added to a variance before the square root, whose slope is infinite at 0 (section 4.1).
EPSILON = 1e-4


class VICReg(TwoViewMethod, name="vicreg"):
    """VICReg: pull two views of an image together, with spread and uncorrelated coordinates.

    It needs neither negatives nor a teacher.
    """

    settings: ResolvedVICReg

    def __init__(self, settings: ResolvedVICReg, inputs: BuildInputs) -> None:
        super().__init__(settings, inputs)
        hidden = settings.hidden_dim
        widths = [inputs.features, hidden, hidden, settings.projection_dim]
        self.expander = deep_head(widths, normalized_output=False)

    @property
    def embedding_head(self) -> nn.Module:
        return self.expander

    def loss(self, outputs: Outputs, step: Step) -> Tensor:
        s = self.settings
        return vicreg_loss(
            outputs["embeddings"], s.invariance, s.variance, s.covariance, step.group
        )


def vicreg_loss(
    embeddings: Tensor,
    invariance: float,
    variance: float,
    covariance: float,
    group: ProcessGroup | None = None,
) -> Tensor:
    """Compute VICReg's loss (Bardes et al. 2022, eq. 6); its mean over ranks is the global loss.

    As in the authors' code, the variance term is the mean over the two views and the covariance term
    their sum.

    Args:
        embeddings: (2, B, D), raw; float16 and bfloat16 are computed in float32.
        invariance, variance, covariance: weights.
        group: process group over which the batch is shared; None: this process holds all of it.

    Raises:
        ValueError: `embeddings` have another shape, or the global batch has no variance.
    """
    embeddings = full_precision(embeddings)  # once, so that no gradient is rounded before the sum
    gathered = gathered_samples(embeddings, group)
    with torch.autocast(embeddings.device.type, enabled=False):
        centered = gathered - gathered.mean(dim=1, keepdim=True)
        return (
            invariance * invariance_loss(embeddings)
            + variance * variance_loss(centered)
            + covariance * covariance_loss(centered, group)
        )


def gathered_samples(embeddings: Tensor, group: ProcessGroup | None) -> Tensor:
    """Gather two views' embeddings (2, B, D) in full precision to (2, N, D); a ValueError without a variance."""
    check_two_views("embeddings", embeddings)
    gathered = gather_views(full_precision(embeddings), group)
    if gathered.shape[1] < 2:
        raise ValueError(
            "embeddings must be of at least 2 samples, for there to be a variance; given "
            f"{gathered.shape[1]}"
        )
    return gathered


def invariance_loss(embeddings: Tensor) -> Tensor:
    """Compute the mean squared distance of the two views (eq. 5), of this rank's share (2, B, D)."""
    return F.mse_loss(embeddings[0], embeddings[1])


def variance_loss(centered: Tensor) -> Tensor:
    """Compute the hinge on each coordinate's standard deviation at 1 (eq. 1), the mean over both views.

    Args:
        centered: (2, N, D), the global batch with zero mean.
    """
    spread = torch.sqrt(centered.square().sum(dim=1) / (centered.shape[1] - 1) + EPSILON)
    return F.relu(1 - spread).mean()


def covariance_loss(centered: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Sum the squared covariances of different coordinates (eq. 4) over both views (2, N, D)."""
    return correlation_penalty(centered[0], group) + correlation_penalty(centered[1], group)


def correlation_penalty(centered: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Sum the squared covariances of different coordinates, divided by their number (eq. 4).

    The squares of X^T X and of X X^T have the same sum, so the smaller of the two is computed. Each
    rank takes a share of its rows: the mean over ranks is the penalty.

    Args:
        centered: (N, D), the global batch with zero mean, the same on all ranks.
    """
    samples, width = centered.shape
    rows = centered if samples < width else centered.T
    share = rows.tensor_split(group_size(group))[group_rank(group)]
    squares = group_size(group) * (share @ rows.T).square().sum()
    variances = centered.square().sum(dim=0)  # the diagonal of X^T X
    return (squares - variances.square().sum()) / (samples - 1) ** 2 / width
