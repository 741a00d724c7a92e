"""DICOM images: the first frame, in the units of the modality (such as Hounsfield units)."""

import math
import os
from typing import IO, Any, NamedTuple

import numpy as np

from dasl_core.data.decode.header import Header, PixelType
from dasl_core.data.decode.header_bounds import bounded
from dasl_core.data.decode.pixels import Nodata, Pixels, default_colors, from_file_type, measured
from dasl_core.data.decode.reasons import optional_module

# The prefix "DICM" follows a preamble of 128 bytes, which old files lack.
PREFIX, PREFIX_AT = b"DICM", 128
_IMPLICIT = "1.2.840.10008.1.2"
_MOST_BESIDES = 64 << 20  # other elements, such as overlays and a report
_MOST_PIXELS = 1 << 30  # of all frames, as a member of an archive
# "Float Pixel Data" and "Double Float Pixel Data".
_FLOAT_PIXELS, _DOUBLE_PIXELS = 0x7FE00008, 0x7FE00009
_NEEDED = ("Rows", "Columns", "BitsAllocated", "SamplesPerPixel", "PhotometricInterpretation")
# Of three samples: those that pydicom converts to RGB.
_COLORS = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")
_INT16 = np.iinfo(np.int16)


class _Values(NamedTuple):
    """Rescaling of stored values: `slope * value + intercept`.

    Attributes:
        low: smallest value that the file may store.
        high: largest value that the file may store.
        inverted: whether larger values are darker.
    """

    low: int
    high: int
    slope: float
    intercept: float
    inverted: bool
    dtype: PixelType


def read_header(file: IO[bytes]) -> Header:
    """Read the header of an image; see `dasl_core.data.decode.read_header`."""
    dataset = _read(file)
    header = _describe(dataset)
    _find_plugin(dataset, header)
    return header


def decode(file: IO[bytes]) -> Pixels:
    """Decode the first frame; see `dasl_core.data.decode.decode`."""
    dataset = _read(file, pixels=True)
    header = _describe(dataset)
    pixels = optional_module("pydicom.pixels", "the image is DICOM", "dicom")
    plugin = _find_plugin(dataset, header)
    try:
        # With the unused bits, in which padding may lie.
        stored = pixels.pixel_array(
            dataset, index=0, decoding_plugin=plugin, correct_unused_bits=False
        )
    except NotImplementedError:  # a RuntimeError, whose text is the reason
        raise
    except RuntimeError as error:
        # pydicom puts a list of plugins, of which there is one, before the reason.
        raise ValueError(str(error).rpartition(f"  {plugin}: ")[2]) from error
    unused = int(dataset.BitsAllocated) - int(dataset.get("BitsStored", dataset.BitsAllocated))
    frame = stored if stored.dtype.kind == "f" or unused <= 0 else stored << unused >> unused
    if dataset.PhotometricInterpretation == "PALETTE COLOR":
        frame = pixels.apply_color_lut(frame, dataset)
    frame = frame.reshape(header.height, header.width, header.bands)
    if header.bands == 3:
        return Pixels(from_file_type(frame), "rgb")
    rescale = _read_rescale(dataset)
    stored = stored.reshape(frame.shape)
    values = measured(_in_units(frame, rescale), stored, _read_padding(dataset, stored.dtype))
    return Pixels(values, default_colors(header.bands))


def _find_plugin(dataset: Any, header: Header) -> str:
    codecs = optional_module("dasl_core.data.decode.dicom_codecs", "the image is DICOM", "dicom")
    is_deep_color = dataset.SamplesPerPixel == 3 and header.dtype != "uint8"
    return str(codecs.find_plugin(dataset.file_meta.TransferSyntaxUID, is_deep_color))


def _read(file: IO[bytes], *, pixels: bool = False) -> Any:
    pydicom = optional_module("pydicom", "the image is DICOM", "dicom")
    file.seek(0)
    has_prefix = file.read(PREFIX_AT + len(PREFIX))[PREFIX_AT:] == PREFIX
    # Also to decode: what precedes the pixels may claim to be as large as the file.
    with bounded(file, whole=False) as head:
        _refuse_deflated(pydicom, head, PREFIX_AT + len(PREFIX) if has_prefix else 0)
        head.seek(0)
        dataset = pydicom.dcmread(head, stop_before_pixels=True, force=not has_prefix)
    if pixels:
        _check_size(dataset, file.seek(0, os.SEEK_END))
        file.seek(0)
        dataset = pydicom.dcmread(file, force=not has_prefix)
    if missing := [name for name in _NEEDED if dataset.get(name) is None]:
        raise ValueError(f"the image is DICOM without {', '.join(missing)}")
    if pixels and not any(name in dataset for name in ("PixelData", _FLOAT_PIXELS, _DOUBLE_PIXELS)):
        raise ValueError("the image is DICOM without pixels")
    dataset.setdefault("PixelRepresentation", 0)
    if "TransferSyntaxUID" not in dataset.file_meta:
        dataset.file_meta.TransferSyntaxUID = pydicom.uid.UID(_IMPLICIT)
    return dataset


