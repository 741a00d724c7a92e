"""Settings of KoLeo."""

from dasl_core.spec.regularizers.config import PairConfig


class KoLeo(PairConfig):
    """KoLeo: pushes each embedding away from the nearest one.

    Sablayrolles et al., ICLR 2019, as in DINOv2.
    """

    name = "koleo"
