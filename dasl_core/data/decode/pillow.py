"""Images that Pillow decodes: JPEG, PNG, WebP, HEIC and others, and most TIFFs of 8 bits."""

import io
import re
import warnings
from contextlib import suppress
from typing import IO, Any

import numpy as np
from PIL import Image, ImageFile, PngImagePlugin, UnidentifiedImageError

from dasl_core.data.decode.header import Header, PixelType, check_pixels
from dasl_core.data.decode.jpeg_scans import MAGIC as JPEG_MAGIC
from dasl_core.data.decode.jpeg_scans import check_scans
from dasl_core.data.decode.pixels import Pixels, from_file_type, wrong_bands
from dasl_core.data.decode.reasons import DAMAGED_OR_UNSUPPORTED, optional_module

# Pillow warns of images above its limit, which is `MAX_PIXELS`; they are refused with a reason. For the whole process,
# as `catch_warnings` is not safe in the threads that decode.
warnings.simplefilter("ignore", Image.DecompressionBombWarning)

# Raster formats that Pillow decodes itself (for EPS it runs another program). Only these are tried, whatever
# the extension.
FORMATS = ("JPEG", "PNG", "BMP", "DIB", "WEBP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")
# What files of some of them begin with.
MAGIC = {
    JPEG_MAGIC: "JPEG",
    b"\x89PNG": "PNG",
    b"BM": "BMP",
    b"GIF8": "GIF",
    b"\0\0\0\x0cjP  ": "JPEG 2000",
    b"\xff\x4f\xff\x51": "JPEG 2000",
}

EXIF_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Orientations that swap rows and columns.
_TURNED = (5, 6, 7, 8)
# Bands of a mode, without a transparent key color or palette entry.
_BANDS = {"1": 1, "L": 1, "LA": 2, "La": 2, "RGBA": 4, "RGBa": 4, "PA": 4, "CMYK": 4}
# Of each color profile and text of a PNG, inflated; those of slide scanners and of image generators have some MB.
PngImagePlugin.MAX_TEXT_CHUNK = 16 << 20
# Names of a PNG's chunks from which Pillow reads the orientation, and what they begin with.
_ORIENTED_CHUNKS = re.compile(
    rb"eXIf|(?:tEXt|zTXt|iTXt)(?:Raw profile type exif|XML:com\.adobe\.xmp)\0"
)
# Bytes at the end of a PNG in which they are searched if none precedes the pixels. Not for a file much larger than its
# pixels need, whose end may be far: the limits are a constant and a number for each pixel.
_PNG_END = 16 << 10
_PNG_BYTES, _PNG_BYTES_PER_PIXEL = 16 << 20, 16
# Pillow reads the upper bytes of 16-bit colors. The second raw mode gives the lower bytes, or for gray with opacity
# all four bytes of a pixel.
_LOWER_BYTES = {"RGB;16B": "RGB;16L", "RGBA;16B": "RGBA;16L", "LA;16B": "RGBA"}


def read_header(file: IO[bytes], formats: tuple[str, ...] = FORMATS) -> Header:
    """Read the header of an image; see `dasl_core.data.decode.read_header`."""
    return describe_image(open_image(file, formats))


def describe_image(image: ImageFile.ImageFile, *, orientation: int | None = None) -> Header:
    """Describe an opened image without loading it, with this EXIF orientation; None: as the file says."""
    width, height = image.size
    if (orientation or read_orientation(image)) in _TURNED:
        width, height = height, width
    name = "JPEG" if image.format == "MPO" else image.format or ""
    return Header(width, height, count_bands(image), stored_type(image), name).checked()


def decode(
    file: IO[bytes],
    channels: int,
    at_least: tuple[int, int] | None,
    formats: tuple[str, ...] = FORMATS,
    *,
    orientation: int | None = None,
) -> Pixels:
    """Decode an image; arguments as in `dasl_core.data.decode.decode` and `describe_image`."""
    check_scans(file)
    image = open_image(file, formats)
    check_pixels(*image.size)
    turn = orientation or read_orientation(image)
    if at_least is not None and image.format in ("JPEG", "MPO"):
        height, width = at_least[::-1] if turn in _TURNED else at_least
        # Decodes at 1/2, 1/4 or 1/8 of the size, if that is at least this.
        image.draft(None, (max(1, width), max(1, height)))
    if stored_type(image) != "uint8":
        pixels = _deep_pixels(image, file, formats)
        values = turned(pixels.values, turn)
        return Pixels(values, pixels.colors, pixels.alpha)
    bands = count_bands(image)
    size = image.size
    image.load()
    # Opacity that is 0 everywhere is padding, as browsers take it.
    is_bitmap = image.format in ("BMP", "DIB") and image.mode == "RGBA"
    if is_bitmap and image.getchannel("A").getextrema()[1] == 0:
        image.putalpha(255)
    # A HEIC header may state another size. A TIFF is turned here, by the orientation in its XMP, too.
    if sorted(image.size) != sorted(size):
        raise ValueError("the image is damaged: its number of pixels differs from its header")
    return _eight_bit_pixels(upright(image, turn), bands, channels)


