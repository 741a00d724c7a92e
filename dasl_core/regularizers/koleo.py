"""KoLeo (Sablayrolles et al., "Spreading Vectors for Similarity Search", ICLR 2019), as in DINOv2."""

import torch
import torch.nn.functional as F
from torch import Tensor

from dasl_core.regularizers.base import PairRegularizer, directions_and_pairs, mean_where

# Added to the coordinates and the length of a difference, as in DINOv2's code.
EPSILON = 1e-8


def koleo_loss(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Compute ``-mean log ||x_i - x_nearest||`` of normalized embeddings, an estimate of negative entropy.

    Args:
        embeddings: (N, h), of all views; on several processes those of the global batch, gathered
            with a backward that sums over ranks. Memory is that of a few (N, N) matrices.
        labels: (N,) integers; the nearest embedding has another label. Instance ids exclude other views of the
            same image; DINOv2 instead compares each view's embeddings alone.

    Returns:
        A scalar in float32 (float64 for float64 embeddings); 0 if all labels are equal.

    Raises:
        ValueError: an argument is not valid; the message names it.
    """
    directions, pairs = directions_and_pairs(embeddings, labels)
    if len(directions) == 0:
        return directions.sum()
    with torch.autocast(embeddings.device.type, enabled=False):
        fixed = directions.detach()
        nearest = (fixed @ fixed.T).masked_fill(~pairs, -torch.inf).argmax(dim=1)
        distances = F.pairwise_distance(directions, directions[nearest], eps=EPSILON)
    return mean_where(-(distances + EPSILON).log(), pairs.any(dim=1))


class KoLeo(PairRegularizer, name="koleo"):
    """`koleo_loss` in a job."""

    def pair_loss(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return koleo_loss(embeddings, labels)
