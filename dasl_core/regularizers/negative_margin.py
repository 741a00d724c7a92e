"""A hinge that keeps embeddings with different labels a margin apart (Hadsell, Chopra and LeCun, CVPR 2006).

A baseline for the question whether DAR is more than such a margin.
"""

import torch
from torch import Tensor

from dasl_core.regularizers.base import PairRegularizer, directions_and_pairs, mean_where
from dasl_core.spec.regularizers import negative_margin as config
from dasl_core.tensors import check_number

SMALLEST_SQUARE = 1e-12


def negative_margin_loss(embeddings: Tensor, labels: Tensor, margin: float = 1.4) -> Tensor:
    """Compute the mean of ``max(0, margin - ||x_i - x_j||)`` over pairs with different labels.

    Args:
        embeddings: (N, h), of all views, normalized here; on several processes those of the global
            batch, gathered with a backward that sums over ranks. Memory is that of a few (N, N)
            matrices.
        labels: (N,) integers; instance ids exclude pairs of views of one image.
        margin: margin of distances, which are at most 2; orthogonal embeddings have 1.414.

    Returns:
        A scalar in float32 (float64 for float64 embeddings); 0 without such pairs.

    Raises:
        ValueError: an argument is not valid; the message names it.
    """
    check_number(margin, "margin")
    directions, pairs = directions_and_pairs(embeddings, labels)
    with torch.autocast(embeddings.device.type, enabled=False):
        # Products instead of differences, which would be (N, N, h). Rounding moves a distance near 0 by
        # up to 0.0004; the clamp keeps the slope of the root finite there.
        squared = 2 - 2 * directions @ directions.T
        distances = squared.clamp(min=SMALLEST_SQUARE).sqrt()
    return mean_where(torch.relu(margin - distances), pairs)


class NegativeMargin(PairRegularizer, name="negative_margin"):
    """`negative_margin_loss` in a job."""

    settings: config.NegativeMargin

    def pair_loss(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return negative_margin_loss(embeddings, labels, self.settings.margin)