def open_image(file: IO[bytes], formats: tuple[str, ...]) -> ImageFile.ImageFile:
    """Open an image without decoding its pixels."""
    file.seek(0)
    if "HEIF" in formats:
        heif = optional_module("pillow_heif", "the image is HEIC", "heif")
        # The decoding pool already has a thread for each core.
        heif.register_heif_opener(decode_threads=1, thumbnails=False)
    try:
        return Image.open(file, formats=formats)
    except UnidentifiedImageError as error:
        file.seek(0)
        head = file.read(8)
        for magic, name in MAGIC.items():
            if head.startswith(magic):
                raise ValueError(
                    f"the image is a {name} that is {DAMAGED_OR_UNSUPPORTED}"
                ) from error
        raise


def read_orientation(image: ImageFile.ImageFile) -> int:
    """Read the EXIF orientation of an image that is not loaded; 1 is upright."""
    if image.format == "TIFF":  # its size is upright already, and `load` turns its pixels
        return 1
    if image.format == "PNG" and "exif" not in image.info:
        image.info.update(_info_at_end(image))
    return exif_orientation(image)


def exif_orientation(image: Image.Image) -> int:
    """Return the orientation from the EXIF or XMP in `info`, without loading the image; 1 is upright."""
    try:
        # Of a PNG, its own `getexif` would decode all pixels to find EXIF behind them.
        orientation = Image.Image.getexif(image).get(EXIF_ORIENTATION)
    except Exception:  # noqa: BLE001 - damaged EXIF raises almost anything; the pixels are fine
        return 1
    return orientation if isinstance(orientation, int) and orientation in _UPRIGHT else 1


def _info_at_end(image: ImageFile.ImageFile) -> dict[str | tuple[int, int], Any]:
    """Return the `info` from EXIF and XMP behind a PNG's pixels, in the last bytes of the file."""
    file = image.fp
    assert file is not None, "it is open until `load`"
    before = file.tell()
    end = file.seek(0, 2)
    start = max(0, end - _PNG_END)
    is_near = end <= _PNG_BYTES + _PNG_BYTES_PER_PIXEL * image.width * image.height
    file.seek(start)
    tail = file.read(_PNG_END) if is_near else b""
    file.seek(before)
    chunks = PngImagePlugin.PngStream(io.BytesIO(tail))
    for found in _ORIENTED_CHUNKS.finditer(tail):
        content = tail[max(0, found.start() - 4) :]
        with suppress(Exception):  # damaged: the pixels are fine
            chunks.fp = io.BytesIO(content[8:])
            chunks.call(content[4:8], 0, int.from_bytes(content[:4], "big"))
    return chunks.im_info


def count_bands(image: Image.Image) -> int:
    """Count the bands of an image without loading it; a palette counts as RGB."""
    if image.mode.startswith(("I", "F")):
        return 1
    if stored_type(image) == "uint16":
        return {"L": 2, "R": 4 if image.mode == "RGBA" else 3}[_raw_mode(image)[0]]
    bands = _BANDS.get(image.mode, 3)
    return bands if bands in (2, 4) else bands + image.has_transparency_data


def stored_type(image: Image.Image) -> PixelType:
    """Return the type of the pixels of an image that is not loaded."""
    if image.mode == "F":
        return "float32"
    if image.mode.startswith("I;16"):
        return "uint16"
    if image.mode == "I":
        raw_mode = _raw_mode(image)
        if ";32" in raw_mode:
            return "float32"
        return "int16" if raw_mode.endswith("S") else "uint16"
    is_deep_png = image.format == "PNG" and _raw_mode(image) in _LOWER_BYTES
    return "uint16" if is_deep_png else "uint8"