def _refuse_deflated(pydicom: Any, file: IO[bytes], begin: int) -> None:
    """Refuse a deflated file with a ValueError; its first group begins at this byte.

    pydicom inflates a file whole after this group, to any size.
    """
    file.seek(begin)
    # As pydicom reads the group, in files without the prefix, too.
    meta = pydicom.filereader.read_dataset(
        file,
        is_implicit_VR=False,
        is_little_endian=True,
        stop_when=lambda tag, *_: tag >> 16 != 2,
    )
    if meta.get("TransferSyntaxUID") == pydicom.uid.DeflatedExplicitVRLittleEndian:
        raise ValueError("the image is a deflated DICOM file; store it without deflation")


def _check_size(dataset: Any, size: int) -> None:
    """Check that a file has about as many bytes as its pixels need, before it is read."""
    factors = ("Rows", "Columns", "NumberOfFrames", "SamplesPerPixel", "BitsAllocated")
    # A file may claim any number of frames.
    needed = min(_MOST_PIXELS, math.prod(int(dataset.get(name) or 1) for name in factors) // 8)
    if size > needed + _MOST_BESIDES:
        raise ValueError(
            f"the image is DICOM of {size:,} bytes, and its pixels may take {needed:,}; store fewer frames in a file"
        )


def _describe(dataset: Any) -> Header:
    photometric = dataset.PhotometricInterpretation
    bands = 3 if photometric == "PALETTE COLOR" else int(dataset.SamplesPerPixel)
    if photometric == "PALETTE COLOR":
        bits = int(dataset.RedPaletteColorLookupTableDescriptor[2])
        dtype: PixelType = "uint8" if bits == 8 else "uint16"
    else:
        dtype = _read_rescale(dataset).dtype
    if bands not in (1, 3):
        raise ValueError(f"the image has {bands} samples per pixel, which DICOM does not define")
    if dataset.SamplesPerPixel == 3 and photometric not in _COLORS:
        raise ValueError(
            f"the image is DICOM with the photometric interpretation {photometric}, which is not supported"
        )
    frames = int(dataset.get("NumberOfFrames", None) or 1)
    header = Header(int(dataset.Columns), int(dataset.Rows), bands, dtype, "DICOM", frames=frames)
    return header.checked()


def _read_rescale(dataset: Any) -> _Values:
    allocated = int(dataset.BitsAllocated)
    stored = min(int(dataset.get("BitsStored", allocated)), allocated)
    signed = bool(dataset.PixelRepresentation)
    low, high = (-(1 << stored - 1), (1 << stored - 1) - 1) if signed else (0, (1 << stored) - 1)
    units = _find_units(dataset)
    slope = float(units.get("RescaleSlope", None) or 1)
    intercept = float(units.get("RescaleIntercept", None) or 0)
    if dataset.SamplesPerPixel != 1:
        slope, intercept = 1.0, 0.0
    inverted = dataset.PhotometricInterpretation == "MONOCHROME1"
    ends = sorted((slope * low + intercept, slope * high + intercept))
    dtype: PixelType
    if allocated > 16 or _FLOAT_PIXELS in dataset or _DOUBLE_PIXELS in dataset:
        dtype = "float32"
    elif (slope, intercept) == (1, 0):
        dtype = "int16" if signed else "uint8" if allocated <= 8 else "uint16"
    else:
        is_whole = slope.is_integer() and intercept.is_integer()
        fits = is_whole and _INT16.min <= ends[0] <= ends[1] <= _INT16.max
        dtype = "int16" if fits else "float32"
    return _Values(low, high, slope, intercept, inverted, dtype)


def _find_units(dataset: Any) -> Any:
    """Return the part with the rescaling: for enhanced (multi-frame) images that of all frames, or of the first."""
    for name in ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"):
        for groups in dataset.get(name) or ():
            for units in groups.get("PixelValueTransformationSequence") or ():
                return units
    return dataset


def _read_padding(dataset: Any, stored: np.dtype) -> Nodata | None:
    """Return the stored values of pixels outside of the image."""
    for kind in ("", "Float", "DoubleFloat"):
        value = dataset.get(f"{kind}PixelPaddingValue")
        if value is None:
            continue
        limit = dataset.get(f"{kind}PixelPaddingRangeLimit")
        ends = [value, value if limit is None else limit]
        if not kind:  # also written as signed for unsigned pixels, and the other way round
            ends = np.array(ends, np.int64).astype(stored).tolist()
        return min(ends), max(ends)
    return None


def _in_units(frame: np.ndarray, values: _Values) -> np.ndarray:
    if frame.dtype.kind == "f":
        return from_file_type(frame * values.slope + values.intercept)
    if not values.inverted and (values.slope, values.intercept) == (1, 0):
        return frame.astype(values.dtype)
    wide = frame.astype(np.float64)
    if values.inverted:
        wide = values.low + values.high - wide
    limits = np.iinfo(values.dtype) if values.dtype != "float32" else None
    wide = wide * values.slope + values.intercept
    # A damaged file may hold values beyond the bits that it states.
    return (np.clip(wide, limits.min, limits.max) if limits else wide).astype(values.dtype)
