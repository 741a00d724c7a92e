"""Header of an image file, the limits on it, and the memory of decoding, measured with images of 9 megapixels."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

PixelType = Literal["uint8", "uint16", "int16", "float32"]
"""Types in which pixels are handed out; see `pixel_type` for those of files."""

# A file of a few KiB can claim an image of any size; this is 268 MB of RGB, far above any photo.
MAX_PIXELS = 89_478_485
# Values of all bands together: 1.4 GB as float32.
MAX_VALUES = 4 * MAX_PIXELS


class Header(NamedTuple):
    """The facts in the header of an image file.

    Attributes:
        width: pixels in a row of the upright image: EXIF orientation is applied.
        height: rows of the upright image.
        bands: values of a pixel, opacity included: 4 for RGBA and for CMYK. A palette counts as RGB.
        dtype: type of the values that `decode` returns without a conversion.
        format: name of the file's format, such as "JPEG" or "DICOM".
        is_color: whether the bands are gray, color or inks, with or without opacity, and can become gray and RGB.
        frames: images of this size in the file, such as pages of a TIFF, of which the first is read. Animations have one.
        marks_alpha: whether a TIFF marks its last band as opacity, as libraries do with bands of another meaning.
        checksum: checksum to detect a later change of the file (`data.opening`); 0 if unknown.
    """

    width: int
    height: int
    bands: int
    dtype: PixelType
    format: str = ""
    is_color: bool = True
    frames: int = 1
    marks_alpha: bool = False
    checksum: int = 0

    def checked(self) -> Header:
        """Return the header; a ValueError if it claims no pixels or bands, or above `MAX_PIXELS` or `MAX_VALUES`."""
        if min(self.width, self.height, self.bands) < 1:
            raise ValueError(
                f"the image is empty: {self.width} x {self.height} pixels, {self.bands} bands"
            )
        check_pixels(self.width, self.height)
        if self.width * self.height * self.bands > MAX_VALUES:
            raise ValueError(
                f"the image is too large: {self.width} x {self.height} pixels of {self.bands} bands, "
                f"more than the limit of {MAX_VALUES} values"
            )
        return self


def check_pixels(width: int, height: int) -> None:
    """Refuse an image of more than `MAX_PIXELS` with a ValueError."""
    if width * height > MAX_PIXELS:
        raise ValueError(too_large(f"{width} x {height} pixels"))


def too_large(size: str) -> str:
    return f"the image is too large: {size}, more than the limit of {MAX_PIXELS} pixels"


def pixel_type(stored: np.dtype) -> PixelType:
    """Return the type of decoded values for a type in a file.

    uint8, uint16 and int16 stay; bool becomes uint8 (0 and 255) and int8 becomes int16. Other
    integers and floats become float32, with the values that they have: float32 holds whole numbers
    up to 2**24 exactly.

    Raises:
        ValueError: the values are complex numbers, text or objects.
    """
    if stored.kind == "b" or stored == np.uint8:
        return "uint8"
    if stored.kind == "u" and stored.itemsize == 2:
        return "uint16"
    if stored.kind == "i" and stored.itemsize <= 2:
        return "int16"
    if stored.kind in "uif":
        return "float32"
    raise ValueError(f"the image has pixels of type {stored}, which is neither integer nor float")


# Most bytes for a pixel of 8 bits: of Pillow's decoder and image, of converted, turned or blended copies, and of the
# array. PNG with transparency takes 19.4, JPEG 2000 18.7, WebP 17.7, JPEG 12.2.
BYTES_PER_PIXEL = 20

# Bytes for a value of other types: of the file's content, its type, and the array. float64 takes 13.2.
_BYTES_PER_VALUE = 16
# DICOM in units of its modality takes 22 for its one band.
_LEAST_BYTES_PER_PIXEL = 24
# Coefficients, 2 bytes each, that a progressive JPEG keeps of the whole image.
_JPEG_BYTES_PER_VALUE = 2
# LibRaw holds the whole file; headers do not have its size. Not measured: common files have 20 to 100 MB.
_RAW_FILE = 200_000_000


def decoding_memory(header: Header, at_least: tuple[int, int] | None = None) -> int:
    """Estimate the bytes of memory that `decode` takes at most, its result included, with the same `at_least`."""
    pixels = header.width * header.height
    if header.dtype == "uint8" and header.bands <= 4:
        per_pixel = BYTES_PER_PIXEL
    else:
        per_pixel = max(_LEAST_BYTES_PER_PIXEL, _BYTES_PER_VALUE * header.bands)
    if header.format == "RAW":
        return _RAW_FILE + pixels * per_pixel
    if header.format == "JPEG" and at_least is not None:
        coefficients = pixels * header.bands * _JPEG_BYTES_PER_VALUE
        return coefficients + pixels * per_pixel // jpeg_scale(header, at_least) ** 2
    return pixels * per_pixel


# Divisors of the sides by which a JPEG may be decoded.
SCALES = (1, 2, 4, 8)


def jpeg_scale(header: Header, at_least: tuple[int, int]) -> int:
    """Return the divisor of the sides by which a JPEG is decoded: 1, 2, 4 or 8."""
    height, width = at_least
    most = min(header.width // max(1, width), header.height // max(1, height))
    return next((scale for scale in SCALES[:0:-1] if scale <= most), 1)
