"""Choose the channels, the window and the normalization of images."""

from itertools import pairwise
from typing import Literal

from dasl_core.spec.backbone import Backbone, Percentiles
from dasl_core.spec.fields import EIGHT_BIT, PixelType
from dasl_core.spec.normalization import IMAGENET, Normalization
from dasl_core.spec.problems import FieldProblem, Problems
from dasl_core.spec.resolve.backbone import starts_from_file
from dasl_core.spec.resolve.facts import QUANTILES, DatasetFacts
from dasl_core.spec.train import Train
from dasl_core.spec.weights_record import WeightsRecord

RGB = 3
AUTOMATIC_PERCENTILES = (0.1, 99.9)
# Without measurements. Decoders convert integers to floats in [0, 1].
RANGES: dict[PixelType, tuple[float, float]] = {
    "uint8": EIGHT_BIT,
    "uint16": (0.0, 65_535.0),
    "int16": (-32_768.0, 32_767.0),
    "float32": (0.0, 1.0),
}
UNKNOWN_MEAN, UNKNOWN_STD = 0.5, 0.25  # typical of values that fill their window
SMALLEST_STD = 0.001
# Values of other images that overlap less with a window have other units: 12 bits are 0.06 of 16 bits.
SMALLEST_SHARE = 0.1
# JPEG above this, on every machine, as a job may resume on another. Exact values save the decoding of the JPEG, 1.6 ms
# of a core for a photograph at 224 pixels; from 18,000 of these on, that is not worth a tenfold use of the disk.
LARGEST_RAW_BYTES = 10 << 30


def choose_channels(backbone: Backbone, facts: DatasetFacts, record: WeightsRecord) -> int:
    """Choose the number of channels of the network's input."""
    if backbone.in_channels != "auto":
        return backbone.in_channels
    if record.in_channels is not None:
        return record.in_channels
    return RGB if facts.bands == 1 else facts.bands


def check_channels(
    backbone: Backbone, channels: int, facts: DatasetFacts, problems: Problems
) -> None:
    """Refuse a number of channels to which decoders cannot convert the images.

    Gray and color convert to each other, and may have an opacity band that the facts do not tell.
    """
    possible = range(1, RGB + 2) if facts.bands in (1, RGB) else (facts.bands,)
    if channels in possible:
        return
    bands = f"{facts.bands} band{'s' if facts.bands > 1 else ''}"
    if backbone.in_channels == "auto":
        noun = "channel" if channels == 1 else "channels"
        problem = f"has weights for {channels} {noun}, and the images have {bands}"
        problems.add("backbone.pretrained", problem, backbone.pretrained or "")
    else:
        problem = f"does not fit the images, which have {bands}"
        problems.add("backbone.in_channels", problem, str(channels), f"{facts.bands} or auto")


_SHARES: tuple[PixelType, ...] = ("uint8", "uint16")


def check_pixel_type(backbone: Backbone, facts: DatasetFacts, problems: Problems) -> None:
    """Check that a type that is named is that of the data set."""
    if backbone.pixel_type not in ("auto", facts.dtype):
        message = f"the data set has {facts.dtype} values"
        problems.add(
            "backbone.pixel_type", message, backbone.pixel_type, f"'auto' or {facts.dtype}"
        )


def choose_window(
    backbone: Backbone, facts: DatasetFacts, problems: Problems
) -> tuple[float, float]:
    """Choose the raw values that map to 0 and 1."""
    given = backbone.window
    if not isinstance(given, Percentiles):
        if given != "auto":
            return given
        return automatic_window(facts.dtype, facts.quantiles)
    message = "needs the quantiles of the data set's values, which were not measured"
    if facts.quantiles is not None:
        low, high = (percentile(facts.quantiles, each) for each in given.percentiles)
        if low < high:
            return low, high
        message = f"is empty: both percentiles of the data set's values are {low:g}"
    problems.add(
        "backbone.window",
        message,
        str(list(given.percentiles)),
        "'auto', or two numbers: the raw values that become 0 and 1",
    )
    return RANGES[facts.dtype]


def automatic_window(dtype: PixelType, quantiles: tuple[float, ...] | None) -> tuple[float, float]:
    """Return the window of a pixel type, from the raw values at `QUANTILES` if measured."""
    if dtype == "uint8" or quantiles is None:
        return RANGES[dtype]
    low, high = (percentile(quantiles, each) for each in AUTOMATIC_PERCENTILES)
    if low == high:  # the content is in the few other values
        low, high = quantiles[0], quantiles[-1]
    return (low, high) if low < high else RANGES[dtype]


def conversion(source: PixelType, target: PixelType) -> float:
    """Return the factor by which values of a type are converted to another: 1 for those that stay as they are.

    Unsigned integers are shares of their range, and so are floats that they become (`dasl_core.data.decode`).
    """
    if source in _SHARES and target in (*_SHARES, "float32"):
        return RANGES[target][1] / RANGES[source][1]
    return 1.0


def fits_window(values: tuple[float, float], window: tuple[float, float]) -> bool:
    """Whether images whose values are in a range have contrast in the window of other images."""
    common = min(values[1], window[1]) - max(values[0], window[0])
    return common >= SMALLEST_SHARE * max(window[1] - window[0], values[1] - values[0])


def percentile(quantiles: tuple[float, ...], percent: float) -> float:
    """Interpolate linearly between the values at `QUANTILES`."""
    share = round(percent / 100, 12)  # 99.9 is the share 0.999
    for (left, right), (low, high) in zip(pairwise(QUANTILES), pairwise(quantiles), strict=True):
        if share <= right:
            return low + (high - low) * (share - left) / (right - left)
    return quantiles[-1]


