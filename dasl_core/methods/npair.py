"""N-pair (Sohn, "Improved Deep Metric Learning with Multi-class N-pair Loss Objective", NeurIPS 2016),
normalized and scaled as in the SEC paper (Zhang et al., NeurIPS 2020)."""

from typing import Self

import torch.nn.functional as F
from torch import Tensor, nn

from dasl_core.methods.base import register
from dasl_core.methods.metric_learning import MetricLearning, linear_head
from dasl_core.spec import ResolvedBackbone
from dasl_core.spec.methods.npair import ResolvedNPair


@register("npair")
class NPair(MetricLearning):
    """N-pair: with one pair of each class, match the anchor with its positive among those of all classes.

    With `normalize`, logits are `scale` times the cosine, which is also called the normalized
    N-pair or tuplet loss. Without, they are the dot products of raw embeddings, as in Sohn's paper,
    whose penalty on their norms is SEC with its target at zero.
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Linear | nn.Sequential,
        *,
        scale: float = 25.0,
        normalize: bool = True,
    ) -> None:
        from pytorch_metric_learning.distances import DotProductSimilarity
        from pytorch_metric_learning.losses import NPairsLoss

        super().__init__(backbone, head)
        self.scale, self.normalize = scale, normalize
        self.criterion = NPairsLoss(distance=DotProductSimilarity(normalize_embeddings=False))

    @classmethod
    def from_settings(
        cls,
        settings: ResolvedNPair,
        backbone: ResolvedBackbone,
        network: nn.Module,
        num_classes: int | None,
    ) -> Self:
        return cls(
            network,
            linear_head(network, settings),
            scale=settings.scale,
            normalize=settings.normalize,
        )

    def compare(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        if self.normalize:
            embeddings = F.normalize(embeddings, dim=1) * self.scale**0.5
        loss: Tensor = self.criterion(embeddings, labels)
        return loss
