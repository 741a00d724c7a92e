"""Data sets of more than 8 bits or of other bands than color: their values reach the network."""

from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from dasl_core.data.canvases import Canvases
from dasl_core.data.ingest import ingest_folder
from dasl_core.data.views import central_view, render
from dasl_core.spec.normalization import Normalization
from tests.support.training_world import recorded, resolved

SIDE = 64


def ramp(levels: int, dtype: type, bands: int = 1) -> np.ndarray:
    """Return an image of all levels, each band turned by another number of pixels."""
    values = np.arange(SIDE * SIDE).astype(np.int64) % levels
    stack = [np.roll(values, 7 * band).reshape(SIDE, SIDE) for band in range(bands)]
    return np.stack(stack, axis=2).astype(dtype)


def write_16_bit_png(folder: Path) -> np.ndarray:
    values = 16 * ramp(4096, np.uint16)
    Image.fromarray(values[..., 0]).save(folder / "a.png")
    return values


def write_12_bit_tiff(folder: Path) -> np.ndarray:
    values = ramp(4096, np.uint16)
    tifffile.imwrite(folder / "a.tif", values[..., 0])
    return values


def write_five_bands(folder: Path) -> np.ndarray:
    values = ramp(4096, np.float32, bands=5) / np.float32(1000) - 1
    tifffile.imwrite(folder / "a.tif", values, planarconfig="contig", photometric="minisblack")
    return values


def write_rgba(folder: Path) -> np.ndarray:
    values = ramp(256, np.uint8, bands=4)
    Image.fromarray(values, "RGBA").save(folder / "a.png")
    return values


@pytest.mark.parametrize(
    ("write", "dtype"),
    [
        (write_16_bit_png, "uint16"),
        (write_12_bit_tiff, "uint16"),
        (write_five_bands, "float32"),
        (write_rgba, "uint8"),
    ],
)
def test_distinct_values_stay_distinct_up_to_the_network(
    tmp_path: Path, write: object, dtype: str
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    assert callable(write)
    values = write(images)
    index = ingest_folder(images)
    assert index.pixels.dtype == dtype
    bands = values.shape[2]
    canvases = Canvases(index, SIDE, bands, cache=tmp_path / "cache", threads=1)
    pixels, valid_hw = canvases.read([0])
    canvases.close()
    assert (pixels[0].permute(1, 2, 0).numpy() == values).all()
    window = float(values.min()), float(values.max())
    normalization = Normalization(mean=(0.0,) * bands, std=(1.0,) * bands, window=window)
    view = central_view(valid_hw)
    views = render(pixels, valid_hw, view, SIDE, torch.float32, normalization)
    for band in range(bands):
        assert len(views[0, band].unique()) == len(np.unique(values[..., band]))
    assert (views.min().item(), views.max().item()) == (0.0, 1.0)


@pytest.mark.usefixtures("without_plots")
def test_five_bands_of_floats_are_trained_on_and_exported(tmp_path: Path) -> None:
    images = tmp_path / "images"
    random = np.random.default_rng(0)
    for label in range(2):
        (images / f"{label}").mkdir(parents=True)
        for number in range(12):
            values = random.normal(label, 1, (20, 24, 5)).astype(np.float32)
            np.save(images / f"{label}" / f"{number:02}.npy", values)
    index = ingest_folder(images)
    spec = resolved(index, train={"epochs": 1})
    assert spec.backbone.in_channels == 5
    low, high = spec.backbone.window
    assert low < -1 < 2 < high
    recorded(spec, index, tmp_path / "cache", tmp_path / "run")
