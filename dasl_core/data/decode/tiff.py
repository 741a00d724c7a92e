"""TIFFs of any depth and number of bands: by Pillow where it loses nothing, else by tifffile."""

import logging
from contextlib import suppress
from dataclasses import replace
from typing import IO, Any

import numpy as np
from PIL import ImageFile

from dasl_core.data.decode import pillow
from dasl_core.data.decode.header import MAX_VALUES, Header, check_pixels, pixel_type
from dasl_core.data.decode.pixels import (
    Alpha,
    Colors,
    Nodata,
    Pixels,
    default_colors,
    from_file_type,
    measured,
)
from dasl_core.data.decode.reasons import optional_module

_PHOTOMETRIC, _COMPRESSION = 262, 259
_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB, _INKS = 0, 1, 2, 5
_ASSOCIATED, _STRAIGHT = 1, 2
_ORIENTATION, _GDAL_NODATA = 274, 42113
_BITS, _SAMPLES, _SAMPLE_FORMAT = 258, 277, 339
# Codecs of images of more than 8 bits; none crashed on 6,000 damaged files. tifffile supports more.
_COMPRESSIONS = {
    1: "none",
    5: "LZW",
    8: "deflate",
    32773: "PackBits",
    32946: "deflate",
    34887: "LERC",
    50000: "Zstandard",
}

# It logs what it tolerates, a line for each file.
logging.getLogger("tifffile").setLevel(logging.CRITICAL)


def read_header(file: IO[bytes]) -> Header:
    """Read the header of the first page; see `dasl_core.data.decode.read_header`."""
    image = _by_pillow(file)
    return pillow.describe_image(image) if image else _describe(_first_page(file))


def decode(file: IO[bytes], channels: int) -> Pixels:
    """Decode the first page; see `dasl_core.data.decode.decode`."""
    if image := _by_pillow(file):
        pixels = pillow.decode(file, channels, None, ("TIFF",))
        tags = image.tag_v2  # type: ignore[attr-defined]
        photometric, bits = tags.get(_PHOTOMETRIC), int(tags.get(_BITS, (1,))[0])
        nodata = _nodata(tags.get(_GDAL_NODATA), photometric)
        pixels = replace(pixels, values=measured(pixels.values, pixels.values, nodata))
        if pixels.values.dtype == np.uint8:
            return pixels  # Pillow has inverted it
    else:
        page = _first_page(file)
        _describe(page)
        pixels = _read_pixels(page)
        photometric, bits = page.photometric, page.bitspersample
    if photometric == _WHITE_IS_ZERO and pixels.values.dtype.kind == "u":
        values = pixels.values.copy()
        white = 255 if values.dtype == np.uint8 else (1 << bits) - 1
        values[..., 0] = white - values[..., 0]  # gray, but not further bands, such as opacity
        return replace(pixels, values=values)
    return pixels


def _by_pillow(file: IO[bytes]) -> ImageFile.ImageFile | None:
    """Open a TIFF with Pillow if it keeps all bits of all bands."""
    with suppress(Exception):  # tifffile says what a damaged file lacks
        image = pillow.open_image(file, ("TIFF",))
        tags = image.tag_v2  # type: ignore[attr-defined]
        if image.mode.startswith(("I", "F")):
            return image if tags.get(_SAMPLES, 1) == 1 else None
        unsigned = all(kind in (1, 4) for kind in tags.get(_SAMPLE_FORMAT, (1,)))
        has_8_bits = all(bits <= 8 for bits in tags.get(_BITS, (1,)))
        drops_bands = any("X" in str(tile.args) for tile in image.tile)
        return image if unsigned and has_8_bits and not drops_bands else None
    return None


def _first_page(file: IO[bytes]) -> Any:
    needs = "the image is a TIFF beyond 8-bit gray and color"
    optional_module("imagecodecs", needs, "tiff")
    tifffile = optional_module("tifffile", needs, "tiff")
    file.seek(0)
    return tifffile.TiffFile(file, _multifile=False).pages.first


def _describe(page: Any) -> Header:
    if page.axes not in ("YX", "YXS", "SYX") or page.dtype is None:
        raise ValueError("the image is a TIFF with a layout other than rows, columns and bands")
    if int(page.compression) not in _COMPRESSIONS:
        known = ", ".join(sorted(set(_COMPRESSIONS.values())))
        name = getattr(page.compression, "name", page.compression)
        raise ValueError(f"the image is a TIFF compressed with {name}, which is not one of {known}")
    if page.photometric == 3:
        raise ValueError("the image is a TIFF with a palette of more than 8 bits")
    width, height = int(page.imagewidth), int(page.imagelength)
    check_pixels(width, height)
    # A tile may claim more pixels than the image.
    if int(np.prod([int(side) for side in page.chunks])) > MAX_VALUES:
        raise ValueError("the image is damaged: its tiles are too large")
    if _orientation(page) >= 5:
        width, height = height, width
    bands = int(page.samplesperpixel)
    dtype = pixel_type(page.dtype)
    colors, _ = _band_meaning(page, bands, dtype)
    return Header(width, height, bands, dtype, "TIFF", colors != "any").checked()


def _read_pixels(page: Any) -> Pixels:
    # One thread: the decoding pool already has one for each core.
    values = page.asarray(maxworkers=1)
    if page.axes == "SYX":
        values = np.moveaxis(values, 0, 2)
    values = values.reshape(page.imagelength, page.imagewidth, page.samplesperpixel)
    if values.dtype == np.uint8 and page.bitspersample in range(1, 8):
        # As Pillow does. Deeper values keep their levels, for which a window is chosen.
        values = np.rint(values * (255 / ((1 << page.bitspersample) - 1))).astype(np.uint8)
    tag = page.tags.get(_GDAL_NODATA)
    values = from_file_type(values, _nodata(tag and tag.value, page.photometric))
    values = pillow.turned(values, _orientation(page))
    return Pixels(values, *_band_meaning(page, values.shape[2], values.dtype.name))


def _nodata(text: Any, photometric: int | None) -> Nodata | None:
    """Return the value of GDAL's tag for pixels without data; None if it has no number, or another meaning than pixels."""
    with suppress(ValueError, TypeError):
        if photometric in (_BLACK_IS_ZERO, _RGB):
            return float(text), float(text)
    return None


def _band_meaning(page: Any, bands: int, dtype: str) -> tuple[Colors, Alpha]:
    """Return the colors and alpha of `Pixels`; opacity only where the file states it."""
    if dtype in ("uint8", "uint16"):
        if page.photometric == _INKS and bands == 4:
            return "cmyk", None
        extra = [int(kind) for kind in page.extrasamples]
        if bands in (2, 4) and extra in ([_ASSOCIATED], [_STRAIGHT]):
            alpha: Alpha = "straight" if extra == [_STRAIGHT] else "associated"
            return "gray" if bands == 2 else "rgb", alpha
    return default_colors(bands), None


def _orientation(page: Any) -> int:
    tag = page.tags.get(_ORIENTATION)
    value = tag.value if tag is not None else 1
    return int(value) if isinstance(value, int) and 1 <= value <= 8 else 1
