"""Barlow Twins (Zbontar et al., ICML 2021)."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from dasl_core.distributed import group_rank, group_size
from dasl_core.methods.base import BuildInputs, Outputs, Step
from dasl_core.methods.two_views import TwoViewMethod
from dasl_core.methods.vicreg import gathered_samples
from dasl_core.models.heads import deep_head
from dasl_core.spec.methods.barlow_twins import ResolvedBarlowTwins


class BarlowTwins(TwoViewMethod, name="barlow_twins"):
    """Barlow Twins: bring the cross-correlation of two views' embeddings close to the identity matrix."""

    settings: ResolvedBarlowTwins

    def __init__(self, settings: ResolvedBarlowTwins, inputs: BuildInputs) -> None:
        super().__init__(settings, inputs)
        hidden = settings.hidden_dim
        widths = [inputs.features, hidden, hidden, settings.projection_dim]
        self.projector = deep_head(widths, normalized_output=False)

    def loss(self, outputs: Outputs, step: Step) -> Tensor:
        redundancy, scale = self.settings.redundancy, self.settings.loss_scale
        return scale * barlow_twins_loss(outputs["embeddings"], redundancy, step.group)


def barlow_twins_loss(
    embeddings: Tensor, redundancy: float, group: ProcessGroup | None = None
) -> Tensor:
    """Compute Barlow Twins' loss (Zbontar et al. 2021, eq. 1); its mean over ranks is the global loss.

    As in the authors' code, each coordinate is standardized by a batch normalization without weights.
    Each rank computes a share of the rows of the cross-correlation.

    Args:
        embeddings: (2, B, D), raw; float16 and bfloat16 are computed in float32.
        redundancy: weight of the off-diagonal terms, the paper's lambda.
        group: process group over which the batch is shared; None: this process holds all of it.

    Raises:
        ValueError: `embeddings` have another shape, or the global batch has no variance.
    """
    gathered = gathered_samples(embeddings, group)
    samples = gathered.shape[1]
    with torch.autocast(embeddings.device.type, enabled=False):
        a, b = (F.batch_norm(view, None, None, training=True) for view in gathered)
        rows = a.T.tensor_split(group_size(group))[group_rank(group)]  # (D / W, N)
        squares = group_size(group) * (rows @ b / samples).square().sum()
        diagonal = (a * b).mean(dim=0)
        off_diagonal = squares - diagonal.square().sum()
        return (1 - diagonal).square().sum() + redundancy * off_diagonal
