"""Multi-similarity (Wang et al., "Multi-Similarity Loss with General Pair Weighting for Deep Metric
Learning", CVPR 2019)."""

from typing import Self

from torch import Tensor, nn

from dasl_core.methods.base import register
from dasl_core.methods.metric_learning import MetricLearning, linear_head
from dasl_core.spec import ResolvedBackbone
from dasl_core.spec.methods.multi_similarity import ResolvedMultiSimilarity


@register("multi_similarity")
class MultiSimilarity(MetricLearning):
    """Multi-similarity: weight each pair by its cosine and by the cosines of its anchor's other pairs.

    Only informative pairs count: negatives nearer than the farthest positive, or farther by less than
    `epsilon`, and likewise for positives.
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Linear | nn.Sequential,
        *,
        alpha: float = 2.0,
        beta: float = 40.0,
        base: float = 0.5,
        epsilon: float = 0.1,
    ) -> None:
        from pytorch_metric_learning.losses import MultiSimilarityLoss
        from pytorch_metric_learning.miners import MultiSimilarityMiner

        super().__init__(backbone, head)
        self.criterion = MultiSimilarityLoss(alpha, beta, base)
        self.miner = MultiSimilarityMiner(epsilon)

    @classmethod
    def from_settings(
        cls,
        settings: ResolvedMultiSimilarity,
        backbone: ResolvedBackbone,
        network: nn.Module,
        num_classes: int | None,
    ) -> Self:
        return cls(
            network,
            linear_head(network, settings),
            alpha=settings.alpha,
            beta=settings.beta,
            base=settings.base,
            epsilon=settings.epsilon,
        )

    def compare(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self.criterion(embeddings, labels, self.miner(embeddings, labels))
        return loss
