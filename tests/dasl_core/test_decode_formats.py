"""Headers and pixels of every format: the bands and levels of a file are those that come out."""

import gc
import io
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pillow_heif
import pydicom
import pytest
from PIL import Image

from dasl_core.data.decode import (
    decode,
    decoding_memory,
    is_transient,
    read_header,
)
from dasl_core.data.decode.header import PixelType, jpeg_scale
from tests.dasl_core.image_files import (
    HEIGHT,
    WIDTH,
    as_dicom,
    as_npy,
    by_pillow,
    by_tifffile,
    camera_raw,
    files_of_all_formats,
    png,
    ramp,
)

pillow_heif.register_heif_opener()
FILES = files_of_all_formats()
GRAY12, GRAY16 = ramp(1, "uint16", 4095), ramp(1, "uint16", 65535)
BANDS5 = ramp(5, "float32", 1)


def decoded(content: bytes, name: str, channels: int, dtype: PixelType = "uint8") -> np.ndarray:
    return decode(io.BytesIO(content), name, channels, dtype)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("columns.npy", GRAY16),
        ("a.npy", BANDS5),
        ("ct.dcm", GRAY12.astype(np.int16) - 1024),
        *((f"{kind}.tif", BANDS5) for kind in ("deflate", "planar")),
    ],
    ids=["columns", "array", "units", "bands", "planes"],
)
def test_levels_and_bands_are_kept(name: str, values: np.ndarray) -> None:
    header = read_header(io.BytesIO(FILES[name]), name)
    assert header.dtype == values.dtype
    np.testing.assert_array_equal(decoded(FILES[name], name, header.bands, header.dtype), values)


def test_luminance_of_deep_color() -> None:
    red = np.array([[[65535, 0, 0]]])
    assert decoded(png(red, 2), "x.png", 1, "uint16").item() == round(0.299 * 65535)


@pytest.mark.parametrize(
    ("content", "channels", "dtype", "expected"),
    [
        (as_npy(np.array([[7]], np.uint8)), 3, "uint16", 7 * 257),
        (as_npy(np.array([[51]], np.uint8)), 1, "float32", 0.2),
        (as_npy(np.array([[13107]], np.uint16)), 1, "float32", 0.2),
        (as_npy(np.array([[-5]], np.int16)), 3, "float32", -5),
        (as_npy(np.array([[-5]], np.int8)), 1, "int16", -5),
        (as_npy(np.array([[300]], np.uint16)), 1, "uint8", 1),
        (as_npy(np.array([[True]])), 1, "uint8", 255),
        (as_npy(np.array([[70000]], np.int64)), 1, "float32", 70000),
        (as_npy(np.array([[3]], ">f8")), 1, "float32", 3),
        (by_tifffile(np.array([[4_000_000_000]], np.uint32)), 1, "float32", 4e9),
        (by_tifffile(np.array([[-5]], np.int8)), 1, "int16", -5),
    ],
)
def test_types_are_converted(
    content: bytes, channels: int, dtype: PixelType, expected: float
) -> None:
    pixels = decoded(content, "x", channels, dtype)
    assert pixels.dtype == dtype
    np.testing.assert_allclose(pixels, np.full((1, 1, channels), expected, dtype), rtol=1e-6)


@pytest.mark.parametrize(
    ("content", "channels", "dtype", "reason"),
    [
        (FILES["bands.tif"], 3, "float32", "5 bands, and backbone.in_channels is 3"),
        (FILES["a.png"], 4, "uint8", "3 bands, and backbone.in_channels is 4"),
        (FILES["gray16.tif"], 2, "uint16", "1 band, and backbone.in_channels is 2"),
        (FILES["bands.tif"], 5, "uint8", "float32 pixels, which a data set of uint8 cannot hold"),
        (FILES["ct.dcm"], 1, "uint16", "int16 pixels, which a data set of uint16 cannot hold"),
        (as_npy(np.zeros((2, 2), complex)), 1, "float32", "neither integer nor float"),
        (as_npy(np.zeros(5)), 1, "float32", r"shape \(5,\), and must be"),
        (as_npy(np.zeros((0, 5))), 1, "float32", ""),
    ],
)
def test_what_does_not_fit_is_refused(
    content: bytes, channels: int, dtype: PixelType, reason: str
) -> None:
    with pytest.raises(ValueError, match=f"^the image .*{reason}"):
        decoded(content, "x", channels, dtype)


