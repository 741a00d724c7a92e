"""A sample of a data set's images, decoded at ingest: statistics, thumbnails to compare, and damaged files."""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from dasl_core.data.bounded_map import AHEAD_PER_THREAD, bounded_map
from dasl_core.data.contact_sheet import spaced, thumbnail
from dasl_core.data.decode import Header, decode, decoding_memory
from dasl_core.data.duplicates import most_compared, reduce
from dasl_core.data.opening import open_image
from dasl_core.data.pixel_facts import PixelFacts
from dasl_core.data.sources import Entry, Source
from dasl_core.machine import decoding_budget
from dasl_core.spec.resolve.facts import QUANTILES

# Total pixels of the sample: some 5,000 photos of 500 x 375, seconds on two cores. A small data set is checked
# completely.
PIXELS = 1_000_000_000
MIN_IMAGES = 64
# JPEGs may be decoded at a fraction of their size, but not below this; all of their bytes are still read.
_AT_LEAST = (128, 128)
# Total number of values for the quantiles.
_VALUES = 4_000_000


@dataclass
class Sample:
    """Statistics of a sample of images.

    Attributes:
        pixels: facts with the statistics of the sample.
        damaged: reasons why images cannot be decoded, by position.
        compared: thumbnails for finding near-duplicates, by position.
        thumbnails: thumbnails for the contact sheet, by position.
    """

    pixels: PixelFacts
    damaged: dict[int, str] = field(default_factory=dict)
    compared: dict[int, np.ndarray] = field(default_factory=dict)
    thumbnails: dict[int, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class _Values:
    """Statistics of one image: per band, and the values of some pixels."""

    count: int
    total: np.ndarray
    squares: np.ndarray
    low: float
    high: float
    some: np.ndarray
    compared: np.ndarray | None
    thumbnail: np.ndarray | None


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
            len(flat),
            *_sums(flat),
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
    if measured:
        sample.pixels = _with_statistics(pixels, measured)
    return sample


def _sums(flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of pixels (N, bands) and of their squares by band, in float64.

    Sums of squares of 16-bit values exceed float32's precision.
    """
    if flat.dtype not in (np.uint8, np.uint16):
        squares = np.einsum("pb,pb->b", flat, flat, dtype=np.float64, casting="unsafe")
        return flat.sum(axis=0, dtype=np.float64), squares
    # From a histogram of the values: a sixth of the time.
    values = np.arange(np.iinfo(flat.dtype).max + 1, dtype=np.float64)
    counts = np.stack([np.bincount(band, minlength=len(values)) for band in flat.T])
    return counts @ values, counts @ values**2


def _choose_pixels(flat: np.ndarray, most: int, seed: int) -> np.ndarray:
    """Choose whole pixels (N, bands) at random, the same in each ingest.

    Evenly spaced pixels lie in few columns if their distance and the width have a common divisor.
    """
    if len(flat) <= most:
        return flat
    return flat[np.random.default_rng(seed).integers(len(flat), size=most)]


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
