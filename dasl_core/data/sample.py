"""A sample of a data set's images, decoded at ingest: statistics, thumbnails to compare, and damaged files."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
from PIL import Image

from dasl_core.data.bounded_map import AHEAD_PER_THREAD, bounded_map
from dasl_core.data.contact_sheet import spaced, thumbnail
from dasl_core.data.decode import Header, decode, decoding_memory
from dasl_core.data.duplicates import most_compared, reduce
from dasl_core.data.opening import open_image
from dasl_core.data.pixel_facts import PixelFacts
from dasl_core.data.sources import Entry, Source
from dasl_core.machine import decoding_budget
from dasl_core.spec.resolve.facts import QUANTILES
from dasl_core.spec.resolve.pixels import (
    AUTOMATIC_PERCENTILES,
    SMALLEST_STD,
    automatic_window,
    fits_window,
)

# Total pixels of the sample: some 5,000 photos of 500 x 375, seconds on two cores. A small data set is checked
# completely.
PIXELS = 1_000_000_000
MIN_IMAGES = 64
# JPEGs may be decoded at a fraction of their size, but not below this; all of their bytes are still read.
_AT_LEAST = (128, 128)
_WINDOW = [percent / 100 for percent in AUTOMATIC_PERCENTILES]
# Total number of values for the quantiles.
_VALUES = 4_000_000
# An image whose standard deviation is less than this share of the window, two of 256 gray levels, shows nothing.
_LEAST_CONTRAST = 1 / 128
# Such images are warned of from this share of the sample.
_MOST_FLAT = 0.1
# A value is warned of if this share of the pixels has it, ...
_SHARE_OF_OUTLIER = QUANTILES[2]
# ... and it is so many times as far from the others as these reach.
_DISTANCE_OF_OUTLIER = 3


@dataclass
class Sample:
    """Statistics of a sample of images.

    Attributes:
        pixels: facts with the statistics of the sample.
        damaged: reasons why images cannot be decoded, by position.
        unfit: reasons why images of other kinds do not fit in the window of most, by position, also outside the sample.
        warnings: warnings about the values.
        compared: thumbnails for finding near-duplicates, by position.
        thumbnails: thumbnails for the contact sheet, by position.
    """

    pixels: PixelFacts
    damaged: dict[int, str] = field(default_factory=dict)
    unfit: dict[int, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    compared: dict[int, np.ndarray] = field(default_factory=dict)
    thumbnails: dict[int, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class _Values:
    """Statistics of one image: per band, and the values of some pixels."""

    position: int
    count: int
    total: np.ndarray
    squares: np.ndarray
    low: float
    high: float
    some: np.ndarray
    compared: np.ndarray | None
    thumbnail: np.ndarray | None

    @property
    def std(self) -> np.ndarray:
        """Standard deviation of each band."""
        mean = self.total / self.count
        return np.sqrt(np.maximum(self.squares / self.count - mean**2, 0))


def sample_positions(headers: Sequence[Header]) -> list[int]:
    """Choose evenly spaced images with about `PIXELS` pixels in total; at least `MIN_IMAGES`."""
    total = sum(header.width * header.height for header in headers)
    share = min(1.0, PIXELS / total) if total else 1.0
    count = min(len(headers), max(MIN_IMAGES, int(share * len(headers))))
    return [position * len(headers) // count for position in range(count)]


def take_sample(
    source: Source,
    entries: Sequence[Entry],
    headers: Sequence[Header],
    positions: Sequence[int],
    thumbnail_positions: Collection[int],
    pixels: PixelFacts,
    threads: int,
    on_decoded: Callable[[int, int], None],
) -> Sample:
    """Decode a sample of the images.

    Args:
        positions: positions of the sample (`sample_positions`).
        thumbnail_positions: positions that get a thumbnail.
        pixels: type and bands.
        on_decoded: called after each image with the number decoded so far and the size of the sample.
    """
    per_image = max(1, _VALUES // (pixels.bands * max(1, len(positions))))
    compared = {*spaced(positions, most_compared(pixels.bands, pixels.dtype))}

    def measure(position: int) -> _Values | str:
        entry = entries[position]
        try:
            with open_image(source, entry) as file:
                image = decode(file, entry.key, pixels.bands, pixels.dtype, _AT_LEAST)
        except ValueError as error:
            return str(error)
        flat = image.reshape(-1, image.shape[2])
        return _Values(
            position,
            len(flat),
            *_sums(image),
            float(image.min()),
            float(image.max()),
            _choose_pixels(flat, per_image, seed=position).reshape(-1),
            reduce(image) if position in compared else None,
            thumbnail(image) if position in thumbnail_positions else None,
        )

    sample = Sample(pixels)
    measured: list[_Values] = []
    with ThreadPoolExecutor(threads, thread_name_prefix="sample") as pool:
        outcomes = bounded_map(
            pool,
            measure,
            positions,
            AHEAD_PER_THREAD * threads,
            cost=lambda position: decoding_memory(headers[position], _AT_LEAST),
            budget=decoding_budget(),
        )
        for number, (position, outcome) in enumerate(zip(positions, outcomes, strict=True), 1):
            if isinstance(outcome, str):
                sample.damaged[position] = outcome
            else:
                measured.append(outcome)
                if outcome.compared is not None:
                    sample.compared[position] = outcome.compared
                if outcome.thumbnail is not None:
                    sample.thumbnails[position] = outcome.thumbnail
            on_decoded(number, len(positions))
    if not measured:
        return sample
    sample.pixels = _with_statistics(pixels, measured)
    if pixels.dtype != "uint8":  # whose window is the same for all
        kinds = [_kind(header) for header in headers]
        reasons = _unfit(_ranges(kinds, measured), Counter(kinds), pixels.dtype)
        sample.unfit = {at: reasons[kind] for at, kind in enumerate(kinds) if kind in reasons}
        sample.warnings += _outlier_warnings(measured)
    sample.warnings += _flat_warnings(entries, sample.pixels, measured)
    return sample


def _kind(header: Header) -> str:
    return f"{header.bands} x {header.dtype} {header.format}"


def _ranges(kinds: Sequence[str], measured: list[_Values]) -> dict[str, tuple[float, float]]:
    """Return the window of the values of each kind of images that has different ones."""
    values = defaultdict(list)
    for image in measured:
        values[kinds[image.position]].append(image.some)
    ranges = {}
    for kind, some in values.items():
        low, high = np.quantile(np.concatenate(some, dtype=np.float32), _WINDOW).tolist()
        if low < high:
            ranges[kind] = low, high
    return ranges


def _unfit(
    ranges: Mapping[str, tuple[float, float]], counts: Mapping[str, int], dtype: str
) -> dict[str, str]:
    """Return why the images of some kinds do not fit in the window of most images."""
    fitting = {
        kind: [other for other in ranges if fits_window(ranges[other], window)]
        for kind, window in ranges.items()
    }

    def count(kind: str) -> tuple[int, int, str]:
        return sum(counts[other] for other in fitting[kind]), counts[kind], kind

    most = max(ranges, key=count, default="")
    reasons = {}
    for kind, (low, high) in ranges.items():
        if kind in fitting[most]:
            continue
        others = [other for other in fitting[most] if kind not in fitting[other]]
        named = max(others, key=lambda other: (counts[other], other))
        reasons[kind] = (
            f"the image is {kind}, whose values are from {low:g} to {high:g} as {dtype}, and those of most images "
            f"({named}) from {ranges[named][0]:g} to {ranges[named][1]:g}, so that no window shows both: convert them "
            "to one depth, or register these images as a data set of their own"
        )
    return reasons


def _outlier_warnings(measured: list[_Values]) -> list[str]:
    """Warn of a value that many pixels have and that lies far from all others, as one without a meaning does."""
    values = np.concatenate([image.some for image in measured], dtype=np.float32)
    warnings = []
    for end, share in ((values.min(), _SHARE_OF_OUTLIER), (values.max(), 1 - _SHARE_OF_OUTLIER)):
        if np.quantile(values, share) != end:
            continue
        others = values[values != end]
        low, high = np.quantile(others, (0.01, 0.99)) if len(others) else (end, end)
        if max(low - end, end - high) > _DISTANCE_OF_OUTLIER * (high - low) > 0:
            warnings.append(
                f"{1 - len(others) / len(values):.1%} of the values of the sample are {end:g}, and nearly all others from "
                f"{low:g} to {high:g}: the automatic window leaves hardly any contrast. If {end:g} means no data, declare "
                "it in the files (GDAL_NODATA, PixelPaddingValue, NaN) and refresh, or set backbone.window: "
                f"[{low:g}, {high:g}]"
            )
    return warnings


def _flat_warnings(
    entries: Sequence[Entry], pixels: PixelFacts, measured: list[_Values]
) -> list[str]:
    """Warn of images that the window makes nearly one gray level, if they are many."""
    low, high = automatic_window(pixels.dtype, pixels.quantiles)
    flat = [image for image in measured if image.std.max() < _LEAST_CONTRAST * (high - low)]
    if len(flat) <= _MOST_FLAT * len(measured):
        return _flat_band_warnings(pixels, high - low)
    return [
        f"{len(flat)} of the {len(measured)} images of the sample, such as {entries[flat[0].position].key}, are nearly "
        f"of one gray level in the automatic window, from {low:g} to {high:g}. If there is more to see in them, set "
        "backbone.window, or register images with other values as a data set of their own"
    ]


def _flat_band_warnings(pixels: PixelFacts, span: float) -> list[str]:
    """Warn of bands with less contrast than normalization restores, as those have whose values are much smaller."""
    stds = pixels.std or ()
    flat = [str(band) for band, std in enumerate(stds, 1) if std < SMALLEST_STD * span]
    if not 0 < len(flat) < len(stds):
        return []
    return [
        f"Of the {len(stds)} bands, these have hardly any contrast in the automatic window, which is that of all bands: "
        f"{', '.join(flat)}. If they are not empty, scale all bands to one range and register the images again"
    ]


def _sums(image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of the pixels of an image (H, W, bands) and of their squares by band, in float64.

    Sums of squares of 16-bit values exceed float32's precision.
    """
    flat = image.reshape(-1, image.shape[2])
    if image.dtype not in (np.uint8, np.uint16):
        squares = np.einsum("pb,pb->b", flat, flat, dtype=np.float64, casting="unsafe")
        return flat.sum(axis=0, dtype=np.float64), squares
    # From a histogram of the values: a sixth of the time, and Pillow's a third of that.
    values = np.arange(np.iinfo(image.dtype).max + 1, dtype=np.float64)
    if image.dtype == np.uint8 and image.shape[2] in (1, 3):
        histogram = Image.fromarray(image.squeeze(2) if image.shape[2] == 1 else image).histogram()
        counts = np.array(histogram, np.float64).reshape(image.shape[2], -1)
    else:
        counts = np.stack([np.bincount(band, minlength=len(values)) for band in flat.T])
    return counts @ values, counts @ values**2


