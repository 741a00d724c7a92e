"""Generated files of every kind, held against what Pillow, tifffile and pydicom read, and what was written.

A cell of a matrix is one file. It is equal to its references, or refused by a rule that is named here, or a
reference is shown to be wrong by the values that were written.
"""

import io
import itertools
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import imagecodecs
import numpy as np
import pillow_heif
import pydicom
import pytest
import tifffile
from PIL import Image, ImageOps
from pydicom.pixels import convert_color_space
from pydicom.uid import UID, RLELossless

from dasl_core.data.decode import decode, decode_image, read_header
from dasl_core.data.decode.pillow import FORMATS
from dasl_core.vocabulary import IMAGE_EXTENSIONS
from tests.dasl_core.image_files import as_dicom, by_pillow, by_tifffile, png, png_chunk

pillow_heif.register_heif_opener()
HEIGHT, WIDTH = 10, 12
RNG = np.random.default_rng(0)
RULES = {
    "photometric": r"with the photometric interpretation \w+, which is not supported",
    "compression": r"TIFF of \d x \w+ compressed with \w+, which is not supported; use one of",
    "transfer syntax": r"DICOM (with color of more than 8 bits, )?compressed as .+, which is not supported",
    "stack": r"a stack of \d planes in depth|a stack of \d points in time",
    "channels": r"describes \d+ channels \(axis C\), and has pages of 3 bands",
}


class Cell(NamedTuple):
    """A file, and what it must be read as: the values of its bands, or gray or RGB on white, or both.

    Attributes:
        tolerance: of `on_white`, in 255ths.
        pillow_is_wrong: whether `on_white`, by Pillow, is another image than `bands`, which were written.
    """

    name: str
    content: bytes
    bands: np.ndarray | None = None
    on_white: np.ndarray | None = None
    tolerance: float = 1
    rule: str = ""
    pillow_is_wrong: bool = False


def outcome(cell: Cell) -> str:
    """Return "equal", the rule that refuses the cell, or what is wrong."""
    file = io.BytesIO(cell.content)
    name = f"x.{cell.name.partition(' ')[0]}"
    try:
        header = read_header(file, name)
        values = decode(file, name, header.bands, header.dtype)
    except ValueError as error:
        rules = [rule for rule, words in RULES.items() if re.search(words, str(error))]
        return cell.rule if rules == [cell.rule] else f"refused wrongly: {error}"
    if cell.rule:
        return f"not refused: {header}"
    if values.shape != (header.height, header.width, header.bands) or values.dtype != header.dtype:
        return f"not as its header: {values.shape} {values.dtype} {header}"
    if cell.bands is not None:
        expected = cell.bands.reshape(*cell.bands.shape[:2], -1)
        if values.shape != expected.shape or values.dtype != expected.dtype:
            return f"{values.shape} {values.dtype} in place of {expected.shape} {expected.dtype}"
        if not np.array_equal(values, expected):
            return f"other bands: {values[0, 0]} in place of {expected[0, 0]}"
    if cell.on_white is not None and header.is_color:
        rgb = decode(file, name, 3, header.dtype)
        scale = 257 if header.dtype == "uint16" else 1
        expected = cell.on_white.reshape(*cell.on_white.shape[:2], -1) * np.ones(3)
        if rgb.shape != expected.shape or np.abs(rgb / scale - expected).max() > cell.tolerance:
            if cell.pillow_is_wrong:
                return "Pillow is wrong"
            return f"other colors: {rgb[0, 0]} in place of {expected[0, 0]}"
        features = decode_image(io.BytesIO(cell.content))
        if np.abs(features - rgb / scale).max() > 0.51:
            return f"training and decode_image differ: {rgb[0, 0]}, {features[0, 0]}"
    return "equal"


