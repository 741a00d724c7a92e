"""The contact sheet that an ingest draws."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dasl_core.data.contact_sheet import MOST, choose, thumbnail
from dasl_core.data.ingest import ingest


def shown(content: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content)))


def test_each_class_has_as_many_images(tmp_path: Path) -> None:
    for name, count in (("many", 200), ("few", 3)):
        (tmp_path / name).mkdir()
        for number in range(count):
            Image.new("L", (9, 9), number).save(tmp_path / name / f"{number:03}.png")
    sheet = ingest(tmp_path).contact_sheet
    assert sheet is not None
    paths = sheet.report()["paths"]
    assert isinstance(paths, list)
    assert [path for path in paths if path.startswith("few")] == paths[:3]
    assert paths[3:6] == ["many/000.png", "many/006.png", "many/012.png"]
    assert len(paths) == 3 + MOST // 2
    assert shown(sheet.jpeg()).shape == (5 * 132 + 4, 8 * 132 + 4, 3)


@pytest.mark.parametrize(("classes", "expected"), [(1, MOST), (3, 3 * 21), (1000, MOST)])
def test_number_of_images_is_bounded(classes: int, expected: int) -> None:
    labels = np.arange(5000, dtype=np.int32) % classes
    chosen = choose(range(5000), labels)
    assert len({*chosen}) == len(chosen) == expected
    assert (np.diff(labels[chosen]) >= 0).all()


def test_deep_images_are_shown_through_their_window(tmp_path: Path) -> None:
    """Raw values that fill a small part of their type are neither black nor white."""
    values = np.linspace(1000, 1400, 64 * 64).reshape(64, 64).astype(np.uint16)
    Image.fromarray(values).save(tmp_path / "a.png")
    sheet = ingest(tmp_path).contact_sheet
    assert sheet is not None
    image = shown(sheet.jpeg())[4 + 32 : 4 + 96, 4 + 32 : 4 + 96, 0]
    assert image[0, 0] < 10
    assert image[-1, -1] > 245
    assert abs(int(image[32, 32]) - 128) < 12


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((1, 1, 1), (1, 1, 1)),
        ((4000, 10, 3), (128, 1, 3)),
        ((300, 600, 5), (64, 128, 3)),
        ((100, 128, 2), (100, 128, 1)),
    ],
)
def test_thumbnails_are_small(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    image = np.full(shape, 7, np.int16)
    small = thumbnail(image)
    assert small.shape == expected
    assert (small == 7).all()


def test_ingest_whose_shown_images_are_all_damaged_has_no_sheet(tmp_path: Path) -> None:
    for number in range(MOST + 1):  # of each class, the first image is shown
        (tmp_path / f"{number:02}").mkdir()
        Image.new("L", (9, 9), number).save(tmp_path / f"{number:02}" / "b.png")
        whole = (tmp_path / f"{number:02}" / "b.png").read_bytes()
        (tmp_path / f"{number:02}" / "a.png").write_bytes(whole[: whole.index(b"IDAT") + 4])
    result = ingest(tmp_path)
    assert len(result.index) == MOST + 1
    assert result.contact_sheet is None
