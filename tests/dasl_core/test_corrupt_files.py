"""Damaged files of every format: each is decoded or refused with a reason, in bounded memory."""

import io
import logging
import random
import re
import resource
import struct
import warnings
import zlib

import numpy as np
import pytest
import tifffile

from dasl_core.data.decode import Header, decode, read_header
from tests.dasl_core.damaged_files import BOMBS, FILES, damaged
from tests.dasl_core.image_files import as_npy, by_tifffile

VARIANTS = 1000
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


@pytest.fixture
def quiet() -> None:
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
            assert not re.search(
                r"operand|NoneType|literal|broadcast|\bb'|object (of|has)", result
            ), result
    assert VARIANTS / 4 < refused < VARIANTS
    assert peak_memory() - before < MAX_GROWTH


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
