"""SimCLR (Chen et al., ICML 2020)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from dasl_core.distributed import gather_views, group_rank
from dasl_core.methods.base import BuildInputs, Outputs, Step
from dasl_core.methods.two_views import TwoViewMethod
from dasl_core.models.heads import projection_head
from dasl_core.spec.methods.simclr import ResolvedSimCLR
from dasl_core.tensors import check_temperature, check_two_views, full_precision


class SimCLR(TwoViewMethod, name="simclr"):
    """SimCLR: two views of an image attract each other and repel all other views of the global batch."""

    settings: ResolvedSimCLR

    def __init__(self, settings: ResolvedSimCLR, inputs: BuildInputs) -> None:
        super().__init__(settings, inputs)
        self.projector = projection_head(
            inputs.features,
            settings.hidden_dim,
            settings.projection_dim,
            last_batch_norm=settings.last_batch_norm,
        )

    def loss(self, outputs: Outputs, step: Step) -> Tensor:
        return nt_xent(outputs["embeddings"], self.settings.temperature, step.group)

    def chance_loss(self, batch_size: int) -> float:
        return math.log(2 * batch_size - 1)


def nt_xent(embeddings: Tensor, temperature: float, group: ProcessGroup | None = None) -> Tensor:
    """Compute NT-Xent (Chen et al. 2020, eq. 1): the mean over this rank's 2B anchors.

    Anchors are local, and candidates come from all ranks; an anchor is not its own candidate. The mean
    of the ranks' losses equals the loss of one process with the global batch, and so does its gradient,
    since the backward of the gather sums over ranks.

    Args:
        embeddings: (2, B, h), raw; float16 and bfloat16 are computed in float32.
        temperature: divides the cosine similarities.
        group: process group over which the batch is shared; None: this process holds all of it.

    Raises:
        ValueError: an argument does not match this description.
    """
    logits, itself, positive = contrasted(embeddings, temperature, group)
    with torch.autocast(logits.device.type, enabled=False):
        logits = logits.scatter(1, itself.unsqueeze(1), float("-inf"))
        return F.cross_entropy(logits, positive)


def contrasted(
    embeddings: Tensor, temperature: float, group: ProcessGroup | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the logits (2B, 2N) of this rank's views and all, and for each (2B,) where it and its other view are."""
    check_two_views("embeddings", embeddings)
    check_temperature(temperature)
    embeddings = full_precision(embeddings)
    with torch.autocast(embeddings.device.type, enabled=False):
        z = F.normalize(embeddings, dim=-1)
        candidates = gather_views(z, group)
        local, total = z.shape[1], candidates.shape[1]
        logits = z.flatten(0, 1) @ candidates.flatten(0, 1).T / temperature
    sample = torch.arange(local, device=z.device) + group_rank(group) * local
    return logits, torch.cat([sample, sample + total]), torch.cat([sample + total, sample])