def choose_image_cache(
    train: Train,
    image_size: int,
    channels: int,
    facts: DatasetFacts,
    problems: Problems,
) -> Literal["exact", "jpeg"]:
    """Choose the coding of cached images."""
    fits_jpeg = facts.dtype == "uint8" and channels in (1, RGB)
    if train.image_cache == "jpeg" and not fits_jpeg:
        problems.add(
            "train.image_cache",
            f"needs 8-bit images with 1 or 3 channels; these are {facts.dtype} with {channels}",
            "jpeg",
            "'auto' or 'exact'",
        )
    if train.image_cache != "auto":
        return train.image_cache
    raw = raw_canvas_bytes(image_size, channels, facts)
    return "jpeg" if fits_jpeg and raw > LARGEST_RAW_BYTES else "exact"


def raw_canvas_bytes(image_size: int, channels: int, facts: DatasetFacts) -> int:
    """Return an upper bound on the bytes of the decoded images."""
    # Canvases are at most twice the input size. The longer side of most images is less than twice the shorter.
    side = 2 * min(image_size, facts.median_size)
    return facts.num_images * channels * side**2


def choose_normalization(
    backbone: Backbone,
    channels: int,
    window: tuple[float, float],
    facts: DatasetFacts,
    recorded: Normalization | None,
    problems: Problems,
) -> Normalization:
    """Choose the mean and standard deviation of images; `recorded` is the weights' normalization, if known."""
    given = {"mean": backbone.mean, "std": backbone.std}
    automatic = [name for name, value in given.items() if value == "auto"]
    expected = _image_statistics(facts, channels, window)
    if recorded is not None:
        expected = recorded.with_channels(channels)
    elif automatic and starts_from_file(backbone):
        # A folder is a checkpoint, whose normalization the worker checks against this choice.
        published = backbone.info.normalizations
        if len(published) == 1:
            expected = published[0].with_channels(channels)
        else:
            problems.append(_unknown(backbone, channels, automatic))
    values = {name: value for name, value in given.items() if value != "auto"}
    for name, value in values.items():
        if len(value) != channels:
            problems.add(
                f"backbone.{name}",
                f"has {len(value)} values for {channels} channels",
                str(list(value)),
                f"'auto', or {channels} numbers: one for each of backbone.in_channels",
            )
    chosen = expected.model_copy(update=values | {"window": window})
    if recorded is not None and (problem := normalization_problem(chosen, recorded)):
        problems.append(problem)
    return chosen


def normalization_problem(chosen: Normalization, recorded: Normalization) -> FieldProblem | None:
    """Describe a mean and std that differ from those recorded with the weights.

    The record does not apply to images with another window or other bands.
    """
    channels = len(chosen.mean)
    expected = recorded.with_channels(channels)
    is_alike = chosen.window == recorded.window and channels in (1, len(recorded.mean))
    if not is_alike or chosen.is_close(expected):
        return None
    field = "backbone.std" if chosen.mean == expected.mean else "backbone.mean"
    return FieldProblem(
        field,
        "is not what the weights of backbone.pretrained were trained with, as their files record it",
        str(chosen),
        f"backbone.mean: {list(expected.mean)} and backbone.std: {list(expected.std)}, or auto for both; if "
        "the record is wrong, correct it in the files",
    )


def check_extra_bands(backbone: Backbone, channels: int, problems: Problems) -> None:
    """Refuse a setting for adapting weights if none are adapted."""
    if backbone.extra_bands == "repeat":
        return
    if not starts_from_file(backbone):
        cause = "without a file of weights in backbone.pretrained"
    elif channels in (1, RGB) or (backbone.extra_bands == "random" and channels < RGB):
        cause = f"with {channels} channel{'s' if channels > 1 else ''}"
    else:
        return
    problems.add(
        "backbone.extra_bands", f"has no effect {cause}; remove it", repr(backbone.extra_bands)
    )


def _image_statistics(
    facts: DatasetFacts, channels: int, window: tuple[float, float]
) -> Normalization:
    """Return ImageNet's normalization for images like ImageNet's, otherwise the data set's."""
    if facts.dtype == "uint8" and window == EIGHT_BIT and channels in (1, RGB):
        return IMAGENET.with_channels(channels)
    if facts.mean is None or facts.std is None:
        return Normalization(
            mean=(UNKNOWN_MEAN,) * channels, std=(UNKNOWN_STD,) * channels, window=window
        )
    low, high = window
    mean = [(each - low) / (high - low) for each in facts.mean]
    std = [each / (high - low) for each in facts.std]
    return Normalization(
        mean=tuple(round(min(1.0, max(0.0, each)), 6) for each in mean),
        std=tuple(round(min(1.0, max(SMALLEST_STD, each)), 6) for each in std),
        window=window,
    ).with_channels(channels)


def _unknown(backbone: Backbone, channels: int, automatic: list[str]) -> FieldProblem:
    """Describe that the normalization of a file of weights is unknown."""
    name, published = backbone.name, backbone.info.normalizations
    if published:
        reason = f"timm publishes weights of {name} with different ones"
        expected = "; or ".join(
            f"{each.with_channels(channels)} for {', '.join(each.weights)}" for each in published
        )
    else:
        reason = f"timm publishes no weights of {name}"
        expected = f"such as {IMAGENET.with_channels(channels)} (ImageNet's)"
    return FieldProblem(
        f"backbone.{automatic[0]}",
        "is not known for the weights of backbone.pretrained: no readable file next to them "
        f"records it, and {reason}; set backbone.mean and backbone.std to those of their training",
        "auto",
        expected,
    )
