"""Facts about a data set for resolving "auto" settings."""

from itertools import pairwise
from typing import Annotated, Self

from pydantic import Field, model_validator

from dasl_core.spec.base import SpecModel
from dasl_core.spec.fields import PixelType
from dasl_core.spec.job import JobSpec

# Quantiles of a sample's raw values, as shares; finer at the ends, where windows are cut.
QUANTILES = (
    *(0.0, 0.001, 0.005, 0.01, 0.02, 0.05, 0.25),
    0.5,
    *(0.75, 0.95, 0.98, 0.99, 0.995, 0.999, 1.0),
)
_PerBand = Annotated[tuple[float, ...], Field(min_length=1)]


class DatasetFacts(SpecModel):
    """Facts about an ingested data set."""

    num_images: int = Field(ge=1, lt=2**31)
    num_classes: int | None
    """Number of classes; null if there are no labels."""
    median_size: int = Field(ge=1)
    """Median of the images' shorter side, in pixels."""
    group_column: str | None = None
    """Column of the source with the groups of the images; null if it was registered without one."""
    bands: int = Field(3, ge=1)
    """Bands of most images; 3 for gray, color, transparency and CMYK."""
    dtype: PixelType = "uint8"
    """The deepest type of pixels among the images."""
    quantiles: tuple[float, ...] | None = None
    """Raw values of a sample at the shares QUANTILES; null if they were not measured."""
    mean: _PerBand | None = None
    """Mean of each band, in raw values."""
    std: _PerBand | None = None
    """Standard deviation of each band, in raw values."""
    has_dicom: bool = False
    """Whether any image is a DICOM file."""

    @model_validator(mode="after")
    def _check_quantiles(self) -> Self:
        values = self.quantiles
        if values is None:
            return self
        if len(values) != len(QUANTILES) or any(a > b for a, b in pairwise(values)):
            raise ValueError(f"quantiles must be {len(QUANTILES)} numbers that do not decrease")
        return self


def training_images(spec: JobSpec, facts: DatasetFacts) -> int:
    """Return the number of training images; its expectation if whole classes are held out."""
    evaluate = spec.evaluate
    if evaluate.dataset is not None or evaluate.holdout is None:
        return facts.num_images
    return facts.num_images - round(facts.num_images * evaluate.holdout.fraction)


def training_classes(spec: JobSpec, facts: DatasetFacts) -> int:
    """Return the number of training classes; 0 without labels."""
    classes, holdout = facts.num_classes or 0, spec.evaluate.holdout
    if spec.evaluate.dataset is not None or holdout is None or holdout.by != "class":
        return classes
    return classes - round(classes * holdout.fraction)
