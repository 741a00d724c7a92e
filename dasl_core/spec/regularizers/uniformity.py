"""Settings of uniformity."""

from pydantic import Field

from dasl_core.spec.regularizers.config import PairConfig


class Uniformity(PairConfig):
    """Uniformity: pushes all pairs apart, near ones most.

    Wang and Isola, ICML 2020.
    """

    name = "uniformity"

    t: float = Field(2.0, gt=0, le=10)
    """Sharpness of the potential of a pair."""
