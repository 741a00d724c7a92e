"""TIFFs of any depth and number of bands: by Pillow where it loses nothing, else by tifffile."""

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import IO, Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
from PIL import Image, ImageFile

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
from dasl_core.data.decode.reasons import DAMAGED_OR_UNSUPPORTED, optional_module

_PHOTOMETRIC, _COMPRESSION, _DESCRIPTION, _XMP = 262, 259, 270, 700
_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB, _INKS, _YCBCR = 0, 1, 2, 5, 6
_ASSOCIATED, _STRAIGHT = 1, 2
_ORIENTATION, _GDAL_NODATA = 274, 42113
_BITS, _SAMPLES, _SAMPLE_FORMAT = 258, 277, 339
_STRIP_OFFSETS, _TILE_WIDTH, _SUBSAMPLING, _INK_SET = 273, 322, 530, 332
_UNCOMPRESSED, _JPEG = 1, 7
_PLANAR, _SEPARATE = 284, 2
# Codecs of tifffile; none crashed on 6,000 damaged files. tifffile supports more.
_COMPRESSIONS = (_UNCOMPRESSED, 5, 8, 32773, 32946, 34887, 50000)
_THEIR_NAMES = "LERC, LZW, PackBits, Zstandard, deflate, none"
# Codecs of Pillow: none, three of CCITT, LZW, JPEG, deflate, PackBits, deflate, LZMA and Zstandard.
_BY_PILLOW = (1, 2, 3, 4, 5, 7, 8, 32773, 32946, 34925, 50000)
# Pages that are compared with the first, of a file that may have any number.
_MOST_PAGES = 1000
# Modes of Pillow's TIFFs.
_WITH_ALPHA = ("LA", "La", "PA", "RGBA")
_STACKED = {"Z": "planes in depth", "T": "points in time"}


class _Opened(NamedTuple):
    """A TIFF of which nothing is decoded.

    Attributes:
        image: the image as Pillow opens it, if it keeps all bits of all bands.
        pages: without `image`: the first page, or the pages that are the channels of one image.
        frames: how many images of this size the file has, if they were counted.
    """

    image: ImageFile.ImageFile | None
    pages: Sequence[Any]
    frames: int


# It logs what it tolerates, a line for each file.
logging.getLogger("tifffile").setLevel(logging.CRITICAL)


def read_header(file: IO[bytes]) -> Header:
    """Read the header of the first image; see `dasl_core.data.decode.read_header`."""
    image, pages, frames = _open(file, counts_frames=True)
    if image is None:
        return _describe(pages)._replace(frames=frames)
    # `size` is upright by this tag, but not by XMP.
    has_tag = _ORIENTATION in image.tag_v2  # type: ignore[attr-defined]
    header = pillow.describe_image(
        image, orientation=1 if has_tag else pillow.exif_orientation(image)
    )
    return header._replace(frames=frames, marks_alpha=image.mode in _WITH_ALPHA)


def decode(file: IO[bytes], channels: int) -> Pixels:
    """Decode the first image; see `dasl_core.data.decode.decode`."""
    image, pages, _ = _open(file)
    if image is None:
        _describe(pages)
        if len(pages) == 1:
            return _read_pixels(pages[0], channels)
        bands = [_read_pixels(page, 1).values for page in pages]
        return Pixels(np.concatenate(bands, axis=2), default_colors(len(bands)))
    tags = image.tag_v2  # type: ignore[attr-defined]
    photometric, bits = tags.get(_PHOTOMETRIC, _WHITE_IS_ZERO), int(tags.get(_BITS, (1,))[0])
    try:
        pixels = pillow.decode(file, channels, None, ("TIFF",))
    except OSError as error:
        if not str(error).startswith("decoder error"):
            raise
        # Such as lossless JPEG.
        state = DAMAGED_OR_UNSUPPORTED if tags.get(_COMPRESSION) == _JPEG else "damaged"
        raise ValueError(f"the image is {state}: its pixels cannot be decompressed") from error
    is_blended = image.mode in _WITH_ALPHA and channels in (1, 3)
    nodata = None if is_blended else _nodata(tags.get(_GDAL_NODATA), photometric)
    pixels = replace(pixels, values=measured(pixels.values, pixels.values, nodata))
    # Pillow has inverted 8 bits.
    if photometric == _WHITE_IS_ZERO and pixels.values.dtype == np.uint16:
        return replace(pixels, values=_inverted(pixels.values, bits))
    return pixels


