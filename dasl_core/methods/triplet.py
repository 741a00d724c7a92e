"""The triplet loss, over all triplets or semi-hard ones (Schroff et al., "FaceNet: A Unified Embedding
for Face Recognition and Clustering", CVPR 2015)."""

from typing import Literal, Self

from torch import Tensor, nn

from dasl_core.methods.base import register
from dasl_core.methods.metric_learning import MetricLearning, backbone_and_head
from dasl_core.spec import ResolvedBackbone
from dasl_core.spec.methods.triplet import ResolvedTriplet


@register("triplet")
class Triplet(MetricLearning):
    """Triplet: pull an image nearer to its class than to others, by a margin of squared distances.

    The mean runs over all triplets of the global batch, or over those with a *semi-hard* negative:
    farther away than the positive, yet within the margin.
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Linear,
        *,
        mining: Literal["all", "semihard"] = "semihard",
        margin: float = 0.2,
    ) -> None:
        from pytorch_metric_learning.distances import LpDistance
        from pytorch_metric_learning.losses import TripletMarginLoss
        from pytorch_metric_learning.miners import TripletMarginMiner
        from pytorch_metric_learning.reducers import MeanReducer

        super().__init__(backbone, head)
        squared = LpDistance(normalize_embeddings=True, power=2)
        self.criterion = TripletMarginLoss(margin, distance=squared, reducer=MeanReducer())
        self.miner = (
            TripletMarginMiner(margin, type_of_triplets="semihard", distance=squared)
            if mining == "semihard"
            else None
        )

    @classmethod
    def from_settings(
        cls, settings: ResolvedTriplet, backbone: ResolvedBackbone, num_classes: int | None
    ) -> Self:
        return cls(
            *backbone_and_head(backbone, settings.embedding_dim),
            mining=settings.mining,
            margin=settings.margin,
        )

    def compare(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        mined = None if self.miner is None else self.miner(embeddings, labels)
        loss: Tensor = self.criterion(embeddings, labels, mined)
        return loss
