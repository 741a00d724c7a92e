"""N-pair (Sohn, "Improved Deep Metric Learning with Multi-class N-pair Loss Objective", NeurIPS 2016),
normalized and scaled as in the SEC paper (Zhang et al., NeurIPS 2020)."""

import torch.nn.functional as F
from torch import Tensor

from dasl_core.methods.base import BuildInputs
from dasl_core.methods.metric_learning import MetricLearning
from dasl_core.spec.methods.npair import ResolvedNPair


class NPair(MetricLearning, name="npair"):
    """N-pair: with one pair of each class, match the anchor with its positive among those of all classes.

    With `normalize`, logits are `scale` times the cosine, which is also called the normalized
    N-pair or tuplet loss. Without, they are the dot products of raw embeddings, as in Sohn's paper,
    whose penalty on their norms is SEC with its target at zero.
    """

    settings: ResolvedNPair

    def __init__(self, settings: ResolvedNPair, inputs: BuildInputs) -> None:
        from pytorch_metric_learning.distances import DotProductSimilarity
        from pytorch_metric_learning.losses import NPairsLoss

        super().__init__(settings, inputs)
        self.criterion = NPairsLoss(distance=DotProductSimilarity(normalize_embeddings=False))

    def compare(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        if self.settings.normalize:
            embeddings = F.normalize(embeddings, dim=1) * self.settings.scale**0.5
        loss: Tensor = self.criterion(embeddings, labels)
        return loss
