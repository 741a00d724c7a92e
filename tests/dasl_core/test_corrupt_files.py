"""Files that inflate beyond their size, and those that are no images."""

import io
import logging
import resource
import struct
import warnings
import zlib

import numpy as np
import pytest
import tifffile

from dasl_core.data.decode import Header, decode, read_header
from tests.dasl_core.image_files import as_npy, by_tifffile


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


@pytest.fixture
def quiet() -> None:
    logging.getLogger("pydicom").setLevel(logging.CRITICAL + 1)
    warnings.simplefilter("ignore")


def peak_memory() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


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
