"""Settings of KoLeo."""

from dasl_core.spec.regularizers.config import PairConfig, register


@register
class KoLeo(PairConfig):
    """KoLeo: pushes each embedding away from the nearest one.

    Sablayrolles et al., ICLR 2019, as in DINOv2.
    """

    name = "koleo"
