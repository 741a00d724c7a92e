"""MoCo v3 (Chen, Xie and He, ICCV 2021)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from dasl_core.distributed import gather_views, group_rank
from dasl_core.methods.base import BuildInputs, Outputs, Step
from dasl_core.methods.ema_teacher import PredictorMethod
from dasl_core.models.heads import deep_head
from dasl_core.models.moco_vit import fix_sincos_positions, initialize_as_moco_v3
from dasl_core.spec.methods.moco_v3 import ResolvedMoCoV3
from dasl_core.tensors import check_temperature, check_two_views, full_precision


class MoCoV3(PredictorMethod, name="moco_v3"):
    """MoCo v3: match the query of one view with the momentum encoder's key of the other view.

    Negatives are the keys of the whole global batch. There is no queue.
    """

    settings: ResolvedMoCoV3
    targets = "keys"

    def __init__(self, settings: ResolvedMoCoV3, inputs: BuildInputs) -> None:
        network, hidden, out = inputs.network, settings.hidden_dim, settings.projection_dim
        # As in the authors' code: a ViT has one more projector layer and a last predictor BatchNorm.
        is_vit = inputs.backbone.info.patch_size is not None
        if is_vit:
            if settings.initial_weights == "xavier":
                initialize_as_moco_v3(network)
            if settings.positions == "sincos":
                fix_sincos_positions(network)
            if settings.freeze_patch_projection:
                network.get_submodule("patch_embed.proj").requires_grad_(False)
        widths = [inputs.features, *[hidden] * (2 if is_vit else 1), out]
        projector = deep_head(widths, normalized_output=True)
        predictor = deep_head([out, hidden, out], normalized_output=is_vit)
        super().__init__(settings, inputs, projector, predictor)

    def loss(self, outputs: Outputs, step: Step) -> Tensor:
        self._expect_update(step)
        temperature = self.settings.temperature
        return moco_v3_loss(outputs["embeddings"], outputs["keys"], temperature, step.group)

    def chance_loss(self, batch_size: int) -> float:
        return 4 * self.settings.temperature * math.log(batch_size)


def moco_v3_loss(
    queries: Tensor, keys: Tensor, temperature: float, group: ProcessGroup | None = None
) -> Tensor:
    """Compute MoCo v3's loss: InfoNCE of the queries of one view and the keys of the other.

    It is summed over both directions and multiplied by 2 temperature (Chen et al. 2021, eq. 1 and
    algorithm 1); the mean over this rank's samples.

    Queries are local, and keys come from all ranks. The mean of the ranks' losses, and of their
    gradients, equals that of one process with the global batch.

    Args:
        queries: (2, B, h), raw; float16 and bfloat16 are computed in float32.
        keys: (2, B, h), raw; they get no gradient.
        temperature: divides the cosine similarities.
        group: process group over which the batch is shared; None: this process holds all of it.

    Raises:
        ValueError: an argument does not match this description.
    """
    check_two_views("queries", queries)
    check_two_views("keys", keys)
    check_temperature(temperature)
    with torch.autocast(queries.device.type, enabled=False):
        q = F.normalize(full_precision(queries), dim=-1)
        k = gather_views(F.normalize(full_precision(keys.detach()), dim=-1), group).flip(0)
        logits = q @ k.transpose(1, 2) / temperature  # (2, B, N), each view among the other's keys
        local = q.shape[1]
        positive = torch.arange(local, device=q.device) + group_rank(group) * local
        # The mean over both directions is half of their sum.
        return 4 * temperature * F.cross_entropy(logits.flatten(0, 1), positive.repeat(2))
