"""Damaged files of every format: cut, changed, and with headers that claim what is not there."""

import io
import random
import struct
import zlib
from collections.abc import Iterator

import tifffile
from pydicom.uid import DeflatedExplicitVRLittleEndian

from tests.dasl_core.image_files import as_dicom, by_tifffile, files_of_all_formats, png_chunk, ramp

FILES = files_of_all_formats()
# Headers are at the beginning, where a flipped bit changes most.
HEADER_BYTES = 600
DAMAGES = ("cut", "flipped", "set", "shortened", "lengthened", "emptied", "mixed", "renamed")


def variants(count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of damaged files, of every format with every one of `DAMAGES`."""
    names = list(FILES)
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        name = names[number % len(names)]
        damage = DAMAGES[number // len(names) % len(DAMAGES)]
        other = rng.choice(names)
        content = damaged_by(damage, FILES[name], FILES[other], rng)
        shown = f"{name.partition('.')[0]}.{other}" if damage == "renamed" else name
        yield f"{number:04d}-{damage}-{shown}", content


def damaged_by(damage: str, content: bytes, other: bytes, rng: random.Random) -> bytes:
    """Return a file damaged in one way; `other` is one of another format."""
    changed = bytearray(content)
    end = len(content) if rng.random() < 0.5 else min(len(content), HEADER_BYTES)
    position = rng.randrange(1, end)
    match damage:
        case "cut":
            return content[:position]
        case "flipped":
            for _ in range(rng.choice([1, 2, 4, 16])):
                changed[rng.randrange(end)] ^= 1 << rng.randrange(8)
        case "set":
            width = rng.choice([1, 2, 4])
            changed[position : position + width] = rng.choice([b"\xff", b"\0", b"\x7f"]) * width
        case "shortened":
            del changed[position : position + rng.randrange(1, 64)]
        case "lengthened":
            changed[position:position] = rng.randbytes(rng.randrange(1, 64))
        case "emptied":  # as a download leaves it that had reserved its room
            changed[position:] = bytes(len(content) - position)
        case "mixed":
            changed[position:] = other[position:]
    return bytes(changed)


def png_claiming(width: int, height: int, bits: int = 8, inflated: int = 64_000_000) -> bytes:
    """A PNG of color whose pixels inflate to a number of bytes."""
    header = struct.pack(">IIBBBBB", width, height, bits, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(inflated), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks)


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


def patched(name: str, at: bytes, offset: int, value: bytes) -> bytes:
    """One of `FILES` with other bytes at an offset from the first occurrence of a marker."""
    content = bytearray(FILES[name])
    place = content.index(at) + offset
    content[place : place + len(value)] = value
    return bytes(content)


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
SHORT, LONG = struct.pack(">HH", 65_000, 65_000), struct.pack("<II", 60_000, 60_000)
# Tiny files of other formats that claim to be large; some within what is allowed, but without its pixels.
CLAIMS = {
    "frame.jpg": patched("a.jpg", b"\xff\xc0", 5, SHORT),
    "allowed.jpg": patched("a.jpg", b"\xff\xc0", 5, struct.pack(">HH", 9_000, 9_000)),
    "progressive.jpg": patched("progressive.jpg", b"\xff\xc2", 5, struct.pack(">HH", 8_000, 8_000)),
    "screen.gif": patched("a.gif", b"GIF8", 6, SHORT),
    "a.bmp": patched("a.bmp", b"BM", 18, LONG),
    "allowed.bmp": patched("a.bmp", b"BM", 18, struct.pack("<II", 9_000, 9_000)),
    "a.ppm": b"P6 60000 60000 255\n" + bytes(100),
    "allowed.ppm": b"P6 9000 9000 255\n" + bytes(100),
    "a.jp2": patched("a.jp2", b"ihdr", 4, struct.pack(">II", 60_000, 60_000)),
}