def _open(file: IO[bytes], *, counts_frames: bool = False) -> _Opened:
    image = _by_pillow(file)
    if image is not None:
        description = str(image.tag_v2.get(_DESCRIPTION, ""))  # type: ignore[attr-defined]
        # ImageJ describes pages of more than 4 GB that the file does not list.
        if not getattr(image, "is_animated", False) and not description.startswith("ImageJ="):
            return _Opened(image, (), 1)
    needs = "the image is a TIFF beyond one page of 8-bit gray and color"
    optional_module("imagecodecs", needs, "tiff")
    tifffile = optional_module("tifffile", needs, "tiff")
    file.seek(0)
    opened = tifffile.TiffFile(file, _multifile=False)
    equal = _equal_pages(opened.pages)
    pages = [*islice(equal, 2)]
    channels = _count_channels(pages[0], is_only=len(pages) == 1)
    pages += islice(equal, max(0, channels - 2))
    if len(pages) < channels:
        raise ValueError(
            f"the image is a TIFF that describes {channels} channels (axis C), and has {len(pages)} of them: save each "
            "as a page"
        )
    frames = (len(pages) + sum(1 for _ in equal)) // channels if counts_frames else 1
    return _Opened(None if channels > 1 else image, pages[:channels], frames)


def _equal_pages(pages: Any) -> Iterator[Any]:
    """Yield the first page, and those of its size and kind among the next ones."""
    first = pages.first
    yield first
    read = {first.offset}
    with suppress(Exception):  # the first page is whole
        for page in islice(pages, 1, _MOST_PAGES):
            if page.offset in read:
                return  # a loop
            read.add(page.offset)
            is_equal = all(
                getattr(page, name) == getattr(first, name)
                for name in ("shape", "dtype", "photometric")
            )
            if is_equal and not (page.is_reduced or page.is_mask):
                yield page


def _by_pillow(file: IO[bytes]) -> ImageFile.ImageFile | None:
    """Open a TIFF with Pillow if it keeps all bits of all bands."""
    with suppress(Exception):  # tifffile says what a damaged file lacks
        image = pillow.open_image(file, ("TIFF",))
        tags = image.tag_v2  # type: ignore[attr-defined]
        compression = tags.get(_COMPRESSION, _UNCOMPRESSED)
        # Before TIFF 6, tiles were listed as strips.
        if compression not in _BY_PILLOW or (_TILE_WIDTH in tags and _STRIP_OFFSETS in tags):
            return None
        bands = len(image.getbands())
        if tags.get(_SAMPLES, 1) != bands:
            return None
        if bands > 1 and tags.get(_PLANAR) == _SEPARATE and compression == _UNCOMPRESSED:
            return None  # of which it reads some layouts
        if image.mode.startswith(("I", "F")):
            # It swaps the bytes of compressed values twice.
            return image if tags.prefix == b"II" or compression == _UNCOMPRESSED else None
        if tags.get(_PHOTOMETRIC) == _YCBCR and compression == _UNCOMPRESSED:
            return image if tags.get(_SUBSAMPLING) == (1, 1) else None
        unsigned = all(kind in (1, 4) for kind in tags.get(_SAMPLE_FORMAT, (1,)))
        has_8_bits = all(bits <= 8 for bits in tags.get(_BITS, (1,)))
        return image if unsigned and has_8_bits else None
    return None


def _count_channels(page: Any, *, is_only: bool) -> int:
    """Return how many pages are the channels of one image, as OME, ImageJ or tifffile describe the file."""
    if is_only and not page.is_imagej:
        return 1  # of a set of files, if it describes more
    sizes: dict[str, int] = {}
    with suppress(Exception):  # without a description that can be read, pages are images
        sizes = _axes(page)
    for axis, size in sizes.items():
        if axis not in "CSYXIQ" and size > 1:
            noun = _STACKED.get(axis, "images")
            raise ValueError(
                f"the image is a stack of {size} {noun} (axis {axis}), of which one cannot be chosen: save each, or "
                "their maximum or mean, as a file of its own"
            )
    channels = max(1, sizes.get("C", 1))
    if channels in (1, page.samplesperpixel):
        return 1
    if page.samplesperpixel > 1:
        raise ValueError(
            f"the image is a TIFF that describes {channels} channels (axis C), and has pages of {page.samplesperpixel} "
            "bands: save each channel as a page of one band"
        )
    return channels


def _axes(page: Any) -> dict[str, int]:
    """Return the sizes of the axes of a file by their letters, as its first page describes them."""
    if page.is_ome:
        [pixels, *_] = ElementTree.fromstring(page.description).iterfind(".//{*}Pixels")
        return {axis: int(pixels.get(f"Size{axis}", 1)) for axis in "CZT"}
    if page.is_imagej:
        lines = (line.partition("=") for line in page.imagej_description.splitlines())
        stated = {name: value for name, _, value in lines}
        names = {"C": "channels", "Z": "slices", "T": "frames"}
        sizes = {axis: int(stated.get(name, 1)) for axis, name in names.items()}
        return sizes if max(sizes.values()) > 1 else {"Z": int(stated.get("images", 1))}
    if page.is_shaped:
        about = json.loads(page.shaped_description)
        return dict(zip(about["axes"], about["shape"], strict=True))
    return {}


