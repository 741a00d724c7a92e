"""Values that would spoil the window of a data set: no data, other ranges, and images without contrast."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from dasl_core.data.ingest import Ingested, ingest
from tests.dasl_core.image_files import as_dicom, as_npy, by_pillow, by_tifffile
from tests.support.training_world import resolved


def textured(low: float, high: float, dtype: str, seed: int) -> np.ndarray:
    """An image with values from `low` to `high`."""
    values = np.random.default_rng(seed).uniform(low, high, (32, 32))
    return values.astype(dtype)


WRITERS: dict[str, Callable[[np.ndarray], bytes]] = {
    "tif": by_tifffile,
    "png": lambda values: by_pillow(Image.fromarray(values), "PNG"),
    "dcm": as_dicom,
    "npy": as_npy,
}


def ingested(
    folder: Path, low: float, high: float, dtype: str, edge: float, **tag: Any
) -> Ingested:
    """Ingest tiles, of which every third has an edge of another value."""
    folder.mkdir()
    for number in range(12):
        values = textured(low, high, dtype, number)
        if number % 3 == 0:
            values[:, :5] = edge
        (folder / f"{number:02}.tif").write_bytes(by_tifffile(values, **tag))
    return ingest(folder)


def gdal(value: float) -> dict[str, Any]:
    return {"extratags": [(42113, "s", 0, f"{value}", True)]}


@pytest.mark.parametrize(
    ("dtype", "edge", "tag"),
    [
        ("f4", np.nan, {}),
        ("f4", -3.4028234663852886e38, {}),
        ("f4", -3.4028234663852886e38, gdal(-3.4028234663852886e38)),
        ("f4", -9999, gdal(-9999)),
        ("i2", -32768, gdal(-32768)),
        ("u2", 65535, gdal(65535)),
        ("u2", 0, gdal(0)),
    ],
)
@pytest.mark.filterwarnings("error")
def test_no_data_does_not_change_the_window(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], dtype: str, edge: float, tag: Any
) -> None:
    low, high = (0.02, 0.4) if dtype == "f4" else (1000, 4000)
    result = ingested(tmp_path / "tiles", low, high, dtype, edge, **tag)
    window = resolved(result.index).backbone.window
    assert window == pytest.approx((low, high), rel=0.1)
    assert result.index.warnings == []
    assert result.contact_sheet is not None
    for thumbnail in result.contact_sheet.thumbnails:
        assert window[0] * 0.9 < thumbnail.min() < thumbnail.max() < window[1] * 1.1
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("low", "high", "dtype", "edge", "is_warned"),
    [
        (0.02, 0.4, "f4", -9999, True),
        (0, 4000, "i2", -32768, True),
        (100, 4000, "u2", 65535, True),
        (100, 30000, "u2", 65535, False),  # such as a saturated sensor
        (1000, 4000, "u2", 0, False),
        (7, 7, "u2", 65535, False),  # a mask
        (0, 20, "u1", 255, False),  # whose window is that of its type
    ],
)
def test_undeclared_no_data_is_warned_of(
    tmp_path: Path, low: float, high: float, dtype: str, edge: float, is_warned: bool
) -> None:
    warnings = ingested(tmp_path / "tiles", low, high, dtype, edge).index.warnings
    start = f"5.2% of the values of the sample are {edge:g}, and nearly all others from "
    assert any(warning.startswith(start) for warning in warnings) == is_warned


@pytest.mark.parametrize(
    ("most", "others", "are_skipped"),
    [
        (("tif", "u2", 111, 1846), ("png", "u1", 0, 255), True),
        (("png", "u1", 0, 255), ("tif", "u2", 111, 1846), True),
        (("tif", "u2", 111, 1846), ("png", "u2", 0, 65535), True),
        (("png", "u1", 0, 255), ("dcm", "u2", 0, 4095), True),
        (("tif", "f4", 0, 1), ("tif", "i2", 0, 10000), True),
        (("png", "u1", 0, 255), ("tif", "u2", 0, 65535), False),
        (("dcm", "i2", -1000, 1000), ("npy", "f4", -900, 1500), False),
        (("png", "u1", 0, 255), ("tif", "u1", 0, 9), False),
        (("tif", "u2", 111, 1846), ("png", "u1", 7, 7), False),  # a blank image tells no range
    ],
)
def test_images_that_need_another_window_are_skipped_with_the_remedy(
    tmp_path: Path, most: tuple[Any, ...], others: tuple[Any, ...], are_skipped: bool
) -> None:
    for number, (ending, dtype, low, high) in enumerate([most] * 12 + [others] * 8):
        content = WRITERS[ending](textured(low, high, dtype, number))
        (tmp_path / f"{number:02}.{ending}").write_bytes(content)
    result = ingest(tmp_path)
    assert len(result.index) == (12 if are_skipped else 20)
    assert result.contact_sheet is not None
    if not are_skipped:
        assert result.index.skipped == []
        return
    assert [skipped.path for skipped in result.index.skipped] == [
        f"{number}.{others[0]}" for number in range(12, 20)
    ]
    assert "no window shows both: convert them to one depth" in result.index.skipped[0].reason
    assert result.index.pixels.dtype == np.dtype(most[1]).name
    low, high = resolved(result.index).backbone.window
    for thumbnail in result.contact_sheet.thumbnails:
        assert thumbnail.max() - thumbnail.min() > 0.8 * (high - low)


def test_reason_names_the_most_frequent_kind(tmp_path: Path) -> None:
    """Images with 4 bands fit in the window of those with 3 bands, but are few."""
    for number in range(14):
        gray = textured(0, 255, "u1", number)
        bands = Image.fromarray(np.dstack([gray] * 3)).convert("RGB" if number < 12 else "RGBA")
        bands.save(tmp_path / f"{number:02}.png")
    (tmp_path / "deep.png").write_bytes(WRITERS["png"](textured(0, 255, "u2", 0)))
    (skipped,) = ingest(tmp_path).index.skipped
    assert skipped.path == "deep.png"
    assert "those of most images (3 x uint8 PNG) from " in skipped.reason


@pytest.mark.parametrize(
    ("highs", "flat"),
    [([0.4, 0.4, 2500, 0.3], "1, 2, 4"), ([0, 4000, 4000, 4000], "1"), ([40, 60, 900, 4000], None)],
)
def test_bands_without_contrast_are_warned_of(
    tmp_path: Path, highs: list[float], flat: str | None
) -> None:
    for number in range(6):
        bands = [textured(0, high, "f4", number) for high in highs]
        (tmp_path / f"{number}.npy").write_bytes(as_npy(np.stack(bands, axis=2)))
    start = f"Of the 4 bands, these have hardly any contrast .*: {flat}. "
    warnings = ingest(tmp_path).index.warnings
    assert [bool(re.match(start, warning)) for warning in warnings] == [True] * bool(flat)


@pytest.mark.parametrize(("dark", "is_warned"), [(1, False), (3, True)])
@pytest.mark.parametrize(("dtype", "high"), [("u1", 255), ("u2", 65535), ("f4", 1)])
def test_images_of_nearly_one_gray_level_are_warned_of(
    tmp_path: Path, dtype: str, high: float, dark: int, is_warned: bool
) -> None:
    for number in range(10):
        share = 0.01 if number < dark else 1
        tifffile.imwrite(tmp_path / f"{number}.tif", textured(0, share * high, dtype, number))
    warnings = ingest(tmp_path).index.warnings
    start = "3 of the 10 images of the sample, such as 0.tif, are nearly of one gray level"
    assert [warning.startswith(start) for warning in warnings] == [True] * is_warned
