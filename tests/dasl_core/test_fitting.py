"""Images of one data set have the same bands, and values with a common scale."""

from pathlib import Path

import numpy as np
import pytest

from dasl_core.data.decode import Header, PixelType
from dasl_core.data.ingest import ingest_folder
from dasl_core.data.pixel_facts import misfits


def image(bands: int, dtype: PixelType) -> Header:
    return Header(8, 8, bands, dtype, "NPY", is_color=bands in (1, 3))


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        ([], []),
        ([image(3, "uint8"), image(1, "uint16"), image(3, "uint16")], []),
        ([image(1, "int16"), image(1, "float32")], []),
        ([image(3, "uint8"), image(1, "int16"), image(3, "uint8")], [1]),
        ([image(1, "int16"), image(1, "float32"), image(3, "uint8")], [2]),
        ([image(1, "int16"), image(3, "uint8")], [0]),  # as many: unsigned
        ([image(3, "uint8"), image(3, "uint8"), image(5, "float32")], [2]),
        ([image(3, "uint8"), image(5, "uint8")], [0]),  # as many: more bands
        # Those of other bands have no say about the values.
        ([*[image(3, "int16")] * 2, image(3, "uint8"), *[image(5, "uint8")] * 2], [2, 3, 4]),
    ],
)
def test_most_images_decide(images: list[Header], expected: list[int]) -> None:
    assert sorted(misfits(images)) == expected


def test_an_image_that_is_skipped_does_not_change_the_others(tmp_path: Path) -> None:
    gray = np.arange(64, dtype=np.uint8).reshape(8, 8)
    np.save(tmp_path / "a.npy", gray)
    np.save(tmp_path / "b.npy", gray)
    alone = ingest_folder(tmp_path).pixels
    np.save(tmp_path / "five.npy", np.ones((8, 8, 5), np.float32))
    np.save(tmp_path / "unit.npy", gray.astype(np.int16) - 1024)
    index = ingest_folder(tmp_path)
    assert index.pixels == alone
    assert index.warnings == []
    assert [(each.path, each.reason) for each in index.skipped] == [
        (
            "five.npy",
            "the image has 5 bands, and most images have 3; register images of 5 bands as a data set of their own",
        ),
        (
            "unit.npy",
            "the image has int16 values, which are in units (int16, float32), and those of most images are shares of a "
            "full range (uint8, uint16); they have no common scale: register these images as a data set of their own",
        ),
    ]
