"""Type, bands and value statistics of a data set's pixels, and the images that do not fit the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dasl_core.data.decode import Header, PixelType

DEFAULT_BANDS = 3
# Types whose values are shares of the full range: 255 and 65535 are both white. Others have units of their own.
_SHARES = ("uint8", "uint16")


@dataclass(frozen=True)
class PixelFacts:
    """Type, bands and statistics of a data set's pixels.

    Attributes:
        dtype: type of the canvases: the smallest that holds the values of every image.
        bands: bands of most images; 3 for images of gray, color and transparency.
        kinds: numbers of images by "BANDS x TYPE".
        quantiles: of raw values at `dasl_core.spec.resolve.facts.QUANTILES`, over a sample.
        mean: mean of each band, in raw values, over a sample.
        std: standard deviation of each band, in raw values, over a sample.
        sampled: number of images of the sample.
        has_dicom: whether any image is a DICOM file.
    """

    dtype: PixelType = "uint8"
    bands: int = DEFAULT_BANDS
    kinds: tuple[tuple[str, int], ...] = ()
    quantiles: tuple[float, ...] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    sampled: int = 0
    has_dicom: bool = False

    @classmethod
    def from_headers(cls, headers: Sequence[Header]) -> PixelFacts:
        """Combine the bands and types of images that fit each other (`misfits`)."""
        kinds = Counter(f"{header.bands} x {header.dtype}" for header in headers)
        dtypes = {header.dtype for header in headers}
        dtype: PixelType = "float32"
        if len(dtypes) == 1:
            dtype = next(iter(dtypes))
        elif dtypes <= {"uint8", "uint16"}:
            dtype = "uint16"
        bands = Counter(bands_in_data_set(header) for header in headers)
        most = max(bands, key=lambda number: (bands[number], number), default=DEFAULT_BANDS)
        has_dicom = any(header.format == "DICOM" for header in headers)
        return cls(dtype, most, tuple(sorted(kinds.items())), has_dicom=has_dicom)

    def dataset_facts(self) -> dict[str, Any]:
        """Return the arguments of `DatasetFacts`."""
        names = ("dtype", "bands", "quantiles", "mean", "std", "has_dicom")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> PixelFacts:
        """Restore the fields from JSON; a TypeError if one is unknown."""
        lists = ("quantiles", "mean", "std")
        known: dict[str, Any] = {
            name: tuple(value) if name in lists and value is not None else value
            for name, value in content.items()
        }
        known["kinds"] = tuple((kind, count) for kind, count in content["kinds"])
        return cls(**known)


def header_warnings(headers: Sequence[Header]) -> Iterator[str]:
    """Yield what of the images is not used, or not as it is stored, or only as their headers suggest."""
    facts = PixelFacts.from_headers(headers)
    dtypes = {header.dtype for header in headers}
    if len(dtypes) > 1:
        counts = ", ".join(f"{count} of {kind}" for kind, count in facts.kinds)
        scaled = "those of 8 bits scaled to its range"
        if "int16" in dtypes:
            scaled = "with the values that they have"
        yield (
            f"The images differ in depth ({counts} bands and bits); all are read as {facts.dtype}, {scaled}. "
            "Register images of one depth if their values should be comparable"
        )
    if frames := [header.frames for header in headers if header.frames > 1]:
        files = "1 file has" if len(frames) == 1 else f"{len(frames)} files have"
        few, most = min(frames), max(frames)
        yield (
            f"{files} {few if few == most else f'{few} to {most}'} pages or frames of equal size, of which the first is "
            "used. To train on the others, save each as a file of its own"
        )
    if marked := sum(header.marks_alpha for header in headers):
        files = "1 TIFF file marks its" if marked == 1 else f"{marked} TIFF files mark their"
        yield (
            f"{files} last band as opacity (alpha), so transparent pixels become white. If it is a channel, such as near "
            "infrared, set backbone.in_channels to the number of bands"
        )


def bands_in_data_set(header: Header) -> int:
    """Return the default number of bands of an image in a data set."""
    return DEFAULT_BANDS if header.is_color else header.bands


def misfits(headers: Sequence[Header]) -> dict[int, str]:
    """Return, by position, why images do not fit the majority.

    The majority determines the bands (the larger number in a tie); among its images, the majority determines the kind
    of values (unsigned in a tie).
    """
    bands = _majority([bands_in_data_set(header) for header in headers])
    are_shares = _majority(
        [header.dtype in _SHARES for header in headers if bands_in_data_set(header) == bands]
    )
    reasons = {}
    for position, header in enumerate(headers):
        if bands not in (bands_in_data_set(header), header.bands):
            reasons[position] = _other_bands(header.bands, bands)
        elif (header.dtype in _SHARES) != are_shares:
            reasons[position] = _other_values(header.dtype, are_shares)
    return reasons


def _majority(values: Sequence[int]) -> int:
    """Return the most frequent value, the largest in a tie; 0 without values."""
    counts = Counter(values)
    return max(counts, key=lambda value: (counts[value], value), default=0)


def _other_bands(bands: int, most: int) -> str:
    noun = "band" if bands == 1 else "bands"
    return (
        f"the image has {bands} {noun}, and most images have {most}; "
        f"register images of {bands} {noun} as a data set of their own"
    )


def _other_values(dtype: str, are_shares: int) -> str:
    kinds = ("in units (int16, float32)", "shares of a full range (uint8, uint16)")
    return (
        f"the image has {dtype} values, which are {kinds[not are_shares]}, and those of most images are "
        f"{kinds[are_shares]}; they have no common scale: register these images as a data set of their own"
    )