def pillow_reads(content: bytes) -> np.ndarray | None:
    """Decode a file as Pillow does, upright and on white; None if it cannot."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            image.load()
            color = ImageOps.exif_transpose(image)
    except Exception:  # noqa: BLE001 - of any kind
        return None
    if color.mode.startswith(("I", "F")):
        return None
    if color.has_transparency_data:
        color = color.convert("LA" if color.mode == "La" else "RGBA").convert("RGBA")
        color = Image.alpha_composite(Image.new("RGBA", color.size, "white"), color)
    return np.asarray(color.convert("RGB"))


def written(write: Callable[..., bytes], *arguments: Any, **options: Any) -> bytes | None:
    """Write a file; None if the library writes none of this kind."""
    try:
        return write(*arguments, **options)
    except Exception:  # noqa: BLE001 - of any kind
        return None


def some(bands: int, dtype: str, most: int | None = None) -> np.ndarray:
    """Random values (H, W, bands), the last of which are not constant, either."""
    if dtype == "float32":
        return RNG.random((HEIGHT, WIDTH, bands), np.float32)
    limits = np.iinfo(dtype)
    high = limits.max if most is None else most
    return RNG.integers(limits.min, high, (HEIGHT, WIDTH, bands), dtype, endpoint=True)


def as_read(values: np.ndarray, photometric: str, bits: int) -> np.ndarray:
    """Return the bands that values in a TIFF mean."""
    if values.dtype == np.uint8 and bits < 8:
        values = np.rint(values * (255 / ((1 << bits) - 1))).astype(np.uint8)
        bits = 8
    if photometric == "miniswhite" and values.dtype.kind == "u":
        values = values.copy()
        values[..., 0] = (1 << bits) - 1 - values[..., 0]
    return values


def turned(values: np.ndarray, orientation: int) -> np.ndarray:
    """Turn values as Pillow turns an image."""
    image = Image.fromarray(np.arange(HEIGHT * WIDTH, dtype=np.int32).reshape(HEIGHT, WIDTH))
    image.getexif()[0x0112] = orientation
    return np.asarray(
        values.reshape(HEIGHT * WIDTH, -1)[np.asarray(ImageOps.exif_transpose(image))]
    )


# fmt: off
DEPTHS = [("uint8", 8), ("uint8", 4), ("uint16", 16), ("uint16", 12), ("int16", 16), ("float32", 32)]
BANDS_OF = {"minisblack": 1, "miniswhite": 1, "rgb": 3, "separated": 4}
CONVERTED = {"ycbcr": 3, "cielab": 3, "icclab": 3, "itulab": 3, "cfa": 1, "linear_raw": 3, "logl": 1}
NUMBERS = {"icclab": 9, "itulab": 10, "linear_raw": 34892, "logl": 32844}
COMPRESSIONS = [None, "lzw", "zlib", "packbits", "zstd", "lerc"]
EXTRAS: list[list[str]] = [[], ["unspecified"], ["assocalpha"], ["unassalpha"]]
LAYOUTS: list[dict[str, Any]] = [{}, {"tile": (16, 16)}, {"byteorder": ">"}, {"bigtiff": True}]
# fmt: on


def tiff(
    photometric: str,
    depth: tuple[str, int] = ("uint8", 8),
    extra: Sequence[str] = (),
    planar: str = "contig",
    orientation: int = 1,
    **options: Any,
) -> Cell | None:
    """A TIFF of random values; None if tifffile writes none of this kind."""
    dtype, bits = depth
    samples = {**BANDS_OF, **CONVERTED}[photometric] + len(extra)
    values = some(samples, dtype, (1 << bits) - 1 if dtype.startswith("u") else None)
    about = (
        f"tif {photometric} {samples} x {dtype} of {bits} {extra} {planar} {orientation} {options}"
    )
    options |= {"photometric": NUMBERS.get(photometric, photometric), "metadata": None}
    options |= {"planarconfig": planar} if samples > 1 else {}
    options |= {"extrasamples": extra} if extra else {}
    options |= {"bitspersample": bits} if bits not in (8, 16, 32) else {}
    options |= {"subsampling": (1, 1)} if photometric == "ycbcr" else {}
    options |= {"extratags": [(274, 3, 1, orientation, True)]}
    stored = np.moveaxis(values, 2, 0) if planar == "separate" else values
    content = written(by_tifffile, stored if samples > 1 else values[..., 0], **options)
    if content is None:
        return None
    read = tifffile.imread(io.BytesIO(content)).reshape(stored.shape)
    if not options.get("compression") and not np.array_equal(read, stored):
        return None  # tifffile itself does not read it: 12 bits of big endian
    on_white = pillow_reads(content)
    if photometric in CONVERTED:
        is_read = (
            photometric in ("ycbcr", "cielab") and planar == "contig" and not extra and bits == 8
        )
        return Cell(about, content, on_white=on_white, rule="" if is_read else "photometric")
    bands: np.ndarray | None = turned(as_read(values, photometric, bits), orientation)
    if planar == "contig" and bits == 8 and extra == ["assocalpha"]:
        bands = None  # Pillow divides colors by their opacity
    # Of 16 bits Pillow takes the upper byte, and it reads planes as if they were not.
    tolerance = 3 if bits == 16 else 1
    pillow_is_wrong = bits > 8 and planar == "separate" and samples > 1
    return Cell(about, content, bands, on_white, tolerance, pillow_is_wrong=pillow_is_wrong)


def tiffs() -> Iterator[Cell | None]:
    product, planes = itertools.product, ("contig", "separate")
    for kind in (
        *product(BANDS_OF, DEPTHS, EXTRAS, planes),
        *product(CONVERTED, DEPTHS[::2], EXTRAS[::3], planes),
    ):
        yield tiff(*kind)
    for depth, compression, layout in product(DEPTHS, COMPRESSIONS, LAYOUTS):
        yield tiff("minisblack", depth, compression=compression, **layout)
    rest = product(BANDS_OF, DEPTHS, planes, COMPRESSIONS, LAYOUTS)
    for photometric, depth, planar, compression, layout in itertools.islice(rest, 0, None, 7):
        yield tiff(photometric, depth, (), planar, compression=compression, **layout)
    for photometric, orientation, depth in product(BANDS_OF, range(1, 9), DEPTHS[::2]):
        yield tiff(photometric, depth, (), "contig", orientation)
    for orientation, dtype in product(range(1, 9), ("uint8", "uint16")):
        values, xmp = some(3, dtype), f'<x tiff:Orientation="{orientation}"/>'.encode()
        content = by_tifffile(values, photometric="rgb", extratags=[(700, 1, len(xmp), xmp, True)])
        yield Cell(f"tif {dtype} XMP {orientation}", content, turned(values, orientation))
    for compression, photometric in product(
        ("webp", "jpeg2000", "jpegxl", "png"), ("minisblack", "rgb")
    ):
        if cell := tiff(photometric, compression=compression):
            yield cell._replace(rule="compression")
    for photometric, depth in product(("minisblack", "rgb"), (("uint8", 8), ("uint16", 12))):
        if cell := tiff(photometric, depth, compression="jpeg"):
            is_read = photometric == "minisblack" or depth[1] == 8
            yield cell._replace(bands=None, rule="" if is_read else "compression")
    color = Image.fromarray(some(4, "uint8"))
    for mode, compression in product(
        ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBa", "CMYK", "YCbCr", "LAB"),
        (None, "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg", "group3", "group4", "lzma"),
    ):
        image = color if mode in ("LA", "PA", "RGBA", "RGBa") else color.convert("RGB")
        file = written(by_pillow, image.convert(mode), "TIFF", compression=compression)
        if file:
            yield Cell(f"tif of Pillow {mode} {compression}", file, on_white=pillow_reads(file))
    strips = tiff("minisblack", tile=(16, 16))
    full = tiff("ycbcr")
    assert strips
    assert full
    # Before TIFF 6, tiles were listed as strips. Colors of half the size are not what Pillow reads.
    content = strips.content.replace(b"\x44\1\4\0", b"\x11\1\4\0").replace(
        b"\x45\1\4\0", b"\x17\1\4\0"
    )
    yield Cell("tif tiles listed as strips", content, strips.bands)
    tag = b"\x12\2\3\0\2\0\0\0"
    halved = full.content.replace(tag + b"\1\0\1\0", tag + b"\2\0\2\0")
    yield Cell("tif ycbcr of halved colors", halved, rule="photometric")


def described_tiffs() -> Iterator[Cell]:
    writers: list[dict[str, Any]] = [{"ome": True}, {"imagej": True}, {}]
    sizes = {"C": 4, "Y": HEIGHT, "X": WIDTH, "S": 3}
    rules = {"CYX": "", "ZYX": "stack", "TYX": "stack", "ZCYX": "stack", "CYXS": "channels"}
    for options, dtype, axes in itertools.product(writers, ("uint8", "uint16", "float32"), rules):
        values = RNG.integers(0, 255, [sizes.get(axis, 2) for axis in axes]).astype(dtype)
        kind = "rgb" if "S" in axes else "minisblack"
        content = written(by_tifffile, values, **options, photometric=kind, metadata={"axes": axes})
        bands = np.moveaxis(values, 0, 2) if axes == "CYX" else None
        if content:  # ImageJ has no color of 32 bits
            yield Cell(f"tif {options} {dtype} {axes}", content, bands, rule=rules[axes])
    pages = np.moveaxis(some(2, "uint8"), 2, 0)
    content = by_tifffile(pages, photometric="minisblack", metadata=None)
    yield Cell("tif pages", content, pages[0])


# fmt: off
PNGS = [(0, 1), (0, 2), (0, 4), (0, 8), (0, 16), (2, 8), (2, 16), (4, 8), (4, 16), (6, 8), (6, 16)]
PNG_BANDS = {0: 1, 2: 3, 4: 2, 6: 4}
# fmt: on


def pngs() -> Iterator[Cell]:
    for (color_type, bits), clear in itertools.product(PNGS, (b"", b"tRNS")):
        values = some(PNG_BANDS[color_type], "uint16", (1 << bits) - 1)
        key = png_chunk(clear, values[0, 0].astype(">u2").tobytes()) if clear else b""
        if clear and color_type > 2:
            continue  # which have opacity
        content, about = (
            png(values, color_type, bits=bits, before=key),
            f"png {color_type} {bits} {clear!r}",
        )
        if bits == 16:
            values[(values == values[0, 0]).all(axis=2) & bool(clear)] = 65535
            opacity = values[..., -1:] / 65535 if color_type > 2 else 1
            colors = values[..., : len(values[0, 0]) - (color_type > 2)]
            yield Cell(about, content, values, colors / 257 * opacity + 255 * (1 - opacity))
        else:
            bands = (values * (255 // ((1 << bits) - 1))).astype(np.uint8)
            yield Cell(about, content, None if clear else bands, pillow_reads(content))
    for mode, bits, transparent in itertools.product(
        ("P", "1"), (1, 2, 4, 8), ({}, {"transparency": 0})
    ):
        image = Image.fromarray(some(1, "uint8", (1 << bits) - 1)[..., 0])
        image = image.convert("1") if mode == "1" else image.quantize(1 << bits)
        content = by_pillow(image, "PNG", bits=bits, **transparent)
        yield Cell(f"png {mode} {bits} {transparent}", content, on_white=pillow_reads(content))
    for orientation, color_type, bits in itertools.product(range(1, 9), (0, 2, 6), (8, 16)):
        exif = Image.Exif()
        exif[0x0112] = orientation
        tags = exif.tobytes().removeprefix(b"Exif\0\0")
        profile = f"\nexif\n{len(tags) + 6:8}\n{(b'Exif' + bytes(2) + tags).hex()}\n".encode()
        xmp = f'<x tiff:Orientation="{orientation}"/>'.encode() + b" " * 9000  # padded, as by Adobe
        for (name, chunk), place in itertools.product((
            (b"eXIf", tags),
            (b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(profile)),
            (b"tEXt", b"Raw profile type exif\0" + profile),
            (b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp),
        ), ("before", "after")):  # fmt: skip
            values = some(PNG_BANDS[color_type], "uint16", (1 << bits) - 1)
            content = png(values, color_type, bits=bits, **{place: png_chunk(name, chunk)})
            bands = turned(values if bits == 16 else values.astype(np.uint8), orientation)
            about = f"png {color_type} {bits} {name!r} {place} {orientation}"
            yield Cell(about, content, bands, pillow_reads(content) if bits == 8 else None)


def others() -> Iterator[Cell]:
    kinds = "jpg JPEG,webp WEBP,gif GIF,mpo MPO,bmp BMP,ppm PPM,jp2 JPEG2000,avif AVIF,heic HEIF"
    settings: dict[str, list[dict[str, Any]]] = {
        "JPEG": [{}, {"progressive": True}, {"subsampling": 0}, {"quality": 100}],
        "WEBP": [{}, {"lossless": True}],
        "GIF": [{}, {"transparency": 0}],
    }
    modes = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16")
    exif = Image.Exif()
    exif[0x0112] = 6
    places: list[dict[str, Any]] = [{"exif": exif}, {"xmp": b'<x tiff:Orientation="6"/>'}]
    smooth = np.kron(some(4, "uint8")[:2, :2], np.ones((HEIGHT, WIDTH, 1), np.uint8))
    color = Image.fromarray(smooth).resize((WIDTH, HEIGHT))
    deep = Image.fromarray(some(1, "uint16")[..., 0])
    for kind, mode in itertools.product(kinds.split(","), modes):
        ending, name = kind.split()
        image = color if mode in ("LA", "RGBA") else color.convert("RGB")
        image = deep if mode == "I;16" else image.convert(mode)
        turns = mode == "RGB" and name in ("JPEG", "MPO", "WEBP", "AVIF", "HEIF")
        for options, place in itertools.product(
            settings.get(name, [{}]), [{}, *places] if turns else [{}]
        ):
            content = written(by_pillow, image, name, **options, **place)
            about = f"{ending} {mode} {options} {place}"
            if content and mode == "I;16" and name in ("PPM", "JPEG2000"):
                yield Cell(about, content, np.asarray(image))
            elif content:
                yield Cell(about, content, on_white=pillow_reads(content))


# Transfer syntaxes below 1.2.840.10008.1.2, and the encoders of frames of a photometric interpretation.
GRAY, COLOR = ("MONOCHROME2", "MONOCHROME1"), ("RGB", "YBR_FULL")
NATIVE: Any = ("uint8", 8), ("uint16", 12), ("uint16", 16), ("int16", 16)
SYNTAXES: list[tuple[str, tuple[str, ...], Any, Callable[..., Any] | None]] = [
    ("", (*GRAY, *COLOR, "HSV"), NATIVE, None),
    (".1", (*GRAY, *COLOR, "HSV"), NATIVE, None),
    (".5", (*GRAY, *COLOR), NATIVE[:3], None),
    (".4.50", (*GRAY, *COLOR), NATIVE[:1], lambda v, kept: jpeg(v, kept, level=95)),
    (".4.51", (*GRAY, *COLOR), NATIVE[:1], lambda v, kept: jpeg(v, kept, level=95)),
    (".4.51", GRAY, NATIVE[1:2], lambda v, kept: jpeg(v, kept, level=95, bitspersample=12)),
    *((f".4.{number}", (*GRAY, *COLOR), NATIVE[:1], lambda v, kept: jpeg(
        v, kept or (v.ndim == 3 and "YCBCR"), lossless=True, predictor=1)) for number in (57, 70)),
    *((f".4.{number}", (*GRAY, *COLOR), NATIVE[:3], lambda v, kept: imagecodecs.jpegls_encode(v))
      for number in (80, 81)),
    (".4.90", (*GRAY, *COLOR), NATIVE[:3], lambda v, kept: imagecodecs.jpeg2k_encode(
        v, codecformat="j2k", reversible=True, mct=False)),
    (".4.91", (*GRAY, "YBR_ICT"), NATIVE[:3], lambda v, kept: imagecodecs.jpeg2k_encode(
        v, codecformat="j2k", reversible=True, mct=True)),
    *((f".4.{number}", ("RGB",), NATIVE[:1], lambda v, kept: bytes(32)) for number in (92, 103, 201)),
]  # fmt: skip


def jpeg(values: np.ndarray, kept: str | None, **options: Any) -> Any:
    spaces: Any = {"colorspace": kept, "outcolorspace": kept} if kept else {}
    return imagecodecs.jpeg_encode(values, subsampling="444", **spaces, **options)


def dicoms() -> Iterator[Cell]:
    for number, spaces, depths, encode in SYNTAXES:
        for space, (dtype, bits) in itertools.product(spaces, depths):
            is_color, is_jpeg = space not in GRAY, number in (".4.50", ".4.51")
            if is_color and (dtype == "int16" or (space == "YBR_FULL" and dtype != "uint8")):
                continue  # not in the standard
            values = some(3 if is_color else 1, dtype, (1 << bits) - 1 if dtype[0] == "u" else 9999)
            if is_jpeg:
                values[:] = values[0, 0]
            expected = values
            if space == "MONOCHROME1":
                expected = (1 << bits) - 1 - values if dtype[0] == "u" else -1 - values
            if space == "YBR_FULL" and not is_jpeg:  # whose encoder converts RGB
                expected = convert_color_space(values, "YBR_FULL", "RGB")
            rule = "photometric" if space == "HSV" else ""
            if number in (".4.92", ".4.103", ".4.201") or (
                is_color and bits > 8 and number in (".4.90", ".4.91")
            ):
                rule = "transfer syntax"
            stored = values if is_color else values[..., 0]
            encoded = encode and encode(stored, "RGB" if space == "RGB" else None)
            syntax = UID(f"1.2.840.10008.1.2{number}")
            about = f"dcm {syntax} {space} {dtype} of {bits}"
            options: Any = {"bits": bits, "encoded": encoded}
            if syntax != RLELossless:
                content = as_dicom(stored, space, syntax=syntax, **options)
            else:
                dataset = pydicom.dcmread(io.BytesIO(as_dicom(stored, space, **options)))
                dataset.compress(syntax)
                dataset.save_as(file := io.BytesIO())
                content = file.getvalue()
            if is_color and encode is None and syntax != RLELossless:
                by_planes = np.ascontiguousarray(np.moveaxis(stored, 2, 0))
                shape: Any = {"Rows": HEIGHT, "Columns": WIDTH, "SamplesPerPixel": 3}
                planar = as_dicom(
                    by_planes, space, syntax=syntax, **options, **shape, PlanarConfiguration=1
                )
                yield Cell(f"{about} by planes", planar, expected, rule=rule)
            if is_color and not (rule or is_jpeg) and number[:4] not in (".4.5", ".4.7", ".4.8"):
                # By pydicom's own plugins.
                read = pydicom.dcmread(io.BytesIO(content)).pixel_array
                assert np.abs(read.astype(int) - expected).max() <= 1, about
            if is_jpeg:
                yield Cell(about, content, on_white=expected if bits == 8 else None, tolerance=4)
            else:
                yield Cell(about, content, expected, rule=rule)


@pytest.mark.parametrize(
    ("cells", "counts"),
    [
        (tiffs, {"equal": 563, "Pillow is wrong": 4, "photometric": 77, "compression": 8}),
        (described_tiffs, {"equal": 10, "stack": 27, "channels": 7}),
        (pngs, {"equal": 418}),
        (others, {"equal": 110}),
        (dicoms, {"equal": 95, "photometric": 12, "transfer syntax": 7}),
    ],
)
def test_pixels_are_those_of_the_references(
    cells: Callable[[], Iterator[Cell | None]], counts: dict[str, int]
) -> None:
    outcomes = {cell.name: outcome(cell) for cell in cells() if cell is not None}
    wrong = [f"{name}: {each}" for name, each in outcomes.items() if each not in counts]
    assert not wrong, "\n".join(wrong[:40])
    assert Counter(outcomes.values()) == counts


def test_every_ending_that_the_decoder_knows_is_an_image() -> None:
    Image.init()
    known = (*FORMATS, "MPO", "HEIF")
    endings = {ending[1:] for ending, name in Image.EXTENSION.items() if name in known}
    assert endings <= IMAGE_EXTENSIONS
