"""Settings of VISReg's regularizer."""

from dasl_core.spec.regularizers.config import SlicedConfig, Slices


class VISReg(SlicedConfig):
    """VISReg's term: pulls embeddings towards a Gaussian, by mean, variance and quantiles.

    VISReg, 2026.
    """

    name = "visreg"

    slices: Slices = 4096
    """Number of random directions."""
