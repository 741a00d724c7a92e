"""Softmax losses with an angular margin: SphereFace (Liu et al., CVPR 2017), CosFace (Wang et al., CVPR 2018)
and ArcFace (Deng et al., CVPR 2019)."""

import math
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dasl_core.distributed import rank_share
from dasl_core.methods.base import Outputs, Step, register
from dasl_core.methods.metric_learning import MetricLearning, linear_head
from dasl_core.spec import ResolvedBackbone
from dasl_core.spec.methods.margin_softmax import ResolvedMarginSoftmax
from dasl_core.tensors import full_precision, to_device


@register("margin_softmax")
class MarginSoftmax(MetricLearning):
    """Margin softmax: classify an embedding by its cosines with class vectors, its own at a handicap.

    The loss is a mean over samples, so each rank compares its own share of the batch only.

    Args:
        margin: a factor of the angle (SphereFace), a cosine (CosFace) or radians (ArcFace).
        scale: multiplies the cosines; None, with SphereFace: the embedding's norm.
    """

    accumulates = True

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Linear | nn.Sequential,
        num_classes: int,
        *,
        loss: Literal["sphereface", "cosface", "arcface"] = "arcface",
        margin: float = 0.5,
        scale: float | None = 64.0,
    ) -> None:
        from pytorch_metric_learning.losses import ArcFaceLoss, CosFaceLoss, SphereFaceLoss

        super().__init__(backbone, head)
        assert scale is not None or loss == "sphereface", "check refuses it"
        self.normalize = scale is not None
        classes = {"sphereface": SphereFaceLoss, "cosface": CosFaceLoss, "arcface": ArcFaceLoss}
        self.criterion = classes[loss](
            num_classes,
            self.embedding_dim,
            margin=math.degrees(margin) if loss == "arcface" else margin,
            scale=1.0 if scale is None else scale,
        )

    @classmethod
    def from_settings(
        cls,
        settings: ResolvedMarginSoftmax,
        backbone: ResolvedBackbone,
        network: nn.Module,
        num_classes: int | None,
    ) -> Self:
        assert num_classes is not None, "resolve refuses a data set without classes"
        return cls(
            network,
            linear_head(network, settings),
            num_classes,
            loss=settings.loss,
            margin=settings.margin,
            scale=settings.scale,
        )

    def loss(self, outputs: Outputs, step: Step) -> Tensor:
        assert step.labels is not None, "resolve refuses a data set without classes"
        embeddings = full_precision(outputs["embeddings"][0])
        labels = to_device(rank_share(step.labels, step.group), embeddings.device)
        with torch.autocast(embeddings.device.type, enabled=False):
            return self.compare(embeddings, labels)

    def compare(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        if self.normalize:
            embeddings = F.normalize(embeddings, dim=1)
        # As the criterion does, whose mask of classes would make the host wait for the device to count it.
        criterion = self.criterion
        criterion.cast_types(embeddings.dtype, embeddings.device)
        cosine = criterion.get_cosine(embeddings)
        own = cosine.gather(1, labels.unsqueeze(1)).squeeze(1)
        handicap = (criterion.modify_cosine_of_target_classes(own) - own).unsqueeze(1)
        is_own = torch.zeros_like(cosine).scatter_(1, labels.unsqueeze(1), 1.0)
        logits = criterion.scale_logits(cosine + is_own * handicap, embeddings)
        return F.cross_entropy(logits, labels, reduction="none").mean()
