"""Softmax losses with an angular margin: SphereFace (Liu et al., CVPR 2017), CosFace (Wang et al., CVPR 2018)
and ArcFace (Deng et al., CVPR 2019)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from dasl_core.distributed import rank_share
from dasl_core.methods.base import BuildInputs, Outputs, Step
from dasl_core.methods.metric_learning import MetricLearning
from dasl_core.spec.methods.margin_softmax import ResolvedMarginSoftmax
from dasl_core.tensors import full_precision, to_device


class MarginSoftmax(MetricLearning, name="margin_softmax"):
    """Margin softmax: classify an embedding by its cosines with class vectors, its own at a handicap.

    The loss is a mean over samples, so each rank compares its own share of the batch only.
    """

    accumulates = True

    def __init__(self, settings: ResolvedMarginSoftmax, inputs: BuildInputs) -> None:
        from pytorch_metric_learning.losses import ArcFaceLoss, CosFaceLoss, SphereFaceLoss

        super().__init__(settings, inputs)
        loss, margin, scale = settings.loss, settings.margin, settings.scale
        assert scale is not None or loss == "sphereface", "check refuses it"
        assert inputs.num_classes is not None, "resolve refuses a data set without classes"
        self.normalize = scale is not None
        classes = {"sphereface": SphereFaceLoss, "cosface": CosFaceLoss, "arcface": ArcFaceLoss}
        self.criterion = classes[loss](
            inputs.num_classes,
            settings.embedding_dim,
            margin=math.degrees(margin) if loss == "arcface" else margin,
            scale=1.0 if scale is None else scale,
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
