"""Settings of SIGReg."""

from dasl_core.spec.regularizers.config import SlicedConfig, Slices


class SIGReg(SlicedConfig):
    """SIGReg: pulls embeddings towards a Gaussian, by characteristic functions.

    LeJEPA, 2025.
    """

    name = "sigreg"
    numbers_per_projection = 17  # frequencies at which each projection is evaluated

    slices: Slices = 256
    """Number of random directions."""