def tagged(values: Any, dtype: str, nodata: str, **options: Any) -> bytes:
    """A TIFF with GDAL's tag for pixels without data."""
    options = {"extratags": [(42113, "s", 0, nodata, True)], **options}
    return by_tifffile(np.array(values, dtype), **options)


def scan(values: Any, dtype: str, padding: int, **elements: Any) -> bytes:
    return as_dicom(np.array([values], dtype), PixelPaddingValue=padding, **elements)


STACK = [[[-9, -9, -9, -9, -9], [1, 20, 3, 4, -9]]]
COLORS = [[255, 255, 255], [255, 8, 7], [9, 9, 9]]
CLEAR = [[0, 0, 0, 0], [7, 8, 9, 255]]
OPACITY = {"photometric": "rgb", "extrasamples": ["unassalpha"]}
LOWEST = -3.4028234663852886e38
BANDS = {"photometric": "minisblack", "planarconfig": "contig"}


@pytest.mark.parametrize(
    ("content", "channels", "dtype", "expected"),
    [
        (as_npy(np.array([[np.nan, -2], [np.inf, 4]], "f4")), 1, "float32", [-2, -2, -2, 4]),
        (as_npy(np.array([[LOWEST, -2, 1e300]])), 1, "float32", [-2, -2, -2]),
        (by_tifffile(np.array([[np.nan, 3, 4]], "f4")), 1, "float32", [3, 3, 4]),
        (tagged([[-9999, 3, 4]], "f4", "-9999"), 1, "float32", [3, 3, 4]),
        (tagged([[LOWEST, 3, 4]], "f4", f"{LOWEST}"), 1, "float32", [3, 3, 4]),
        (tagged([[-9999, np.nan, 4]], "f8", "-9999 "), 1, "float32", [4, 4, 4]),
        (tagged([[-1, 3, 4]], "f4", "nan"), 1, "float32", [-1, 3, 4]),
        (tagged([[-32768, 3, 4]], "i2", "-32768"), 1, "int16", [3, 3, 4]),
        (tagged([[65535, 3, 4]], "u2", "65535"), 1, "uint16", [3, 3, 4]),
        (tagged([[255, 3, 4]], "u1", "255"), 1, "uint8", [3, 3, 4]),
        (tagged([[[0, 0, 0], [7, 8, 9]]], "u1", "0"), 3, "uint8", [7, 8, 9, 7, 8, 9]),
        (tagged([COLORS], "u1", "255"), 3, "uint8", [9, 8, 7, 255, 8, 7, 9, 9, 9]),
        (tagged([COLORS], "u2", "255"), 3, "uint16", [9, 8, 7, 255, 8, 7, 9, 9, 9]),
        (tagged([CLEAR], "u1", "0", **OPACITY), 3, "uint8", [255, 255, 255, 7, 8, 9]),
        (tagged([CLEAR], "u1", "255", **OPACITY), 3, "uint8", [255, 255, 255, 7, 8, 9]),
        (tagged([CLEAR], "u2", "0", **OPACITY), 3, "uint16", [65535] * 3 + [65280] * 3),
        (tagged([[0, 3, 4]], "u2", "-9999"), 1, "uint16", [0, 3, 4]),
        (tagged([[0, 3, 4]], "u2", "none"), 1, "uint16", [0, 3, 4]),
        # Of each band its own smallest; the last band has none but the image.
        (tagged(STACK, "i2", "-9", **BANDS), 5, "int16", [1, 20, 3, 4, 1, 1, 20, 3, 4, 1]),
        (scan([-2000, 3, 4], "i2", -2000), 1, "int16", [3, 3, 4]),
        (scan([-9, -8, 3], "i2", -8, PixelPaddingRangeLimit=-9), 1, "int16", [3, 3, 3]),
        (scan([0, 3, 4], "u2", 0, RescaleSlope=2, bits=12), 1, "int16", [6, 6, 8]),
        (scan([0, 3, 4], "u2", 0, photometric="MONOCHROME1"), 1, "uint16", [65531, 65532, 65531]),
        (scan([63536, 3, 4], "u2", 63536, bits=12), 1, "uint16", [3, 3, 4]),
        (scan([2096, 3, 4095], "u2", 63536, bits=12), 1, "uint16", [2096, 3, 4095]),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else None,
)
@pytest.mark.filterwarnings("error")
def test_values_that_are_no_measurement_become_the_smallest(
    caplog: pytest.LogCaptureFixture,
    content: bytes,
    channels: int,
    dtype: PixelType,
    expected: list[float],
) -> None:
    assert decoded(content, "x", channels, dtype).ravel().tolist() == expected
    assert caplog.records == []


@pytest.mark.parametrize(
    "content",
    [as_npy(np.full((2, 2), np.nan)), tagged([[7, 7]], "u1", "7"), tagged([[9, 9]], "f4", "9")],
)
def test_image_without_any_measurement_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="the image has no valid pixel"):
        decoded(content, "x", 1)


