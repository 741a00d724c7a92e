"""SIGReg (Balestriero and LeCun, "LeJEPA", 2025, https://arxiv.org/abs/2511.08544)."""

import torch
from torch import Tensor

from dasl_core.regularizers.base import SlicedRegularizer, check_views, random_directions
from dasl_core.spec.regularizers import sigreg as config

# The authors' grid for the Epps-Pulley integral, which is even in the frequency.
LARGEST_FREQUENCY, KNOTS = 3.0, 17


def sigreg_loss(
    embeddings: Tensor, *, slices: int = 256, generator: torch.Generator | None = None
) -> Tensor:
    """Compute the deviation of raw embeddings from a standard Gaussian in random directions.

    Projections on random directions are compared with N(0, 1) by the Epps-Pulley statistic: N times the
    squared difference of the characteristic functions, integrated with a Gaussian weight.

    Args:
        embeddings: (..., N, h), such as (V, N, h) of V views, each of which is compared; on several
            processes those of the global batch, gathered with a backward that sums over ranks. Memory
            is that of some tensors of 17 N `slices` numbers for each view.
        slices: number of directions.
        generator: a CPU generator for them, the same on every rank; None: torch's global one.

    Returns:
        A scalar in float32 (float64 for float64 embeddings), the mean over directions and views.

    Raises:
        ValueError: an argument is not valid; the message names it.
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        z = check_views(embeddings)
        projections = z @ random_directions(z, slices, generator)  # (..., N, slices)
        frequencies = torch.linspace(0, LARGEST_FREQUENCY, KNOTS, dtype=z.dtype, device=z.device)
        gaussian = torch.exp(-frequencies.square() / 2)
        angles = projections.unsqueeze(-1) * frequencies
        real, imaginary = angles.cos().mean(dim=-3), angles.sin().mean(dim=-3)
        error = ((real - gaussian).square() + imaginary.square()) * gaussian
        return 2 * z.shape[-2] * torch.trapezoid(error, frequencies, dim=-1).mean()


class SIGReg(SlicedRegularizer, name="sigreg"):
    """`sigreg_loss` in a job."""

    settings: config.SIGReg

    def sliced_loss(self, embeddings: Tensor, generator: torch.Generator) -> Tensor:
        return sigreg_loss(embeddings, slices=self.settings.slices, generator=generator)
