"""Camera RAW files, by the JPEG preview that cameras put into them."""

import io
from typing import IO, Any

from dasl_core.data.decode import pillow
from dasl_core.data.decode.header import Header
from dasl_core.data.decode.pixels import Pixels
from dasl_core.data.decode.reasons import optional_module

# LibRaw needs the whole file. The largest, of medium format cameras, have 200 MB.
_MAX_BYTES = 2**30
# LibRaw's name of a rotation, as an EXIF orientation.
_ORIENTATIONS = {3: 3, 5: 8, 6: 6}
_FORMATS = ("JPEG", "PPM")


def read_header(file: IO[bytes]) -> Header:
    """Read the header of the preview; see `dasl_core.data.decode.read_header`."""
    preview, orientation = _preview(file)
    image = pillow.open_image(preview, _FORMATS)
    return pillow.describe_image(image, orientation=orientation)._replace(format="RAW")


def decode(file: IO[bytes], channels: int, at_least: tuple[int, int] | None) -> Pixels:
    """Decode the preview; see `dasl_core.data.decode.decode`."""
    preview, orientation = _preview(file)
    return pillow.decode(preview, channels, at_least, _FORMATS, orientation=orientation)


def _preview(file: IO[bytes]) -> tuple[IO[bytes], int]:
    """Find the largest preview, as a file, and its orientation, or else that of the photo."""
    rawpy: Any = optional_module("rawpy", "the image is camera RAW", "raw")
    size = file.seek(0, 2)
    if size > _MAX_BYTES:
        raise ValueError(f"the image is too large: a camera RAW file of {size} bytes")
    file.seek(0)
    try:
        with rawpy.imread(io.BytesIO(file.read())) as photo:
            thumbnail = photo.extract_thumb()
            orientation = _ORIENTATIONS.get(photo.sizes.flip, 1)
    except rawpy.LibRawNoThumbnailError as error:
        raise ValueError("the image is camera RAW without a preview") from error
    if thumbnail.format == rawpy.ThumbFormat.JPEG:
        preview = io.BytesIO(thumbnail.data)
        inner = pillow.read_orientation(pillow.open_image(preview, _FORMATS))
        return preview, inner if inner != 1 else orientation
    if thumbnail.format == rawpy.ThumbFormat.BITMAP:
        height, width, _ = thumbnail.data.shape
        header = f"P6 {width} {height} 255\n".encode()
        return io.BytesIO(header + thumbnail.data.tobytes()), orientation
    raise ValueError("the image is camera RAW without a preview")
