"""The regularizer of VISReg (Wu et al., 2026, https://arxiv.org/abs/2606.02572)."""

import torch
from torch import Tensor

from dasl_core.regularizers.base import SlicedRegularizer, check_views, random_directions
from dasl_core.spec.regularizers import visreg as config

# Added to the standard deviation as a divisor.
EPSILON = 1e-4


def visreg_loss(
    embeddings: Tensor, *, slices: int = 4096, generator: torch.Generator | None = None
) -> Tensor:
    """Compute the sum of VISReg's terms for center, scale and shape of raw embeddings.

    The center is the squared mean, the scale the squared deviation of each coordinate's standard
    deviation from 1. The shape is the squared Wasserstein distance to N(0, 1) of projections of
    standardized embeddings on random directions; no gradient flows through that standard deviation.

    Args:
        embeddings: (..., N, h), such as (V, N, h) of V views, each of which is compared; on several
            processes those of the global batch, gathered with a backward that sums over ranks.
        slices: number of directions.
        generator: a CPU generator for them, the same on every rank; None: torch's global one.

    Returns:
        A scalar in float32 (float64 for float64 embeddings).

    Raises:
        ValueError: an argument is not valid; the message names it.
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        z = check_views(embeddings)
        samples = z.shape[-2]
        mean = z.mean(dim=-2, keepdim=True)
        std = z.std(dim=-2, correction=0, keepdim=True)
        standardized = (z - mean) / (std.detach() + EPSILON)
        projections = standardized @ random_directions(z, slices, generator)
        ranks = torch.arange(1, samples + 1, device=z.device, dtype=torch.float64)
        quantiles = torch.special.ndtri(ranks / (samples + 1)).to(z.dtype).unsqueeze(-1)
        shape: Tensor = (projections.sort(dim=-2).values - quantiles).square().mean()
        return mean.square().mean() + (1 - std).square().mean() + shape


class VISReg(SlicedRegularizer, name="visreg"):
    """`visreg_loss` in a job."""

    settings: config.VISReg

    def sliced_loss(self, embeddings: Tensor, generator: torch.Generator) -> Tensor:
        return visreg_loss(embeddings, slices=self.settings.slices, generator=generator)
