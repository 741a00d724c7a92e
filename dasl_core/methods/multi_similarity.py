"""Multi-similarity (Wang et al., "Multi-Similarity Loss with General Pair Weighting for Deep Metric
Learning", CVPR 2019)."""

from torch import Tensor

from dasl_core.methods.base import BuildInputs
from dasl_core.methods.metric_learning import MetricLearning
from dasl_core.spec.methods.multi_similarity import ResolvedMultiSimilarity


class MultiSimilarity(MetricLearning, name="multi_similarity"):
    """Multi-similarity: weight each pair by its cosine and by the cosines of its anchor's other pairs.

    Only informative pairs count: negatives nearer than the farthest positive, or farther by less than
    `epsilon`, and likewise for positives.
    """

    def __init__(self, settings: ResolvedMultiSimilarity, inputs: BuildInputs) -> None:
        from pytorch_metric_learning.losses import MultiSimilarityLoss
        from pytorch_metric_learning.miners import MultiSimilarityMiner

        super().__init__(settings, inputs)
        self.criterion = MultiSimilarityLoss(settings.alpha, settings.beta, settings.base)
        self.miner = MultiSimilarityMiner(settings.epsilon)

    def compare(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self.criterion(embeddings, labels, self.miner(embeddings, labels))
        return loss
