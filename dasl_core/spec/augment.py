"""Settings of the random views."""

from pydantic import Field, field_validator

from dasl_core.spec.base import Auto, SpecModel
from dasl_core.spec.fields import Interpolation, JitterStrength, PerView, Probability, Saturation
from dasl_core.spec.methods.config import range_of_areas


class Augment(SpecModel):
    """Random views, drawn for each sample (Chen et al. 2020, appendix A; Grill et al. 2020, B).

    "auto" is the method's recipe.
    """

    crop_scale: tuple[float, float] | Auto = "auto"
    """Smallest and largest fraction of the image area that a crop keeps; 0 < low <= high <= 1. "auto": the
    method's recipe."""
    interpolation: Interpolation | Auto = "auto"
    """Filter by which a crop is resampled, as Pillow's of the same name. "auto": bilinear."""
    flip: float = Field(0.5, ge=0, le=1)
    """Probability of a horizontal flip."""
    vertical_flip: float = Field(0.0, ge=0, le=1)
    """Probability of a vertical flip, for images without an up."""
    rotate: float = Field(0.0, ge=0, le=1)
    """Probability of a rotation by 90, 180 or 270 degrees, each as likely as the others: with 0.75, all four
    orientations are."""
    jitter: JitterStrength | Auto = "auto"
    """Strength of the color jitter; 1 is SimCLR's value for ImageNet. "auto": 0.5; 0 for supervised methods."""
    saturation: Saturation | Auto = "auto"
    """Strength of the jitter of saturation, as a factor of that of brightness and contrast. "auto": 1."""
    jitter_probability: float = Field(0.8, ge=0, le=1)
    """Probability that a view is jittered."""
    grayscale: Probability | Auto = "auto"
    """Probability of removing all color. "auto": 0.2; 0 for supervised methods."""
    blur: Probability | PerView | Auto = "auto"
    """Probability of a Gaussian blur: one number, or a list with one for each view, whose last entry applies
    to all remaining views. "auto": the method's for images of more than 64 pixels, else 0."""
    solarize: Probability | PerView | Auto = "auto"
    """Probability of inverting the pixels above one half; one number or a list, as for `blur`. "auto": the
    method's for images of more than 64 pixels, else 0."""

    channel_drop: float = Field(0.0, ge=0, le=1)
    """Probability that one band, any of them, becomes the mean that the network expects: 0 after the
    normalization. For images of more than one band."""

    @field_validator("crop_scale")
    @classmethod
    def _check_range(cls, scale: tuple[float, float] | Auto) -> tuple[float, float] | Auto:
        return scale if scale == "auto" else range_of_areas(scale)