def test_dicom_in_units_of_the_modality() -> None:
    values = np.array([[0, 100, 4095]], np.uint16)

    def pixels(dtype: PixelType, **elements: object) -> list[float]:
        content = as_dicom(values, bits=12, **elements)  # type: ignore[arg-type]
        assert read_header(io.BytesIO(content), "x").dtype == dtype
        result: list[float] = decoded(content, "x", 1, dtype).ravel().tolist()
        return result

    assert pixels("uint16", photometric="MONOCHROME1") == [4095, 3995, 0]
    assert pixels("int16", RescaleSlope=2, RescaleIntercept=-1000) == [-1000, -800, 7190]
    assert pixels("float32", RescaleSlope=0.5, RescaleIntercept=0) == [0, 50, 2047.5]
    assert pixels("float32", RescaleSlope=100, RescaleIntercept=0) == [0, 10_000, 409_500]
    # Enhanced images have it for all frames, or for each.
    units = pydicom.Dataset()
    units.RescaleSlope, units.RescaleIntercept = 2, -1000
    groups = pydicom.Dataset()
    groups.PixelValueTransformationSequence = [units]
    for name in ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"):
        assert pixels("int16", **{name: [groups]}) == [-1000, -800, 7190]
    frames = np.stack([values, values + 1])
    many = as_dicom(frames, bits=12, NumberOfFrames=2)
    assert decoded(many, "x", 1, "uint16").ravel().tolist() == [0, 100, 4095]
    # Old files have no preamble: the extension tells.
    bare = as_dicom(values, bits=12)[132:]
    assert decoded(bare, "x.dcm", 1, "uint16").ravel().tolist() == [0, 100, 4095]


@pytest.mark.parametrize(("flip", "shape"), [(1, (48, 64, 3)), (6, (64, 48, 3)), (8, (64, 48, 3))])
def test_camera_raw_is_its_preview(flip: int, shape: tuple[int, int, int]) -> None:
    content = camera_raw(flip)
    header = read_header(io.BytesIO(content), "photo.DNG")
    assert (header.height, header.width, header.bands) == shape
    assert header.format == "RAW"
    assert decoded(content, "photo.DNG", 3).shape == shape


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.heic", "a.npy", "a.dcm", "bands.tif"])
def test_content_decides_not_the_extension(name: str) -> None:
    header = read_header(io.BytesIO(FILES[name]), name)
    for other in ("x.png", "x.npy", "x.dcm", "x.dng" if name != "bands.tif" else "x", "x"):
        assert read_header(io.BytesIO(FILES[name]), other) == header


