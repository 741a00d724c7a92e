"""What reading images takes of time and memory, whatever they or their archive claim."""

import io
import re
import threading
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin
from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGExtended12Bit,
    RLELossless,
)

from dasl_core.data.decode import Header, decode, dicom, header_bounds, jpeg_scans, read_header
from dasl_core.data.decode.jpeg_scans import check_scans
from dasl_core.data.ingest import ingest_folder
from dasl_core.data.opening import open_image
from dasl_core.data.sources import find_source, inflated
from dasl_core.data.sources.inflated import Inflated
from tests.dasl_core.damaged_files import tiff_claiming
from tests.dasl_core.image_files import as_dicom, by_pillow, camera_raw

# More than a PNG may have behind its pixels, with what these need.
_ZEROS = 20 << 20
_NAMES = {"a.jpg": "JPEG", "b.png": "PNG", "c.tif": "TIFF", "d.gif": "GIF", "e.jp2": "JPEG2000"}


def picture(kind: str, **options: Any) -> bytes:
    return by_pillow(Image.new("RGB", (64, 48), "red"), kind, **options)


def headers_of(location: Path) -> dict[str, Header]:
    source = find_source(str(location)).open()
    found = {}
    for entry in source.list_entries(lambda _: None).entries:
        with open_image(source, entry, header=True) as file:
            found[entry.key] = read_header(file, entry.key)
    return found


class Counted:
    """A decompressor of zlib that counts what it inflates."""

    inflated = 0

    def __init__(self, bits: int) -> None:
        self._decompressor = zlib.decompressobj(bits)

    def decompress(self, content: bytes, most: int) -> bytes:
        block = self._decompressor.decompress(content, most)
        Counted.inflated += len(block)
        return block

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decompressor, name)


def test_header_of_a_zip_bomb_inflates_its_first_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, kind in _NAMES.items():
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w", zipfile.ZIP_DEFLATED, True, 1) as file:
            file.writestr(name, picture(kind) + bytes(_ZEROS))
    monkeypatch.setattr(Counted, "inflated", 0)
    counting = SimpleNamespace(decompressobj=Counted, error=zlib.error, MAX_WBITS=zlib.MAX_WBITS)
    monkeypatch.setattr(inflated, "zlib", counting)
    for header in headers_of(tmp_path).values():
        assert header[:3] == (64, 48, 3)
    assert 0 < Counted.inflated <= 2 * len(_NAMES) * inflated._BLOCK


_CONTENT = np.random.default_rng(0).integers(0, 4, 300_000, np.uint8).tobytes()
_DEFLATED = zlib.compress(_CONTENT, wbits=-zlib.MAX_WBITS)
_STEPS = st.lists(
    st.tuples(st.sampled_from([0, 1, 2]), st.integers(-310_000, 310_000), st.integers(-1, 90_000)),
    max_size=8,
)


@given(_STEPS, st.booleans())
def test_inflated_file_reads_as_its_content(
    steps: list[tuple[int, int, int]], knows_size: bool
) -> None:
    size = len(_CONTENT) if knows_size else None
    file = io.BufferedReader(Inflated(io.BytesIO(_DEFLATED), "a", size, 1 << 30))
    plain = io.BytesIO(_CONTENT)
    for whence, offset, length in steps:
        position = max(0, offset + (0, plain.tell(), len(_CONTENT))[whence])
        assert file.seek(position - (0, file.tell(), len(_CONTENT))[whence], whence) == position
        plain.seek(position)
        assert file.read(length) == plain.read(length)


def test_damaged_or_endless_content_is_refused() -> None:
    for content, size, reason in (
        (_DEFLATED[:-9], len(_CONTENT), "cut off in its archive"),
        (b"\xff" * 999, len(_CONTENT), "damaged in its archive"),
        (_DEFLATED, None, "far too large"),
    ):
        with pytest.raises(ValueError, match=reason):
            io.BufferedReader(Inflated(io.BytesIO(content), "a", size, 299_999)).read()