def _choose_pixels(flat: np.ndarray, most: int, seed: int) -> np.ndarray:
    """Choose whole pixels (N, bands) at random, the same in each ingest.

    Evenly spaced pixels lie in few columns if their distance and the width have a common divisor.
    """
    if len(flat) <= most:
        return flat
    chosen = np.random.default_rng(seed).integers(len(flat), size=most)
    return flat.take(chosen, axis=0)  # a tenth of the time of flat[chosen]


def _with_statistics(pixels: PixelFacts, measured: list[_Values]) -> PixelFacts:
    count = sum(image.count for image in measured)
    mean = np.sum([image.total for image in measured], axis=0) / count
    squares = np.sum([image.squares for image in measured], axis=0) / count
    std = np.sqrt(np.maximum(squares - mean**2, 0))
    values = np.concatenate([image.some for image in measured], dtype=np.float32)
    quantiles = np.quantile(values, QUANTILES, overwrite_input=True)  # copies are megabytes
    # The true extremes, which the chosen pixels may miss.
    quantiles[0] = min(image.low for image in measured)
    quantiles[-1] = max(image.high for image in measured)
    return replace(
        pixels,
        quantiles=_rounded(quantiles),
        mean=_rounded(mean),
        std=_rounded(std),
        sampled=len(measured),
    )


def _rounded(values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(f"{value:.7g}") for value in values.tolist())