@pytest.mark.parametrize(
    ("modules", "name", "reason"),
    [
        (["pydicom"], "a.dcm", "the image is DICOM; install dasl[dicom]"),
        (["pillow_heif"], "a.heic", "the image is HEIC; install dasl[heif]"),
        (["rawpy"], "a.dng", "the image is camera RAW; install dasl[raw]"),
        (
            ["tifffile"],
            "bands.tif",
            "the image is a TIFF beyond one page of 8-bit gray and color; install dasl[tiff]",
        ),
    ],
)
def test_missing_extra_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, modules: list[str], name: str, reason: str
) -> None:
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    for attempt in (
        lambda: read_header(io.BytesIO(FILES[name]), name),
        lambda: decoded(FILES[name], name, 3),
    ):
        with pytest.raises(ValueError) as raised:
            attempt()
        assert str(raised.value) == reason
        assert is_transient(reason)


def test_scaled_decode_of_jpeg() -> None:
    width, height = 640, 400
    smooth = np.asarray(Image.fromarray(ramp(3, "uint8", 255)).resize((width, height)))
    exif = Image.Exif()
    exif[0x0112] = 6
    content = by_pillow(Image.fromarray(smooth), "JPEG", quality=95, exif=exif)
    whole = decode(io.BytesIO(content), "x", 3)
    for at_least, shape in (
        ((640, 400), (640, 400)), ((321, 100), (640, 400)), ((320, 200), (320, 200)),
        ((100, 100), (160, 100)), ((1, 1), (80, 50)),
    ):  # fmt: skip
        scaled = decode(io.BytesIO(content), "x", 3, "uint8", at_least)
        header = read_header(io.BytesIO(content), "x")
        assert round(640 / shape[0]) == jpeg_scale(header, at_least)
        assert scaled.nbytes < decoding_memory(header, at_least) <= 26 * 640 * 400
        assert scaled.shape[:2] == shape
        expected = np.asarray(Image.fromarray(whole).resize(shape[::-1], Image.Resampling.BOX))
        assert np.abs(scaled.astype(int) - expected).mean() < 2


class CountingFile(io.BytesIO):
    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        content = super().read(size)
        self.count += len(content)
        return content


@pytest.mark.parametrize("name", ["JPEG", "PNG", "TIFF", "tif", "npy", "dcm"])
def test_header_reads_few_bytes(name: str) -> None:
    noise = np.random.default_rng(0).integers(0, 65535, (400, 400), dtype=np.uint16)
    match name:
        case "tif":
            content = by_tifffile(
                noise[..., None].repeat(5, 2), photometric="minisblack", planarconfig="contig"
            )
        case "npy":
            content = as_npy(noise)
        case "dcm":
            content = as_dicom(noise)
        case _:
            content = by_pillow(Image.fromarray(noise.astype(np.uint8)), name)
    file = CountingFile(content)
    read_header(file, "x")
    assert file.count < 20_000 < len(content) / 4


def test_arrays_are_read_in_several_threads() -> None:
    """While Python code runs in the middle of a parse, as a finalizer may: CPython 3.11 then fails in another one."""

    class Finalized:
        def __init__(self) -> None:
            self.cycle = self

        def __del__(self) -> None:
            for _ in range(50):
                pass

    content = as_npy(GRAY16)

    def read(_: int) -> tuple[int, int]:
        Finalized()
        header = read_header(io.BytesIO(content), "a.npy")
        return header.width, header.height

    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(5)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(read, range(2000))) == {(WIDTH, HEIGHT)}
    finally:
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)
