"""The triplet loss (Schroff et al., "FaceNet: A Unified Embedding for Face Recognition and Clustering",
CVPR 2015)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dasl_core.methods.base import BuildInputs
from dasl_core.methods.metric_learning import MetricLearning
from dasl_core.spec.methods.triplet import ResolvedTriplet
from dasl_core.tensors import check_matrix, full_precision, label_vector


class Triplet(MetricLearning, name="triplet"):
    """Triplet: pull an image nearer to its class than to others, by a margin of squared distances.

    With ``mining="semihard"`` it is `semihard_triplet_loss`; otherwise the mean over triplets of the
    global batch, either all of them or all with a semi-hard negative: farther away than the positive, yet
    within the margin.
    """

    settings: ResolvedTriplet

    def __init__(self, settings: ResolvedTriplet, inputs: BuildInputs) -> None:
        super().__init__(settings, inputs)
        self.mean_over_triplets = (
            None
            if settings.mining == "semihard"
            else MeanOverTriplets(settings.margin, semihard=settings.mining == "all_semihard")
        )

    def compare(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        if self.mean_over_triplets is None:
            return semihard_triplet_loss(embeddings, labels, self.settings.margin)
        loss: Tensor = self.mean_over_triplets(embeddings, labels)
        return loss


class MeanOverTriplets(nn.Module):
    """The mean violation over all triplets, or over those with a semi-hard negative."""

    def __init__(self, margin: float, *, semihard: bool) -> None:
        from pytorch_metric_learning.distances import LpDistance
        from pytorch_metric_learning.losses import TripletMarginLoss
        from pytorch_metric_learning.miners import TripletMarginMiner
        from pytorch_metric_learning.reducers import MeanReducer

        super().__init__()
        squared = LpDistance(normalize_embeddings=True, power=2)
        self.criterion = TripletMarginLoss(margin, distance=squared, reducer=MeanReducer())
        self.miner = (
            TripletMarginMiner(margin, type_of_triplets="semihard", distance=squared)
            if semihard
            else None
        )

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        mined = None if self.miner is None else self.miner(embeddings, labels)
        loss: Tensor = self.criterion(embeddings, labels, mined)
        return loss


def semihard_triplet_loss(embeddings: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Compute the semi-hard triplet loss as TensorFlow and the SEC paper's code do.

    Each pair of an anchor and a positive has one negative: the nearest to the anchor of those farther
    than the positive or, if there is none, the farthest. The loss is the mean over these pairs of
    ``max(0, margin + d(anchor, positive) - d(anchor, negative))`` with squared distances d of normalized
    embeddings, and 0 without pairs or negatives. Memory is that of a few (N, N) matrices.

    Args:
        embeddings: (N, h), raw; float16 and bfloat16 are computed in float32.
        labels: (N,) integers.
        margin: of squared distances, which are at most 4.

    Raises:
        ValueError: an argument has another shape or type.
    """
    check_matrix("embeddings", embeddings, "(N, h)")
    labels = label_vector(labels, "labels", len(embeddings), embeddings.device)
    with torch.autocast(embeddings.device.type, enabled=False):
        directions = F.normalize(full_precision(embeddings), dim=1)
        distances = 2 - 2 * directions @ directions.T
    same_class = labels.unsqueeze(1) == labels
    negatives = distances.detach().masked_fill(same_class, torch.inf)
    ordered, order = negatives.sort(dim=1, stable=True)
    num_negatives = (~same_class).sum(dim=1, keepdim=True)
    farther = torch.searchsorted(ordered, distances.detach(), right=True)  # the first one
    chosen = order.gather(1, farther.minimum(num_negatives - 1).clamp(min=0))
    violations = F.relu(margin + distances - distances.gather(1, chosen))
    is_pair = same_class.fill_diagonal_(False) & (num_negatives > 0)
    return violations.masked_fill(~is_pair, 0).sum() / is_pair.sum().clamp(min=1)
