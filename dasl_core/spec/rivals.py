"""Settings of the regularizers that DAR and SEC are compared with."""

from typing import Annotated, Literal

from pydantic import Field

from dasl_core.spec.base import SpecModel
from dasl_core.spec.fields import Weight

Slices = Annotated[int, Field(ge=1, le=65_536)]


class Rival(SpecModel):
    """A regularizer with a weight, for which nothing was measured that could be a default."""

    weight: Weight = Field(
        description="Factor on the term. 0 leaves the run bit-identical to one without it."
    )

    @property
    def active(self) -> bool:
        """Whether the term adds anything to the loss."""
        return self.weight > 0


class PairRival(Rival):
    """A regularizer that pushes normalized embeddings with different labels apart."""

    labels: Literal["instance", "class"] = Field(
        "instance",
        description=(
            'Which embeddings are pushed apart: those of different images ("instance") or of '
            'different classes of the data set ("class").'
        ),
    )


class Uniformity(PairRival):
    """Uniformity (Wang and Isola, ICML 2020)."""

    t: float = Field(2.0, gt=0, le=10, description="Sharpness of the potential of a pair.")


class KoLeo(PairRival):
    """KoLeo (Sablayrolles et al., ICLR 2019), as in DINOv2."""


class NegativeMargin(PairRival):
    """A hinge on the distances of pairs."""

    margin: float = Field(
        1.4, gt=0, le=2, description="Distance up to which a pair is pushed apart."
    )


class SIGReg(Rival):
    """SIGReg (LeJEPA, 2025) on raw embeddings, for each view."""

    slices: Slices = Field(256, description="Number of random directions.")


class VISReg(Rival):
    """The regularizer of VISReg (2026) on raw embeddings, for each view."""

    slices: Slices = Field(4096, description="Number of random directions.")


class Rivals(SpecModel):
    """Regularizers to compare DAR and SEC with; any number of them can be on."""

    uniformity: Uniformity | None = Field(
        None, description="Uniformity: pushes all pairs apart, near ones most."
    )
    koleo: KoLeo | None = Field(
        None, description="KoLeo: pushes each embedding away from the nearest one."
    )
    negative_margin: NegativeMargin | None = Field(
        None, description="Pushes pairs apart that are nearer than a margin."
    )
    sigreg: SIGReg | None = Field(
        None,
        description="SIGReg: pulls embeddings towards a Gaussian, by characteristic functions.",
    )
    visreg: VISReg | None = Field(
        None,
        description="VISReg's term: the same, by mean, variance and quantiles.",
    )

    def active(self) -> dict[str, Rival]:
        """Return the regularizers that add something to the loss, by name."""
        given: dict[str, Rival | None] = dict(self)
        return {name: rival for name, rival in given.items() if rival is not None and rival.active}