def _describe(pages: Sequence[Any]) -> Header:
    for page in pages:
        _check(page)
    page = pages[0]
    width, height = int(page.imagewidth), int(page.imagelength)
    if _orientation(page) >= 5:
        width, height = height, width
    bands = int(page.samplesperpixel) if len(pages) == 1 else len(pages)
    dtype = pixel_type(page.dtype)
    colors, alpha = _band_meaning(page, bands, dtype)
    is_color, marks_alpha = colors != "any", alpha is not None
    header = Header(width, height, bands, dtype, "TIFF", is_color, marks_alpha=marks_alpha)
    return header.checked()


def _check(page: Any) -> None:
    """Refuse a page that tifffile would not read, or not as gray, RGB, CMYK or bands without a meaning."""
    if page.axes not in ("YX", "YXS", "SYX") or page.dtype is None:
        raise ValueError("the image is a TIFF with a layout other than rows, columns and bands")
    if int(page.compression) not in _COMPRESSIONS:
        raise ValueError(
            f"the image is a TIFF of {page.samplesperpixel} x {page.dtype} compressed with {_name(page.compression)}, "
            f"which is not supported; use one of {_THEIR_NAMES}"
        )
    if page.photometric not in (_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB, _INKS):
        raise ValueError(
            f"the image is a TIFF of {page.samplesperpixel} x {page.dtype} with the photometric interpretation "
            f"{_name(page.photometric)}, which is not supported; save it as gray or RGB"
        )
    check_pixels(int(page.imagewidth), int(page.imagelength))
    # A tile may claim more pixels than the image.
    if int(np.prod([int(side) for side in page.chunks])) > MAX_VALUES:
        raise ValueError("the image is damaged: its tiles are too large")


def _name(value: Any) -> str:
    return str(getattr(value, "name", value)).replace("OJPEG", "old-style JPEG")


def _read_pixels(page: Any, channels: int) -> Pixels:
    # One thread: the decoding pool already has one for each core.
    values = page.asarray(maxworkers=1)
    if page.axes == "SYX":
        values = np.moveaxis(values, 0, 2)
    values = values.reshape(page.imagelength, page.imagewidth, page.samplesperpixel)
    if values.dtype == np.uint8 and page.bitspersample in range(1, 8):
        # As Pillow does. Deeper values keep their levels, for which a window is chosen.
        values = np.rint(values * (255 / ((1 << page.bitspersample) - 1))).astype(np.uint8)
    colors, alpha = _band_meaning(page, values.shape[2], values.dtype.name)
    tag = page.tags.get(_GDAL_NODATA)
    # Opacity that becomes white decides itself.
    is_blended = alpha is not None and channels != values.shape[2]
    nodata = None if is_blended else _nodata(tag and tag.value, page.photometric)
    values = pillow.turned(from_file_type(values, nodata), _orientation(page))
    if page.photometric == _WHITE_IS_ZERO and values.dtype.kind == "u":
        values = _inverted(values, page.bitspersample)
    return Pixels(values, colors, alpha)


def _nodata(text: Any, photometric: int | None) -> Nodata | None:
    """Return the value of GDAL's tag for pixels without data; None if it has no number, or another meaning than pixels."""
    with suppress(ValueError, TypeError):
        if photometric in (_BLACK_IS_ZERO, _RGB):
            return float(text), float(text)
    return None


def _inverted(values: np.ndarray, bits: int) -> np.ndarray:
    """Invert gray, but not further bands, such as opacity."""
    values = values.copy()
    white = 255 if values.dtype == np.uint8 else (1 << bits) - 1
    values[..., 0] = white - values[..., 0]
    return values


def _band_meaning(page: Any, bands: int, dtype: str) -> tuple[Colors, Alpha]:
    """Return the colors and alpha of `Pixels`; opacity only where the file states it."""
    if dtype in ("uint8", "uint16"):
        ink_set = page.tags.get(_INK_SET)
        if page.photometric == _INKS and bands == 4 and (ink_set is None or ink_set.value == 1):
            return "cmyk", None
        extra = [int(kind) for kind in page.extrasamples]
        if bands in (2, 4) and extra in ([_ASSOCIATED], [_STRAIGHT]):
            alpha: Alpha = "straight" if extra == [_STRAIGHT] else "associated"
            return "gray" if bands == 2 else "rgb", alpha
    return default_colors(bands), None


def _orientation(page: Any) -> int:
    """Return the EXIF orientation of a page, from where Pillow reads that of its TIFFs."""
    tag, xmp = page.tags.get(_ORIENTATION), page.tags.get(_XMP)
    if tag is not None:
        return int(tag.value) if tag.value in range(1, 9) else 1
    about = Image.Image()
    about.info["xmp"] = xmp and bytes(xmp.value)
    return pillow.exif_orientation(about)