def _raw_mode(image: Image.Image) -> str:
    """Name the layout of the pixels in the file, as Pillow does; "" if Pillow does not know it."""
    tiles = getattr(image, "tile", None)
    if not tiles:
        return ""
    arguments = tiles[0][3]
    return str(arguments[0] if isinstance(arguments, tuple) and arguments else arguments)


def _deep_pixels(image: ImageFile.ImageFile, file: IO[bytes], formats: tuple[str, ...]) -> Pixels:
    kind, raw_mode = stored_type(image), _raw_mode(image)
    if lower_mode := _LOWER_BYTES.get(raw_mode):
        return _deep_colors(image, file, formats, raw_mode, lower_mode)
    image.load()
    values = np.array(image)
    if kind == "float32":
        # Pillow holds unsigned numbers of 32 bits as signed ones.
        is_unsigned = values.dtype.kind == "i" and not raw_mode.endswith("S")
        values = from_file_type(values.view(np.uint32) if is_unsigned else values)
    elif kind == "uint16":
        values = values.astype(np.uint16)
        # A PNG of 16 bits may name one value that is transparent: white, as other transparency is.
        if isinstance(clear := image.info.get("transparency"), int):
            values[values == clear] = 65535
    elif kind == "int16":
        values = values.astype(np.int16)
    return Pixels(values[..., None], "gray")


def _deep_colors(
    image: ImageFile.ImageFile,
    file: IO[bytes],
    formats: tuple[str, ...],
    raw_mode: str,
    lower_mode: str,
) -> Pixels:
    """Read all 16 bits of a color PNG, of which Pillow returns the upper or the lower byte."""

    def load(opened: ImageFile.ImageFile, mode: str) -> np.ndarray:
        opened.tile = [tile._replace(args=mode) for tile in opened.tile]
        opened.load()
        return np.asarray(opened)

    if raw_mode.startswith("LA"):
        big_endian = load(image, lower_mode)
        return Pixels(big_endian.view(">u2").astype(np.uint16), "gray", "straight")
    upper = load(image, raw_mode).astype(np.uint16)
    lower = load(open_image(file, formats), lower_mode)
    values = (upper << 8) | lower
    # As of gray, the one color that is transparent.
    if isinstance(clear := image.info.get("transparency"), tuple):
        values[(values == clear).all(axis=2)] = 65535
    return Pixels(values, "rgb", "straight" if values.shape[2] == 4 else None)


def _eight_bit_pixels(image: Image.Image, bands: int, channels: int) -> Pixels:
    """Convert a loaded image to 1 or 3 channels if these are requested, else to its own bands."""
    if channels in (1, 3):
        mode = "L" if channels == 1 else "RGB"
        return Pixels(as_array(to_mode(image, mode)), "gray" if channels == 1 else "rgb")
    if channels != bands:
        raise ValueError(wrong_bands(bands, channels))
    if image.mode == "CMYK":
        return Pixels(as_array(image), "cmyk")
    return Pixels(as_array(_with_opacity(image, "LA" if bands == 2 else "RGBA")), "any")


def as_array(image: Image.Image) -> np.ndarray:
    """Copy an image of 8 bits to an array (H, W, bands)."""
    return np.array(image, dtype=np.uint8).reshape(image.height, image.width, -1)


def upright(image: Image.Image, orientation: int) -> Image.Image:
    """Turn a loaded image by its EXIF orientation."""
    turn = _UPRIGHT.get(orientation)
    return image if turn is None else image.transpose(turn)


def turned(values: np.ndarray, orientation: int) -> np.ndarray:
    """Turn pixels (H, W, bands) by their EXIF orientation."""
    if orientation in _TURNED:
        values = values.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        values = values[::-1]
    if orientation in (2, 3, 6, 7):
        values = values[:, ::-1]
    return values


def to_mode(image: Image.Image, mode: str) -> Image.Image:
    """Convert a loaded image of 8 bits to "L" or "RGB", with white behind transparent pixels."""
    if image.has_transparency_data:
        color = _with_opacity(image, "RGBA")
        white = Image.new("RGBA", color.size, "white")
        image = Image.alpha_composite(white, color)
    if image.mode == "LAB":
        image = image.convert("RGB")
    return image if image.mode == mode else image.convert(mode)


def _with_opacity(image: Image.Image, mode: str) -> Image.Image:
    # Straight alpha first: "La" and "RGBa" hold colors already multiplied by it.
    straight = {"La": "LA"}.get(image.mode, mode)
    return image.convert(straight).convert(mode)
