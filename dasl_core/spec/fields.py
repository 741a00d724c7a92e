"""Constrained types of fields that several parts of a spec share."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from dasl_core.spec.base import problem
from dasl_core.spec.errors import LINE_PATTERN, METRIC_PATTERN, NAME_PATTERN

LONGEST_NAME = 200
Name = Annotated[
    str, StringConstraints(min_length=1, max_length=LONGEST_NAME, pattern=NAME_PATTERN)
]
Tag = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=LINE_PATTERN)]
# As Ray allows them in labels of nodes.
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
LabelKey = Annotated[
    str, StringConstraints(max_length=253, pattern=rf"^([A-Za-z0-9.-]{{1,180}}/)?{_LABEL}$")
]
LabelValue = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=rf"^{_LABEL}$")]
NodeName = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[!-~]+$")]
MetricName = Annotated[str, StringConstraints(min_length=1, max_length=50, pattern=METRIC_PATTERN)]
PositiveInt = Annotated[int, Field(ge=1, le=1_000_000_000)]
CpuCount = Annotated[int, Field(ge=1, le=1024)]
# Far above any rate, decay or weight that trains. Larger ones overflow float32 soon, which would show
# only after a run has started.
LARGEST_RATE, LARGEST_DECAY, LARGEST_WEIGHT = 1e4, 100.0, 1e6
Weight = Annotated[float, Field(ge=0, le=LARGEST_WEIGHT)]
Rate = Annotated[float, Field(gt=0, le=LARGEST_RATE)]
Decay = Annotated[float, Field(ge=0, le=LARGEST_DECAY)]
Probability = Annotated[float, Field(ge=0, le=1)]
# fail_fast: report only the first invalid entry of what may be many.
PerView = Annotated[tuple[Probability, ...], Field(min_length=1, max_length=100, fail_fast=True)]
MOST_CHANNELS = 64
Channels = Annotated[int, Field(ge=1, le=MOST_CHANNELS)]
# In units of the window, so that constants for 0 to 255, such as 123.675, are refused.
ChannelMeans = Annotated[
    tuple[Probability, ...], Field(min_length=1, max_length=MOST_CHANNELS, fail_fast=True)
]
ChannelStds = Annotated[
    tuple[Annotated[float, Field(ge=0.001, le=1)], ...],
    Field(min_length=1, max_length=MOST_CHANNELS, fail_fast=True),
]


def _increasing(bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = bounds
    if low >= high:
        raise problem("must increase", [low, high], "two numbers: low, then a larger high")
    return bounds


# Far above any sensor's values, so that products of them stay finite in float32.
LARGEST_VALUE = 1e12
_RawValue = Annotated[float, Field(ge=-LARGEST_VALUE, le=LARGEST_VALUE)]
Window = Annotated[tuple[_RawValue, _RawValue], AfterValidator(_increasing)]
EIGHT_BIT = (0.0, 255.0)
"""The window of 8-bit images."""
PixelType = Literal["uint8", "uint16", "int16", "float32"]
# A share below a tenth would be a slip, such as pixels or percent.
CropShare = Annotated[float, Field(ge=0.1, le=1)]
SMALLEST_IMAGE, LARGEST_IMAGE = 8, 1024
ImageSize = Annotated[int, Field(ge=SMALLEST_IMAGE, le=LARGEST_IMAGE)]
JitterStrength = Annotated[float, Field(ge=0, le=2)]
Saturation = Annotated[float, Field(ge=0, le=2)]
Interpolation = Literal["bilinear", "bicubic"]
LayerDecay = Annotated[float, Field(gt=0, le=1)]
RateShare = Annotated[float, Field(ge=0, le=1)]
DropPath = Annotated[float, Field(ge=0, lt=1)]
ClusterCount = Annotated[int, Field(ge=2, le=1_000_000)]
GlobalBatch = Annotated[int, Field(ge=2, le=1_000_000_000)]
RateFactor = Annotated[float, Field(gt=0, le=10_000)]
Pooling = Literal["timm", "average_max", "token"]
FrozenBatchNorm = Literal["none", "statistics", "all"]
Epochs = Annotated[int, Field(ge=1, le=100_000)]
WholeEpochs = Annotated[int, Field(ge=0, le=100_000)]
PositiveEpochs = Annotated[float, Field(gt=0, le=100_000)]
WarmupEpochs = Annotated[float, Field(ge=0, le=100_000)]