def test_header_that_claims_to_be_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    about = PngImagePlugin.PngInfo()
    about.add_text("Comment", "x" * 5000)
    file = io.BytesIO(picture("PNG", pnginfo=about))
    assert read_header(file, "a.png").width == 64
    monkeypatch.setattr(header_bounds, "MOST_OF_HEADER", 1000)
    with pytest.raises(ValueError, match="its header has more than 1000 bytes"):
        read_header(file, "a.png")
    monkeypatch.setattr(header_bounds, "MOST_OF_FILE", 10)
    webp = io.BytesIO(picture("WEBP"))
    with pytest.raises(ValueError, match="the image is too large: a file of"):
        read_header(webp, "a.webp")


def test_image_of_a_zip_is_no_larger_than_its_pixels_need(tmp_path: Path) -> None:
    """A file of 1 MB with 8 images of 900 MiB took 1.3 GiB in each thread."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.bmp", picture("BMP") + bytes(33 << 20))
        archive.writestr("ok.bmp", picture("BMP"))
    index = ingest_folder(path)
    assert index.paths == ["ok.bmp"]
    expected = r"it inflates to 33 MiB, but an image of \d+ x \d+ pixels has 1 MiB"
    assert re.fullmatch(expected, index.skipped[0].reason)
    # The header of a member may say less than there is.
    whole = bytearray(path.read_bytes())
    whole[22:26] = (100).to_bytes(4, "little")
    path.write_bytes(whole)
    source = find_source(str(path)).open()
    [bomb, _] = source.list_entries(lambda found: None).entries
    with pytest.raises(ValueError, match="cut off in this image, or the image is far too large"):
        source.open(bomb)


def test_files_that_are_read_whole_wait_for_room() -> None:
    room = header_bounds._Room(100)
    entered = threading.Event()

    def second() -> None:
        with room.reserved(1000):  # more than there is: all of it
            entered.set()

    with room.reserved(60), room.reserved(40):
        thread = threading.Thread(target=second)
        thread.start()
        assert not entered.wait(0.05)
    thread.join(10)
    assert entered.is_set()


def test_images_of_an_array_are_bounded(tmp_path: Path) -> None:
    with (tmp_path / "a.npy").open("wb") as file:
        about = {"descr": "|u1", "fortran_order": False, "shape": (1, 1 << 20, 1 << 20)}
        np.lib.format.write_array_header_1_0(file, about)
        file.truncate(1 << 41)
    source = find_source(str(tmp_path / "a.npy")).open()
    with pytest.raises(ValueError, match="an image may have"):
        source.list_entries(lambda _: None)


@contextmanager
def memory_below(most: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


_DICOM = as_dicom(np.ones((8, 8), np.uint16))
_PREAMBLE = 132  # with the prefix
_SYNTAX_TAG = b"\x02\0\x10\0"


def _deflated() -> bytes:
    return as_dicom(np.zeros((4096, 4096), np.uint16), syntax=DeflatedExplicitVRLittleEndian)


def _with_syntax_before(content: bytes) -> bytes:
    """The file with another transfer syntax before its own, which pydicom takes."""
    at = content.index(_SYNTAX_TAG)
    return content[:at] + _SYNTAX_TAG + b"UI\x12\x001.2.840.10008.1.2\0" + content[at:]


def _with_implicit_meta(content: bytes) -> bytes:
    """The file with its first group without types of values, as some writers store it."""
    at = content.index(_SYNTAX_TAG)
    length = int.from_bytes(content[at + 6 : at + 8], "little")
    value = content[at + 8 : at + 8 + length]
    start = content[:_PREAMBLE] if content[128:132] == b"DICM" else b""
    return start + _SYNTAX_TAG + length.to_bytes(4, "little") + value + content[at + 8 + length :]


@pytest.mark.parametrize("change", [bytes, _with_syntax_before, _with_implicit_meta])
@pytest.mark.parametrize("begin", [0, _PREAMBLE])
def test_deflated_dicom_is_refused_without_inflating_it(
    begin: int, change: Callable[[bytes], bytes]
) -> None:
    content = change(_deflated()[begin:])
    assert len(content) < 100_000
    read_header(io.BytesIO(_DICOM[begin:]), "a.dcm")  # imports pydicom
    for read in (read_header, lambda file, name: decode(file, name, 1, "uint16")):
        with memory_below(1 << 20), pytest.raises(ValueError, match="a deflated DICOM file"):
            read(io.BytesIO(content), "a.dcm")


@pytest.mark.parametrize("group", [b"\x02\0\x02\x01", b"\x09\0\x01\x10"])
def test_dicom_with_much_before_its_pixels_is_refused_before_it_is_read(
    group: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training reads headers again: what they claim may not fill the memory of each thread."""
    monkeypatch.setattr(header_bounds, "MOST_OF_HEADER", 1 << 20)
    element = group + b"OB\0\0" + (50_000_000).to_bytes(4, "little") + bytes(50_000_000)
    at = _DICOM.index(b"\x10\0\x10\0PN") if group[:1] == b"\x09" else _DICOM.index(b"\x08\0\x16\0")
    file = io.BytesIO(_DICOM[:at] + element + _DICOM[at:])
    decode(io.BytesIO(_DICOM), "a.dcm", 1, "uint16")  # imports pydicom
    with memory_below(5_000_000), pytest.raises(ValueError, match="its header has more than"):
        decode(file, "a.dcm", 1, "uint16")


