"""Damaged files of every format: each is decoded or refused with a reason, in bounded memory."""

from __future__ import annotations

import io
import logging
import random
import resource
import struct
import warnings
import zlib

import numpy as np
import pytest
import tifffile
from pydicom.uid import DeflatedExplicitVRLittleEndian

from dasl_core.data.decode import Header, decode, read_header
from tests.dasl_core.image_files import as_dicom, as_npy, by_tifffile, files_of_all_formats, ramp

VARIANTS = 1000
FILES = files_of_all_formats()
# Headers are at the beginning, where a flipped bit changes most.
HEADER_BYTES = 600
# All images are tiny. The decoders themselves, and images whose headers claim more, take this much.
MAX_GROWTH = 1_500_000_000


def outcome(content: bytes, name: str) -> Header | str:
    """Decode a file: return its header, or the reason why it cannot be."""
    file = io.BytesIO(content)
    try:
        header = read_header(file, name)
        pixels = decode(file, name, header.bands, header.dtype)
    except ValueError as error:
        return str(error)
    assert pixels.shape == (header.height, header.width, header.bands)
    assert pixels.dtype == header.dtype
    return header


def damaged(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    end = len(content) if rng.random() < 0.5 else min(len(content), HEADER_BYTES)
    position = rng.randrange(end)
    match rng.randrange(5):
        case 0:
            return content[:position]
        case 1 | 2:
            for _ in range(rng.choice([1, 2, 4, 16])):
                changed[rng.randrange(end)] ^= 1 << rng.randrange(8)
        case 3:
            width = rng.choice([1, 2, 4])
            changed[position : position + width] = rng.choice([b"\xff", b"\0", b"\x7f"]) * width
        case 4:
            del changed[position : position + rng.randrange(1, 64)]
    return bytes(changed)


@pytest.fixture
def quiet() -> None:
    logging.getLogger("tifffile").setLevel(logging.CRITICAL + 1)
    logging.getLogger("pydicom").setLevel(logging.CRITICAL + 1)
    warnings.simplefilter("ignore")


def peak_memory() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.usefixtures("quiet")
def test_damaged_files_are_decoded_or_refused() -> None:
    before = peak_memory()
    names = list(FILES)
    refused = 0
    for number in range(VARIANTS):
        rng = random.Random(number)
        name = names[number % len(names)]
        content = damaged(FILES[name], rng)
        # One in eight has the extension of another format as well.
        result = outcome(content, rng.choice(names) if number % 8 == 0 else name)
        if isinstance(result, str):
            refused += 1
            assert result.isprintable(), (name, number)
            assert 10 < len(result) < 300, (name, number)
    assert VARIANTS / 4 < refused < VARIANTS
    assert peak_memory() - before < MAX_GROWTH


def png_claiming(width: int, height: int, bits: int = 8) -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + checksum

    header = struct.pack(">IIBBBBB", width, height, bits, 2, 0, 0, 0)
    # Inflates to 64 MB, more than the image needs.
    rows = zlib.compress(bytes(64_000_000), 9)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    )


def npy_claiming(shape: str, descr: str = "<f4") -> bytes:
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header + bytes(100)


def tiff_claiming(**values: int) -> bytes:
    """A TIFF of five bands in compressed tiles, some of whose tags claim other sizes."""
    bands = ramp(5, "float32", 1, 32, 32)
    content = by_tifffile(
        bands, photometric="minisblack", planarconfig="contig", compression="zlib", tile=(16, 16)
    )
    with tifffile.TiffFile(io.BytesIO(content)) as tiff:
        tags = tiff.pages.first.tags
        places = {name: (tags[name].valueoffset, tags[name].dtype) for name in values}
    changed = bytearray(content)
    for name, (place, kind) in places.items():
        form = "<H" if kind == tifffile.DATATYPE.SHORT else "<I"
        struct.pack_into(form, changed, place, values[name])
    return bytes(changed)


GRAY = ramp(1, "uint16", 4095)[..., 0]
BOMBS = {
    "x.png": png_claiming(60_000, 60_000),
    "deep.png": png_claiming(9_400, 9_600, 16),
    "a.npy": npy_claiming("(100000, 100000)"),
    "bands.npy": npy_claiming("(1000, 1000, 1000000)"),
    "negative.npy": npy_claiming("(-1, 5)"),
    "objects.npy": npy_claiming("(2, 2)", "|O"),
    "long.npy": npy_claiming("(2, 2)" + " " * 20_000),
    "size.tif": tiff_claiming(ImageWidth=60_000, ImageLength=60_000),
    "tile.tif": tiff_claiming(TileWidth=60_000, TileLength=60_000),
    "samples.tif": tiff_claiming(SamplesPerPixel=60_000, ImageWidth=9_000, ImageLength=9_000),
    "rows.dcm": as_dicom(GRAY, Rows=65_000, Columns=65_000),
    "short.dcm": as_dicom(GRAY, Rows=9_000, Columns=9_000),
    "deflated.dcm": as_dicom(GRAY, syntax=DeflatedExplicitVRLittleEndian),
}


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_in_bounded_memory(name: str) -> None:
    before = peak_memory()
    result = outcome(BOMBS[name], name)
    assert isinstance(result, str), result
    assert result.startswith("the image ")
    assert peak_memory() - before < MAX_GROWTH


@pytest.mark.usefixtures("quiet")
def test_tile_that_inflates_beyond_its_size_takes_no_more_memory() -> None:
    content = by_tifffile(
        np.zeros((64, 64, 5), np.float32),
        photometric="minisblack", planarconfig="contig", compression="zlib",
    )  # fmt: skip
    with tifffile.TiffFile(io.BytesIO(content)) as tiff:
        tags = tiff.pages.first.tags
        count, offset = tags["StripByteCounts"].valueoffset, tags["StripOffsets"].valueoffset
    bomb = zlib.compress(bytes(500_000_000), 9)
    changed = bytearray(content + bomb)
    struct.pack_into("<I", changed, count, len(bomb))
    struct.pack_into("<I", changed, offset, len(content))
    before = peak_memory()
    outcome(bytes(changed), "x.tif")
    assert peak_memory() - before < 200_000_000


def test_empty_and_foreign_files() -> None:
    assert outcome(b"", "x.png") == "the file is empty"
    for name in ("x.png", "x.tif", "x.dcm", "x.nef", "x.npy", "x.heic"):
        reason = outcome(b"not an image, but a text file\n" * 20, name)
        assert isinstance(reason, str)
        assert reason.startswith("the ")
    assert isinstance(outcome(as_npy(np.zeros((0, 5))), "x.npy"), str)
