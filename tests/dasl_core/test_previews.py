"""Previews show what training draws."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import tifffile
import torch
import yaml
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner

from dasl_core import previews
from dasl_core.data.index import DatasetIndex
from dasl_core.data.loader import Batch
from dasl_core.previews.pictures import picture, sketch
from dasl_core.spec.methods.config import ResolvedMultiCropConfig
from dasl_core.train.views import ViewMaker
from service.cli.app import app
from tests.support.training_world import image_folder, ingest, resolved, run, tiny_spec

Drawn = dict[int, tuple[Batch, list[Tensor]]]


def recorded(drawn: Drawn) -> Any:
    """Let every `ViewMaker` record what it draws in the first epoch, by step."""
    make = ViewMaker.make

    def recording(maker: ViewMaker, batch: Batch, step: int) -> list[Tensor]:
        views = make(maker, batch, step)
        drawn.setdefault(step, (batch, [view.clone() for view in views]))
        return views

    return patch.object(ViewMaker, "make", recording)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"backbone": {"name": "test_resnet", "image_size": 64}},
        {"method": {"name": "dino"}, "evaluate": {"holdout": None}},
        {"method": {"name": "triplet"}, "train": {"batch_size": 9, "samples_per_class": 3}},
    ],
    ids=["simclr", "blurred", "local crops", "balanced classes"],
)
@pytest.mark.usefixtures("without_plots")
def test_views_are_those_of_the_training(
    pictures: DatasetIndex, cache: Path, changes: dict[str, Any]
) -> None:
    spec = resolved(pictures, **changes)
    trained: Drawn = {}
    once = spec.model_copy(update={"train": spec.train.model_copy(update={"epochs": 1})})
    with recorded(trained):
        run(once, pictures, cache, None)
    drawn: Drawn = {}
    images = spec.train.batch_size + 5
    with recorded(drawn):
        preview = previews.draw(spec, pictures, images)
    assert list(drawn) == [0, 1]
    assert [len(batch.canvases) for batch, _ in drawn.values()] == [spec.train.batch_size, 5]
    for step, (batch, views) in drawn.items():
        of_training, expected = trained[step]
        shown = len(batch.canvases)
        assert torch.equal(batch.indices, of_training.indices)
        assert torch.equal(batch.canvases, of_training.canvases[:shown])
        assert len(views) == len(expected) == spec.method.num_views
        for view, other in zip(views, expected, strict=True):
            assert torch.equal(view, other[:shown])
    positions = torch.cat([batch.indices for batch, _ in trained.values()])
    assert [row.position for row in preview.rows] == positions[:images].tolist()


def test_pictures_are_the_views_before_normalization(pictures: DatasetIndex) -> None:
    plain = {"crop_scale": (1, 1), "flip": 0, "jitter": 0, "grayscale": 0}
    spec = resolved(pictures, augment=plain, backbone={"image_size": 32})
    row = previews.draw(spec, pictures, 1).rows[0]
    original = pictures.decode(row.position, 3)
    assert (row.original.permute(1, 2, 0).numpy() == original).all()
    # 20 x 24 pixels are stretched to 32 x 32.
    stretched = Image.fromarray(original).resize((32, 32), Image.Resampling.BILINEAR)
    difference = row.views[0].permute(1, 2, 0).numpy().astype(int) - np.asarray(stretched)
    assert abs(difference).max() <= 1


def test_nothing_is_held_out_with_other_images_to_evaluate_on(pictures: DatasetIndex) -> None:
    spec = resolved(pictures, train={"batch_size": 27}, evaluate={"dataset": "others"})
    rows = previews.draw(spec, pictures, 27).rows
    assert sorted(row.position for row in rows) == list(range(27))


def test_files_and_settings(pictures: DatasetIndex, tmp_path: Path) -> None:
    spec = resolved(pictures, method={"name": "dino"})
    assert isinstance(spec.method, ResolvedMultiCropConfig)
    previews.write(previews.draw(spec, pictures, 3), tmp_path)
    files = previews.write(previews.draw(spec, pictures, 2), tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {file.name for file in files}
    parts = ("original", "view0", "view1", "view2", "view3")
    singles = {f"{number}-{part}.png" for number in range(2) for part in parts}
    assert {file.name for file in files} == {"sheet.png", "preview.json", *singles}
    settings = json.loads((tmp_path / "preview.json").read_text())
    assert settings["seed"] == 3
    assert [view["local"] for view in settings["views"]] == [False, False, True, True]
    assert settings["views"][2]["augment"]["crop_scale"] == list(spec.method.local_scale)
    assert [image["step"] for image in settings["images"]] == [0, 0]
    assert settings["images"][0]["key"].startswith(settings["images"][0]["class"])
    assert settings["spec"]["augment"] == spec.augment.model_dump(mode="json")
    with Image.open(tmp_path / "0-view2.png") as local:
        assert local.size == (spec.method.local_size,) * 2


def test_image_that_is_gone_is_named(tmp_path: Path) -> None:
    index = ingest(image_folder(tmp_path / "images"))
    spec = resolved(index, train={"batch_size": 8})
    position = previews.draw(spec, index, 1).rows[0].position
    (tmp_path / "images" / index.paths[position]).unlink()
    preview = previews.draw(spec, index, 2)
    assert preview.rows[0].unreadable is not None
    assert preview.rows[1].unreadable is None
    previews.write(preview, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "preview.json").read_text())["images"][0]["unreadable"]


def test_deep_pixels_are_shown_through_the_window(tmp_path: Path) -> None:
    for number in range(12):
        levels = np.linspace(1000, 3000, 24 * 20).reshape(24, 20) + number
        (tmp_path / "images").mkdir(exist_ok=True)
        tifffile.imwrite(tmp_path / "images" / f"{number:02}.tif", levels.astype(np.uint16))
    index = ingest(tmp_path / "images")
    spec = resolved(
        index, backbone={"in_channels": 1, "window": (1000, 3000)}, evaluate={"holdout": None}
    )
    row = previews.draw(spec, index, 1).rows[0]
    assert row.original.shape == (1, 24, 20)
    assert row.original[0, 0, 0] <= 1
    assert row.original[0, 12, 0] == pytest.approx(128, abs=3)
    assert picture(row.original).mode == "L"


def test_bands_become_a_grid_and_a_sketch() -> None:
    bands = torch.stack([torch.full((4, 6), 10 * number) for number in range(5)]).to(torch.uint8)
    grid = np.asarray(picture(bands))
    assert grid.shape == (8, 18)
    assert grid[::4, ::6].tolist() == [[0, 10, 20], [30, 40, 0]]
    assert np.asarray(sketch(bands))[0, 0].tolist() == [0, 10, 20]
    assert np.asarray(sketch(bands[3:])).tolist() == [[30] * 6] * 4
    assert np.asarray(picture(bands[:3])).shape == (4, 6, 3)


def test_too_many_pixels_are_refused_with_a_number_that_works(
    pictures: DatasetIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dasl_core.previews.drawing._MEMORY", 100_000)
    spec = resolved(pictures)
    with pytest.raises(ValueError, match=r"images: 8 with 2 views .* Choose at most 7\."):
        previews.draw(spec, pictures, 64)
    assert len(previews.draw(spec, pictures, 7).rows) == 7
    with pytest.raises(ValueError, match="images: must be from 1 to 64"):
        previews.draw(spec, pictures, 65)


def preview_command(folder: Path, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["preview", str(folder / "spec.yaml"), *arguments])
    return result.exit_code, result.output


def test_command_writes_or_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DASL_CACHE_DIR", str(tmp_path / "cache"))
    images = image_folder(tmp_path / "images")
    spec = tiny_spec()
    del spec["dataset"]
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    data, output = ("--data", str(images)), ("-o", str(tmp_path / "out"))

    code, printed = preview_command(tmp_path, *data, *output, "--images", "3")
    assert (code, f"{tmp_path / 'out' / 'sheet.png'}: 3 images" in printed) == (0, True)
    for arguments, message in [
        (output, "dataset: missing. Set it to the folder of images, or pass --data DIR."),
        ((*data, "-o", str(images / "out")), "is inside the folder of images"),
        ((*data, *output, "--set", "augment.flip=2"), "augment.flip: is out of range"),
        ((*data, *output, "--set", "method.local_crops=2"), "method.local_crops"),
        ((*data, *output, "--set", "train.batch_size=500"), "train.batch_size"),
    ]:
        code, printed = preview_command(tmp_path, *arguments)
        assert code == 1, printed
        assert message in printed
