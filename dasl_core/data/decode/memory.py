"""Memory of decoding, measured with images of 9 megapixels."""

from __future__ import annotations

from dasl_core.data.decode.header import Header

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
    """Estimate the bytes of memory that `decode` takes at most, its result included.

    Args:
        at_least: as for `decode`.
    """
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
