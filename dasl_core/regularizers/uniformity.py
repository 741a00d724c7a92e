"""Uniformity (Wang and Isola, "Understanding Contrastive Representation Learning through Alignment and
Uniformity on the Hypersphere", ICML 2020)."""

import torch
from torch import Tensor

from dasl_core.regularizers.base import PairRegularizer, directions_and_pairs
from dasl_core.spec.regularizers import uniformity as config
from dasl_core.tensors import check_number


def uniformity_loss(embeddings: Tensor, labels: Tensor, t: float = 2.0) -> Tensor:
    """Compute ``log mean exp(-t ||x_i - x_j||^2)`` of normalized embeddings over pairs with different labels.

    Args:
        embeddings: (N, h), of all views; on several processes those of the global batch, gathered
            with a backward that sums over ranks. Memory is that of a few (N, N) matrices.
        labels: (N,) integers; instance ids exclude pairs of views of one image.
        t: sharpness of the potential.

    Returns:
        A scalar from -4t to 0, in float32 (float64 for float64 embeddings); 0 without such pairs.

    Raises:
        ValueError: an argument is not valid; the message names it.
    """
    check_number(t, "t")
    directions, pairs = directions_and_pairs(embeddings, labels)
    with torch.autocast(embeddings.device.type, enabled=False):
        exponents = 2 * t * (directions @ directions.T - 1)
    # In logarithms, because with a large t all potentials underflow float32. Without pairs, all exponents are used so
    # that the gradient is 0 and not NaN.
    any_pair = pairs.any()
    total = exponents.masked_fill(~pairs & any_pair, -torch.inf).flatten().logsumexp(dim=0)
    return torch.where(any_pair, total - pairs.sum().clamp(min=1).to(total.dtype).log(), 0)


class Uniformity(PairRegularizer, name="uniformity"):
    """`uniformity_loss` in a job."""

    settings: config.Uniformity

    def pair_loss(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return uniformity_loss(embeddings, labels, self.settings.t)