@pytest.mark.parametrize("claimed", [b"1000", b"9999"])
def test_dicom_far_larger_than_its_pixels_is_refused_before_it_is_read(
    claimed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training decodes images that the ingest did not sample: a sparse file took 4 GB of each thread."""
    monkeypatch.setattr(dicom, "_MOST_BESIDES", 1 << 20)
    monkeypatch.setattr(dicom, "_MOST_PIXELS", 10 << 20)
    whole = as_dicom(np.ones((1000, 64, 64), np.uint16), NumberOfFrames=1000)
    frames = b"IS\x04\x00"
    assert whole.count(frames + b"1000") == 1
    file = io.BytesIO(whole.replace(frames + b"1000", frames + claimed) + bytes(50_000_000))
    decode(io.BytesIO(whole), "a.dcm", 1, "uint16")  # imports pydicom
    with memory_below(5_000_000), pytest.raises(ValueError, match="DICOM of 58,"):
        decode(file, "a.dcm", 1, "uint16")


def test_tile_that_inflates_beyond_its_size_takes_no_more_memory() -> None:
    bomb = zlib.compress(bytes(50_000_000), 9)
    content = tiff_claiming(TileByteCounts=len(bomb), TileOffsets=len(tiff_claiming())) + bomb
    read_header(io.BytesIO(content), "a.tif")  # imports tifffile
    with memory_below(5_000_000), pytest.raises(ValueError, match="the image is damaged"):
        decode(io.BytesIO(content), "a.tif", 5, "float32")


def test_dicom_frame_that_expands_beyond_its_pixels_takes_no_more_memory() -> None:
    """A file of 6 MB took 800 MB."""
    segment = b"\x81\0" * 100_000
    header = (1).to_bytes(4, "little") + (64).to_bytes(4, "little") + bytes(56)
    values = np.ones((8, 8), np.uint8)
    content = as_dicom(values, syntax=RLELossless, encoded=header + segment)
    read_header(io.BytesIO(content), "a.dcm")  # imports pydicom
    with memory_below(5_000_000), pytest.raises(ValueError, match="its frame has 200,064 bytes"):
        decode(io.BytesIO(content), "a.dcm", 1)


def progressive(scans: int, size: tuple[int, int] = (64, 48), mode: str = "L") -> bytes:
    """A progressive JPEG whose last scan is repeated, so that there are this many."""
    image = Image.linear_gradient("L").resize(size).convert(mode)
    whole = by_pillow(image, "JPEG", progressive=True)
    last = whole.rindex(SCAN)
    return whole[:-2] + whole[last:-2] * (scans - whole.count(SCAN)) + whole[-2:]


SCAN = b"\xff\xda"
# What phones write behind the image, and programs before it.
_VIDEO = SCAN * 1000
_PREVIEW = b"\xff\xe1\x08\x02" + SCAN * 1024


def jpeg_in_dicom(content: bytes, syntax: UID) -> bytes:
    return as_dicom(np.ones((48, 64), np.uint8), syntax=syntax, encoded=content)


def jpegs_with(scans: int) -> dict[str, bytes]:
    """Files of all formats that have a JPEG in them that libjpeg decodes."""
    jpeg, color = progressive(scans), progressive(scans, mode="RGB")
    return {
        "a.jpg": jpeg,
        "b.jpg": color,
        "a.dng": camera_raw(preview=color),
        "a.dcm": jpeg_in_dicom(jpeg, JPEGBaseline8Bit),
        "b.dcm": jpeg_in_dicom(jpeg, JPEGExtended12Bit),
        "c.dcm": jpeg_in_dicom(jpeg, JPEG2000Lossless),
        "d.dcm": jpeg_in_dicom(jpeg[:2] + b"\0" + jpeg[2:], JPEGExtended12Bit),
    }


@pytest.mark.parametrize("name", jpegs_with(100))
def test_jpeg_of_many_scans_is_refused_before_it_is_decoded(name: str) -> None:
    """A file of 69 kB with 200 scans took 12 s."""
    assert decode(io.BytesIO(jpegs_with(100)[name]), name, 1).shape[2] == 1
    refused = jpegs_with(101)[name]
    read_header(io.BytesIO(refused), name)
    with pytest.raises(ValueError, match=r"^the image is a JPEG of more than 100 scans"):
        decode(io.BytesIO(refused), name, 1)


def test_jpeg_of_many_scans_is_skipped_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "bomb.jpg").write_bytes(progressive(200))
    (tmp_path / "ok.jpg").write_bytes(progressive(10))
    index = ingest_folder(tmp_path)
    assert index.paths == ["ok.jpg"]
    assert index.skipped[0].reason.startswith("the image is a JPEG of more than 100 scans")


@pytest.mark.parametrize("is_progressive", [False, True])
@pytest.mark.parametrize("block", [1, 7, 1 << 18])
def test_only_scans_of_the_image_count(
    is_progressive: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jpeg_scans, "_BLOCK", block)
    whole = progressive(60) if is_progressive else picture("JPEG")
    decode(io.BytesIO(whole[:2] + _PREVIEW + whole[2:] + _VIDEO), "a.jpg", 3)
    if is_progressive:
        many = progressive(101)
        with pytest.raises(ValueError, match="more than 100 scans"):
            # libjpeg passes over restarts and filled markers.
            decode(io.BytesIO(many.replace(SCAN, b"\xff\xd0\xff\xff\xda")), "a.jpg", 3)


def test_bands_in_scans_of_their_own_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scans that are not progressive may be repeated, too, if each has some of the bands."""
    monkeypatch.setattr(jpeg_scans, "MOST_SCANS", 2)
    frame = b"\xff\xc0\0\x11\x08\0\x08\0\x08\x03\x01\x11\0\x02\x11\0\x03\x11\0"
    scans = b"".join(SCAN + b"\0\x08\x01" + bytes([band]) + b"\0\0\x3f\0ab" for band in (1, 2, 3))
    with pytest.raises(ValueError, match="more than 2 scans"):
        check_scans(io.BytesIO(b"\xff\xd8" + frame + scans))
    check_scans(io.BytesIO(b"\xff\xd8" + frame + scans[: len(scans) // 3 * 2]))


def test_jpeg_without_an_end_is_read_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jpeg_scans, "MOST_OF_FILE", 1 << 20)
    with pytest.raises(ValueError, match="a JPEG without an end in 1 MiB"):
        decode(io.BytesIO(progressive(10)[:-2] + bytes(2 << 20)), "a.jpg", 1)
