"""Settings of VISReg's regularizer."""

from pydantic import Field

from dasl_core.spec.regularizers.config import SlicedConfig, Slices, register


@register
class VISReg(SlicedConfig):
    """VISReg's term: pulls embeddings towards a Gaussian, by mean, variance and quantiles.

    VISReg, 2026.
    """

    name = "visreg"

    slices: Slices = Field(4096, description="Number of random directions.")
