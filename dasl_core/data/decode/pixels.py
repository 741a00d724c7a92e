"""Decoded pixels, and their conversion to the bands and type of a data set."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dasl_core.data.decode.header import PixelType, pixel_type
from dasl_core.spec.fields import LARGEST_VALUE

# ITU-R 601-2, as Pillow's "L".
_LUMINANCE = np.array([0.299, 0.587, 0.114], dtype=np.float32)
Colors = Literal["gray", "rgb", "cmyk", "any"]
Alpha = Literal["straight", "associated"] | None
Nodata = tuple[float, float]
"""Lowest and highest of the stored values that a file declares to be no measurement."""

_MAX = {"uint8": 255, "uint16": 65535}


@dataclass(frozen=True)
class Pixels:
    """Decoded pixels.

    Attributes:
        values: (H, W, bands), of a `PixelType`.
        colors: what the bands are, before opacity; "any" has no known meaning.
        alpha: whether the last band is opacity, and whether colors are multiplied by it.
    """

    values: np.ndarray
    colors: Colors
    alpha: Alpha = None


def default_colors(bands: int) -> Literal["gray", "rgb", "any"]:
    """Return the default meaning of bands if the file does not name it."""
    return "gray" if bands == 1 else "rgb" if bands == 3 else "any"


def as_data_set_has(pixels: Pixels, channels: int, dtype: PixelType) -> np.ndarray:
    """Convert pixels to the channels and the type of a data set.

    Returns:
        (H, W, channels), contiguous and writable.

    Raises:
        ValueError: the bands are not those of the data set, or its type cannot hold the values.
    """
    return np.require(_to_type(_to_channels(pixels, channels), dtype), requirements=["C", "W", "O"])


def _to_channels(pixels: Pixels, channels: int) -> np.ndarray:
    values = pixels.values
    bands = values.shape[2]
    if bands == channels:
        return values
    if channels not in (1, 3):
        raise ValueError(wrong_bands(bands, channels))
    if pixels.alpha:
        opaque = replace(pixels, values=_on_white(pixels), alpha=None)
        return _to_channels(opaque, channels)
    if pixels.colors == "cmyk" and bands == 4:
        return _to_channels(Pixels(_inks_to_rgb(values), "rgb"), channels)
    if pixels.colors == "gray" and channels == 3:
        return np.repeat(values[..., :1], 3, axis=2)
    if pixels.colors == "rgb" and bands == 3:
        return _rounded(values.astype(np.float32) @ _LUMINANCE[:, None], values.dtype)
    raise ValueError(wrong_bands(bands, channels))


def wrong_bands(bands: int, channels: int) -> str:
    """Describe why an image does not fit a number of channels."""
    noun = "band" if bands == 1 else "bands"
    return f"the image has {bands} {noun}, and backbone.in_channels is {channels}"


def _on_white(pixels: Pixels) -> np.ndarray:
    white = np.float32(_MAX[pixels.values.dtype.name])
    colors = pixels.values[..., :-1].astype(np.float32)
    opacity = pixels.values[..., -1:].astype(np.float32) / white
    if pixels.alpha == "straight":
        colors *= opacity
    return _rounded(colors + white * (1 - opacity), pixels.values.dtype)


def _inks_to_rgb(values: np.ndarray) -> np.ndarray:
    white = np.float32(_MAX[values.dtype.name])
    light = white - values.astype(np.float32)
    return _rounded(light[..., :3] * light[..., 3:] / white, values.dtype)


def _rounded(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "f":
        return np.asarray(values, dtype)
    limits = np.iinfo(dtype)
    return np.asarray(np.clip(np.rint(values), limits.min, limits.max), dtype)


def _to_type(values: np.ndarray, dtype: PixelType) -> np.ndarray:
    source = values.dtype.name
    if source == dtype:
        return values
    if source == "uint8" and dtype == "uint16":
        return values.astype(np.uint16) * np.uint16(257)
    if source in _MAX and dtype == "float32":
        return values.astype(np.float32) / np.float32(_MAX[source])
    if source == "int16" and dtype == "float32":
        return values.astype(np.float32)
    if source == "uint16" and dtype == "uint8":
        return (values.astype(np.float32) * np.float32(1 / 257) + np.float32(0.5)).astype(np.uint8)
    raise ValueError(f"the image has {source} pixels, which a data set of {dtype} cannot hold")


def from_file_type(values: np.ndarray, nodata: Nodata | None = None) -> np.ndarray:
    """Convert values of any number type to that of `pixel_type`, without those that are no measurement (`measured`)."""
    target = np.dtype(pixel_type(values.dtype))
    if values.dtype.kind == "b":
        return values.astype(np.uint8) * np.uint8(255)
    with np.errstate(over="ignore"):
        return measured(values.astype(target), values, nodata)


def measured(values: np.ndarray, stored: np.ndarray, nodata: Nodata | None) -> np.ndarray:
    """Replace values (H, W, ...) that are no measurement by the smallest of the others, in place.

    It is the smallest of the band, or of the image if the band has no other. No measurement are values that are not
    finite or beyond `LARGEST_VALUE`, and those that are stored as one in the range `nodata`. In unsigned RGB all bands must
    be, because a single one may be full of light, or have none.

    Raises:
        ValueError: no value is a measurement.
    """
    is_float = values.dtype.kind == "f"
    if not is_float and nodata is None:
        return values
    is_valid = (values >= -LARGEST_VALUE) & (values <= LARGEST_VALUE)
    if nodata is not None:
        with np.errstate(over="ignore"):  # a value beyond the type
            is_nodata = (stored >= nodata[0]) & (stored <= nodata[1])
            if stored.dtype.kind == "u" and stored.shape[2] == 3:
                is_nodata &= is_nodata.all(axis=2, keepdims=True)
            is_valid &= ~is_nodata
    if is_valid.all():
        return values
    if not is_valid.any():
        raise ValueError("the image has no valid pixel: each is NaN, infinite or marked as no data")
    largest = LARGEST_VALUE if is_float else np.iinfo(values.dtype).max
    smallest = values.min(axis=(0, 1), where=is_valid, initial=largest)
    smallest = np.where(is_valid.any(axis=(0, 1)), smallest, smallest.min())
    np.copyto(values, smallest, where=~is_valid)
    return values
