"""MoCo v3 (Chen, Xie and He, ICCV 2021)."""

from collections.abc import Sequence
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dasl_core.distributed import gather_views, rank
from dasl_core.methods.base import Outputs, Step
from dasl_core.methods.taught import TaughtMethod
from dasl_core.models.backbone import build_backbone, feature_width
from dasl_core.models.ema import Teacher
from dasl_core.models.heads import deep_head
from dasl_core.spec import BACKBONES, ResolvedJobSpec
from dasl_core.spec import methods as settings_of
from dasl_core.tensors import check_temperature, check_two_views, full_precision


class MoCoV3(TaughtMethod):
    """The query of one view finds, among the momentum encoder's keys of the whole global batch, the
    key of the other view of its image. There is no queue.

    Args:
        momentum: of the momentum encoder at the first step; it grows to 1 in a half cosine.
        keep: whose backbone is evaluated and exported.
    """

    def __init__(
        self,
        backbone: nn.Module,
        projector: nn.Module,
        predictor: nn.Module,
        *,
        temperature: float,
        momentum: float,
        keep: Literal["student", "teacher"],
    ) -> None:
        super().__init__()
        self.backbone, self.projector, self.predictor = backbone, projector, predictor
        self.teacher = Teacher(backbone, projector)
        self.temperature, self.momentum, self.keep = temperature, momentum, keep

    @classmethod
    def from_spec(cls, spec: ResolvedJobSpec, num_classes: int | None) -> Self:
        settings = spec.method
        assert isinstance(settings, settings_of.ResolvedMoCoV3)
        backbone = build_backbone(spec.backbone)
        features, hidden = feature_width(backbone), settings.hidden_dim
        out = settings.projection_dim
        # The authors' code: a ViT's projector has a layer more, its predictor a last BatchNorm.
        if BACKBONES[spec.backbone.name].family == "vit":
            if settings.freeze_patch_projection:
                backbone.get_submodule("patch_embed.proj").requires_grad_(False)
            projector = deep_head([features, hidden, hidden, out], normalised_output=True)
            predictor = deep_head([out, hidden, out], normalised_output=True)
        else:
            projector = deep_head([features, hidden, out], normalised_output=True)
            predictor = deep_head([out, hidden, out], normalised_output=False)
        return cls(
            backbone,
            projector,
            predictor,
            temperature=settings.temperature,
            momentum=settings.teacher_momentum,
            keep=settings.keep,
        )

    def forward(self, views: Sequence[Tensor]) -> Outputs:
        """``embeddings``: the queries; ``keys``: the momentum encoder's; both (2, B, h)."""
        # One pass over both views: batch statistics are those of both, as with SimCLR.
        images = torch.cat(list(views))
        queries = self.predictor(self.projector(self.backbone(images)))
        return {
            "embeddings": queries.unflatten(0, (len(views), -1)),
            "keys": self.teacher(images).unflatten(0, (len(views), -1)),
        }

    def loss(self, outputs: Outputs, step: Step) -> Tensor:
        return moco_v3_loss(outputs["embeddings"], outputs["keys"], self.temperature)

    @property
    def taught_head(self) -> nn.Module:
        return self.projector


def moco_v3_loss(queries: Tensor, keys: Tensor, temperature: float) -> Tensor:
    """InfoNCE of the queries of one view among the keys of the other, summed over both ways and times
    2 temperature (Chen et al. 2021, eq. 1 and algorithm 1): the mean over this rank's samples.

    Queries are local, keys those of all ranks. The mean of the ranks' losses, and of their gradients,
    is that of one process with the global batch.

    Args:
        queries: (2, B, h), raw; float16 and bfloat16 are computed in float32.
        keys: (2, B, h), raw; they get no gradient.
        temperature: divides the cosine similarities.

    Raises:
        ValueError: an argument is not as described.
    """
    check_two_views("queries", queries)
    check_two_views("keys", keys)
    check_temperature(temperature)
    with torch.autocast(queries.device.type, enabled=False):
        q = F.normalize(full_precision(queries), dim=-1)
        k = gather_views(F.normalize(full_precision(keys.detach()), dim=-1)).flip(0)
        logits = q @ k.transpose(1, 2) / temperature  # (2, B, N), each view among the other's keys
        local = q.shape[1]
        positive = torch.arange(local, device=q.device) + rank() * local
        # The mean over both ways is half of their sum.
        return 4 * temperature * F.cross_entropy(logits.flatten(0, 1), positive.repeat(2))
