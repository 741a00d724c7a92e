"""Codecs of compressed DICOM frames, as a plugin of pydicom's decoders.

GDCM, which pydicom would use, crashed the process on eleven of 4,000 damaged files.
"""

import io
import threading
from typing import Any

import numpy as np
from pydicom.pixels import get_decoder
from pydicom.pixels.decoders import pillow, rle
from pydicom.uid import (
    UID,
    JPEGExtended12Bit,
    JPEGLossless,
    JPEGLosslessSV1,
    JPEGLSTransferSyntaxes,
    RLELossless,
)

from dasl_core.data.decode.jpeg_scans import check_scans
from dasl_core.data.decode.reasons import optional_module

_NAME, _CHECKED_PILLOW, _CHECKED_RLE = "imagecodecs", "checked pillow", "checked rle"
_LOSSLESS = (JPEGLossless, JPEGLosslessSV1)
_BY_IMAGECODECS = (*JPEGLSTransferSyntaxes, *_LOSSLESS, JPEGExtended12Bit)
DECODER_DEPENDENCIES = {
    **pillow.DECODER_DEPENDENCIES,
    **rle.DECODER_DEPENDENCIES,
    **{UID(syntax): (_NAME,) for syntax in _BY_IMAGECODECS},
}
"""Transfer syntaxes that this plugin decodes; pydicom reads this name."""
_MOST_RLE_BESIDES = 64 << 10
# pydicom adds plugins without one.
_adding = threading.Lock()


def is_available(uid: str) -> bool:
    """Whether this plugin decodes a transfer syntax; pydicom calls it."""
    return uid in (*_BY_IMAGECODECS, RLELossless) or pillow.is_available(uid)


def decode_by_pillow(source: bytes, runner: Any) -> bytes:
    """Decode a frame with pydicom's plugin of Pillow, which also takes a JPEG for JPEG 2000; pydicom calls it."""
    check_scans(io.BytesIO(source))
    return bytes(pillow._decode_frame(source, runner))


def decode_rle(source: bytes, runner: Any) -> bytearray:
    """Decode a frame with pydicom's plugin, which expands it up to 64 times before it compares sizes; pydicom calls it."""
    pixels = runner.rows * runner.columns * runner.samples_per_pixel * runner.bits_allocated // 8
    # Rows of one pixel, the worst case, take two bytes for each; a frame of any encoder has some padding.
    if len(source) > 2 * pixels + _MOST_RLE_BESIDES:
        raise ValueError(
            f"the image is damaged: its frame has {len(source):,} bytes, and its pixels have {pixels:,}"
        )
    return bytearray(rle._decode_frame(source, runner))


def decode_frame(source: bytes, runner: Any) -> bytearray:
    """Decode a frame; pydicom calls it with its `DecodeRunner`."""
    codecs = optional_module("imagecodecs", "the image is compressed DICOM", "dicom")
    check_scans(io.BytesIO(source))
    syntax = runner.transfer_syntax
    if syntax in JPEGLSTransferSyntaxes:
        decode = codecs.jpegls_decode
    else:
        decode = codecs.ljpeg_decode if syntax in _LOSSLESS else codecs.jpeg_decode
    shape = (runner.rows, runner.columns, runner.samples_per_pixel)
    # The array bounds the size that the frame's own header can claim.
    dtype = np.uint8 if runner.bits_stored <= 8 else np.uint16
    values = np.empty(shape[:2] if shape[2] == 1 else shape, dtype)
    options = {}
    if syntax == JPEGExtended12Bit and shape[2] == 3:
        # The colors as stored, in any space: pydicom converts those that are not RGB.
        options = {"colorspace": "YCBCR", "outcolorspace": "YCBCR"}
    decode(source, out=values, **options)
    runner.set_option("planar_configuration", 0)
    return bytearray(values.astype(f"<u{runner.bits_allocated // 8}").tobytes())


def find_plugin(syntax: UID, is_deep_color: bool) -> str:
    """Name the plugin of `pydicom.pixels.pixel_array` for a transfer syntax; a ValueError if no safe one decodes it.

    Args:
        is_deep_color: whether the image has color of more than 8 bits, of which Pillow loses some.
    """
    if not syntax.is_encapsulated:
        return ""
    try:
        decoder = get_decoder(syntax)
    except NotImplementedError:
        decoder = None
    if decoder and syntax in _BY_IMAGECODECS:
        _add(decoder, _NAME, decode_frame.__name__)
        return _NAME
    if decoder and syntax == RLELossless:
        _add(decoder, _CHECKED_RLE, decode_rle.__name__)
        return _CHECKED_RLE
    if decoder and "pillow" in decoder.available_plugins and not is_deep_color:
        _add(decoder, _CHECKED_PILLOW, decode_by_pillow.__name__)
        return _CHECKED_PILLOW
    color = "with color of more than 8 bits, " if is_deep_color else ""
    raise ValueError(
        f"the image is DICOM {color}compressed as {syntax.name}, which is not supported"
    )


def _add(decoder: Any, plugin: str, function: str) -> None:
    with _adding:
        if plugin not in decoder.available_plugins:
            decoder.add_plugin(plugin, (__name__, function))
