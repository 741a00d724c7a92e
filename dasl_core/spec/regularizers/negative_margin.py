"""Settings of the hinge on distances of pairs."""

from pydantic import Field

from dasl_core.spec.regularizers.config import PairConfig


class NegativeMargin(PairConfig):
    """Pushes pairs apart that are nearer than a margin."""

    name = "negative_margin"

    margin: float = Field(1.4, gt=0, le=2)
    """Distance up to which a pair is pushed apart."""
