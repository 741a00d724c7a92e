"""Small files of every image format, written by the libraries that people use."""

import io
import struct
import tarfile
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import imagecodecs
import numpy as np
import pillow_heif
import pydicom
import tifffile
from PIL import Image
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import (
    UID,
    ExplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLosslessSV1,
    JPEGLSLossless,
    RLELossless,
    generate_uid,
)

HEIGHT, WIDTH = 24, 32


def ramp(
    bands: int, dtype: str, high: float, height: int = HEIGHT, width: int = WIDTH
) -> np.ndarray:
    """An array (H, W, bands) of distinct values from 0 to `high`, as far as there are so many."""
    values = np.linspace(0, high, height * width * bands).reshape(height, width, bands)
    return values.astype(dtype)


def by_pillow(image: Image.Image, format_: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format_, **options)
    return file.getvalue()


def by_tifffile(values: np.ndarray, **options: object) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, values, **options)
    return file.getvalue()


def as_npy(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def as_tar(files: Iterable[tuple[str, bytes]]) -> bytes:
    """An archive of files, whose names may repeat."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def png_chunk(name: bytes, content: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(name + content))
    return struct.pack(">I", len(content)) + name + content + checksum


def png(
    values: np.ndarray,
    color_type: int,
    *,
    bits: int = 16,
    before: bytes = b"",
    after: bytes = b"",
) -> bytes:
    """A PNG of any depth (H, W, bands), with chunks before and after the pixels; Pillow writes none of 16-bit color."""
    height, width, _ = values.shape
    header = struct.pack(">IIBBBBB", width, height, bits, color_type, 0, 0, 0)
    packed = np.unpackbits(values.astype(">u2")[..., None].view(np.uint8), axis=3)[..., -bits:]
    rows = b"".join(b"\0" + np.packbits(row).tobytes() for row in packed)
    return (
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", header)
        + before
        + png_chunk(b"IDAT", zlib.compress(rows))
        + after
        + png_chunk(b"IEND", b"")
    )


def as_dicom(
    values: np.ndarray,
    photometric: str = "MONOCHROME2",
    *,
    bits: int | None = None,
    syntax: UID = ExplicitVRLittleEndian,
    encoded: bytes | bytearray | None = None,
    **elements: object,
) -> bytes:
    """A DICOM file of (H, W) gray, (H, W, 3) color, or (frames, H, W) with `NumberOfFrames`.

    `encoded` is the frame as `syntax` has it.
    """
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = UID("1.2.840.10008.5.1.4.1.1.7")
    meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=["a"])
    meta.TransferSyntaxUID = syntax
    dataset = FileDataset("", {}, file_meta=meta, preamble=bytes(128))
    dataset.SOPClassUID = meta.MediaStorageSOPClassUID
    dataset.SOPInstanceUID = meta.MediaStorageSOPInstanceUID
    dataset.PatientName = "Test^Case"
    frame = values[0] if "NumberOfFrames" in elements else values
    dataset.Rows, dataset.Columns = frame.shape[:2]
    dataset.SamplesPerPixel = 3 if frame.ndim == 3 else 1
    if frame.ndim == 3:
        dataset.PlanarConfiguration = 0
    dataset.PhotometricInterpretation = photometric
    dataset.BitsAllocated = 8 * values.dtype.itemsize
    dataset.BitsStored = bits or dataset.BitsAllocated
    dataset.HighBit = dataset.BitsStored - 1
    dataset.PixelRepresentation = int(values.dtype.kind == "i")
    for name, value in elements.items():
        setattr(dataset, name, value)
    dataset.PixelData = values.tobytes() if encoded is None else encapsulate([bytes(encoded)])
    dataset["PixelData"].is_undefined_length = encoded is not None
    file = io.BytesIO()
    pydicom.dcmwrite(file, dataset, enforce_file_format=True)
    return file.getvalue()


def camera_raw(flip: int = 1, preview: bytes | None = None) -> bytes:
    """A DNG of 12-bit sensor values with a JPEG preview, which is the first page as in a camera's."""
    sensor = ramp(1, "uint16", 4095, 96, 128)[..., 0]
    if preview is None:
        preview = by_pillow(Image.fromarray(ramp(3, "uint8", 255, 48, 64)), "JPEG")
    byte, short, text, rational, srational = 1, 3, 2, 5, 10
    identity = [1, 1, 0, 1, 0, 1, 0, 1, 1, 1, 0, 1, 0, 1, 0, 1, 1, 1]
    first = [
        (254, 4, [1]), (256, 4, [64]), (257, 4, [48]), (258, short, [8, 8, 8]), (259, short, [7]),
        (262, short, [6]), (271, text, b"Test\0"), (272, text, b"Camera\0"), (273, 4, ["preview"]),
        (274, short, [flip]), (277, short, [3]), (278, 4, [48]), (279, 4, [len(preview)]),
        (330, 4, ["second"]), (50706, byte, bytes([1, 4, 0, 0])), (50708, text, b"Test Camera\0"),
        (50721, srational, identity), (50728, rational, [1, 1, 1, 1, 1, 1]), (50778, short, [21]),
    ]  # fmt: skip
    second = [
        (254, 4, [0]), (256, 4, [128]), (257, 4, [96]), (258, short, [16]), (259, short, [1]),
        (262, short, [32803]), (273, 4, ["sensor"]), (277, short, [1]), (278, 4, [96]),
        (279, 4, [sensor.nbytes]), (33421, short, [2, 2]), (33422, byte, bytes([0, 1, 1, 2])),
        (50714, short, [0]), (50717, short, [4095]),
    ]  # fmt: skip
    sizes = {byte: 1, short: 2, text: 1, rational: 4, srational: 4, 4: 4}
    letters = {short: "H", 4: "I", rational: "I", srational: "i"}

    def directory(
        at: int, tags: Sequence[tuple[int, int, object]], places: dict[str, int]
    ) -> bytes:
        entries, rest = b"", b""
        rest_at = at + 2 + 12 * len(tags) + 4
        for tag, kind, values in tags:
            if isinstance(values, bytes):
                content = values
            else:
                assert isinstance(values, list)
                numbers = [places[value] if isinstance(value, str) else value for value in values]
                content = struct.pack(f"<{len(numbers)}{letters[kind]}", *numbers)
            count = len(content) // sizes[kind] // (2 if kind in (rational, srational) else 1)
            entries += struct.pack("<HHI", tag, kind, count)
            if len(content) <= 4:
                entries += content.ljust(4, b"\0")
            else:
                entries += struct.pack("<I", rest_at + len(rest))
                rest += content.ljust(len(content) + len(content) % 2, b"\0")
        return struct.pack("<H", len(tags)) + entries + bytes(4) + rest

    nowhere = {"preview": 0, "second": 0, "sensor": 0}
    second_at = 8 + len(directory(8, first, nowhere))
    sensor_at = second_at + len(directory(second_at, second, nowhere))
    places = {"second": second_at, "sensor": sensor_at, "preview": sensor_at + sensor.nbytes}
    return (
        b"II*\0\x08\0\0\0"
        + directory(8, first, places)
        + directory(second_at, second, places)
        + sensor.tobytes()
        + preview
    )


def files_of_all_formats() -> dict[str, bytes]:
    """Return a small image of each format, depth and layout that differs for a decoder, by name."""
    pillow_heif.register_heif_opener()
    color = Image.fromarray(ramp(3, "uint8", 255))
    gray16, gray12 = ramp(1, "uint16", 65535)[..., 0], ramp(1, "uint16", 4095)[..., 0]
    bands5 = ramp(5, "float32", 1)
    bands: dict[str, Any] = {"photometric": "minisblack", "planarconfig": "contig"}
    frames = {"save_all": True, "append_images": [color]}
    exif = Image.Exif()
    exif[0x0112] = 6
    turn = png_chunk(b"eXIf", exif.tobytes().removeprefix(b"Exif\0\0"))
    return {
        "a.jpg": by_pillow(color, "JPEG"),
        "progressive.jpg": by_pillow(color, "JPEG", progressive=True),
        "cmyk.jpg": by_pillow(color.convert("CMYK"), "JPEG"),
        "a.png": by_pillow(color, "PNG"),
        "palette.png": by_pillow(color.convert("P"), "PNG", transparency=0),
        "gray16.png": by_pillow(Image.fromarray(gray16), "PNG"),
        "turned.png": png(ramp(3, "uint16", 255), 2, bits=8, after=turn),
        "rgb16.png": png(ramp(3, "uint16", 65535), 2),
        "rgba16.png": png(ramp(4, "uint16", 65535), 6),
        "a.bmp": by_pillow(color, "BMP"),
        "a.webp": by_pillow(color.convert("RGBA"), "WEBP"),
        "lossless.webp": by_pillow(color, "WEBP", lossless=True),
        "a.gif": by_pillow(color, "GIF", **frames),
        "a.ppm": by_pillow(color, "PPM"),
        "gray16.pgm": by_pillow(Image.fromarray(gray16), "PPM"),
        "a.jp2": by_pillow(color, "JPEG2000"),
        "a.avif": by_pillow(color, "AVIF"),
        "a.heic": by_pillow(color, "HEIF"),
        "alpha.heic": by_pillow(color.convert("RGBA"), "HEIF"),
        "a.tif": by_pillow(color, "TIFF"),
        "lzw.tif": by_pillow(color, "TIFF", compression="tiff_lzw"),
        "jpeg.tif": by_pillow(color, "TIFF", compression="jpeg"),
        "gray16.tif": by_tifffile(gray16),
        "float.tif": by_tifffile(bands5[..., 0]),
        "rgb16.tif": by_tifffile(ramp(3, "uint16", 65535), photometric="rgb"),
        "bands.tif": by_tifffile(bands5, **bands),
        "deflate.tif": by_tifffile(bands5, **bands, compression="zlib", predictor=True),
        "tiles.tif": by_tifffile(bands5, **bands, compression="lzw", tile=(16, 16)),
        "zstd.tif": by_tifffile(bands5, **bands, compression="zstd"),
        "lerc.tif": by_tifffile(bands5, **bands, compression="lerc"),
        "planar.tif": by_tifffile(
            bands5.transpose(2, 0, 1), photometric="minisblack", planarconfig="separate"
        ),
        "big.tif": by_tifffile(bands5, **bands, bigtiff=True),
        "a.npy": as_npy(bands5),
        "columns.npy": as_npy(np.asfortranarray(gray16)),
        "a.dcm": as_dicom(gray12, bits=12),
        "ct.dcm": as_dicom(gray12, bits=12, RescaleSlope=1, RescaleIntercept=-1024),
        "color.dcm": as_dicom(np.asarray(color), "RGB"),
        "rle.dcm": as_dicom(gray12, syntax=RLELossless, encoded=_rle(gray12), bits=12),
        "jpeg.dcm": as_dicom(
            np.asarray(color.convert("L")),
            syntax=JPEGBaseline8Bit,
            encoded=by_pillow(color.convert("L"), "JPEG"),
        ),
        "lossless.dcm": as_dicom(
            gray12, syntax=JPEGLosslessSV1, encoded=imagecodecs.ljpeg_encode(gray12), bits=12
        ),
        "jpegls.dcm": as_dicom(
            gray12, syntax=JPEGLSLossless, encoded=imagecodecs.jpegls_encode(gray12), bits=12
        ),
        "jpeg2000.dcm": as_dicom(
            gray12,
            syntax=JPEG2000Lossless,
            encoded=imagecodecs.jpeg2k_encode(gray12, codecformat="j2k", reversible=True),
            bits=12,
        ),
        "a.dng": camera_raw(),
    }


def _rle(values: np.ndarray) -> bytes:
    """Encode (H, W) of 16 bits as DICOM's RLE: a segment of upper bytes and one of lower bytes."""
    segments = [_pack_bits(values >> 8), _pack_bits(values & 255)]
    offsets = [64, 64 + len(segments[0])]
    return struct.pack("<3I", 2, *offsets).ljust(64, b"\0") + b"".join(segments)


def _pack_bits(values: np.ndarray) -> bytes:
    rows = [bytes([values.shape[1] - 1]) + row.astype(np.uint8).tobytes() for row in values]
    content = b"".join(rows)
    return content.ljust(len(content) + len(content) % 2, b"\0")
