"""Previews show what training draws."""

import json
import weakref
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
from torch.utils._python_dispatch import TorchDispatchMode
from typer.testing import CliRunner

from dasl_core import previews
from dasl_core.data.index import DatasetIndex
from dasl_core.data.loader import Batch
from dasl_core.data.views.color import LUMA, RGB_TO_YIQ
from dasl_core.previews import Drawing
from dasl_core.previews.drawing import Row
from dasl_core.previews.sheet import _font, picture, sketch
from dasl_core.spec.methods.config import MultiCropConfig
from dasl_core.train.views import ViewMaker
from service.cli.app import app
from tests.support.training_world import band_images, image_folder, ingest, resolved, run, tiny_spec

Drawn = dict[int, tuple[Batch, list[Tensor]]]


def of_training(drawn: Drawn) -> Any:
    """Let every `ViewMaker` record the batches of the first epoch and their views, by step."""
    make = ViewMaker.make

    def recording(maker: ViewMaker, batch: Batch, step: int) -> list[Tensor]:
        views = make(maker, batch, step)
        drawn.setdefault(step, (batch, [view.clone() for view in views]))
        return views

    return patch.object(ViewMaker, "make", recording)


def of_preview(rendered: list[tuple[Tensor, Tensor]]) -> Any:
    """Let every `ViewMaker` record the canvases and views of each call that renders a view."""
    render = ViewMaker.render

    def recording(maker: ViewMaker, canvases: Tensor, *how: Any) -> list[Tensor]:
        [view] = render(maker, canvases, *how)
        rendered.append((canvases, view.clone()))
        return [view]

    return patch.object(ViewMaker, "render", recording)


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
    with of_training(trained):
        run(once, pictures, cache, None)
    for at_a_time in (1, 4):
        check_drawn(Drawing(spec, pictures, spec.train.batch_size + 5, threads=at_a_time), trained)


def check_drawn(drawing: Drawing, trained: Drawn) -> None:
    """Check that the images of a preview, and their views before they are rounded, are those of a training."""
    rendered: list[tuple[Tensor, Tensor]] = []
    with of_preview(rendered):
        rows = list(drawing.rows())
    size, count = drawing.spec.train.batch_size, len(drawing.views)
    assert [(row.step, row.place) for row in rows] == [divmod(n, size) for n in range(size + 5)]
    for number in range(count):
        canvases = torch.cat([pixels for pixels, _ in rendered[number::count]])
        views = torch.cat([view for _, view in rendered[number::count]])
        for row, canvas, view in zip(rows, canvases, views, strict=True):
            batch, expected = trained[row.step]
            assert row.position == batch.indices[row.place]
            assert torch.equal(canvas, batch.canvases[row.place])
            assert torch.equal(view, expected[number][row.place])


PLAIN = {"crop_scale": (1, 1), "flip": 0, "jitter": 0, "grayscale": 0}


def test_pictures_are_the_views_before_normalization(pictures: DatasetIndex) -> None:
    spec = resolved(pictures, augment=PLAIN, backbone={"image_size": 32})
    [row] = Drawing(spec, pictures, 1).rows()
    original = pictures.decode(row.position, 3)
    assert (row.original.permute(1, 2, 0).numpy() == original).all()
    # 20 x 24 pixels are stretched to 32 x 32.
    stretched = Image.fromarray(original).resize((32, 32), Image.Resampling.BILINEAR)
    difference = row.views[0].permute(1, 2, 0).numpy().astype(int) - np.asarray(stretched)
    assert abs(difference).max() <= 1
    assert row.draws[0] == {
        "crop": [0, 0, 20, 24],
        "flip": False,
        "vertical_flip": False,
        "rotate": 0,
        "brightness": 1,
        "saturation": 1,
        "hue": 0,
        "grayscale": False,
        "contrast": 1,
        "blur": 0,
        "solarize": False,
        "channel_drop": None,
    }


def redrawn(row: Row, draws: dict[str, Any], size: int) -> np.ndarray:
    """Compute a view (size, size, 3) of an image, in [0, 1], from what it has drawn, without a blur."""
    x, y, width, height = draws["crop"]
    image = Image.fromarray(row.original.permute(1, 2, 0).numpy())
    part = image.crop((x, y, x + width, y + height)).resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(part) / 255
    pixels = pixels[:, ::-1] if draws["flip"] else pixels
    pixels = pixels[::-1] if draws["vertical_flip"] else pixels
    pixels = np.rot90(pixels, draws["rotate"] // 90) * draws["brightness"]
    to_yiq = np.array(RGB_TO_YIQ)
    yiq = pixels @ to_yiq.T
    chroma = (yiq[..., 1] + 1j * yiq[..., 2]) * np.exp(2j * np.pi * draws["hue"])
    chroma *= 0 if draws["grayscale"] else draws["saturation"]
    pixels = np.stack([yiq[..., 0], chroma.real, chroma.imag], axis=-1) @ np.linalg.inv(to_yiq).T
    mean = (pixels @ np.array(LUMA)).mean()
    pixels = np.clip(mean + draws["contrast"] * (pixels - mean), 0, 1)
    inverted: np.ndarray = np.minimum(pixels, 1 - pixels) if draws["solarize"] else pixels
    return inverted


def test_views_follow_from_what_is_said_to_be_drawn(pictures: DatasetIndex) -> None:
    recipe = {"crop_scale": (0.2, 1), "vertical_flip": 0.5, "rotate": 0.75, "solarize": 0.3}
    spec = resolved(pictures, augment=recipe | {"blur": 0}, backbone={"image_size": 64})
    rows = list(Drawing(spec, pictures, 20).rows())
    drawn = [draws for row in rows for draws in row.draws]
    for row in rows:
        for view, draws in zip(row.views, row.draws, strict=True):
            expected = 255 * redrawn(row, draws, 64)
            difference = view.permute(1, 2, 0).numpy() - expected
            assert abs(difference).max() <= 2, draws
    assert {draws["rotate"] for draws in drawn} == {0, 90, 180, 270}
    for name in ("flip", "vertical_flip", "grayscale", "solarize"):
        assert {draws[name] for draws in drawn} == {False, True}, name
    for name in ("brightness", "contrast", "saturation", "hue"):
        assert len({draws[name] for draws in drawn}) > 10, name


def test_blurs_and_dropped_bands_are_said(bands: DatasetIndex) -> None:
    recipe = PLAIN | {"blur": 0.5, "channel_drop": 0.5}
    spec = resolved(bands, augment=recipe, backbone=BANDS, evaluate={"holdout": None})
    rows = list(Drawing(spec, bands, 12).rows())
    drawn = [draws for row in rows for draws in row.draws]
    assert {draws["channel_drop"] for draws in drawn} > {None}
    assert {draws["blur"] > 0 for draws in drawn} == {False, True}
    assert {(draws["saturation"], draws["hue"], draws["grayscale"]) for draws in drawn} == {
        (None, None, None)
    }
    contrasts: dict[bool, list[float]] = {False: [], True: []}
    for row in rows:
        for view, draws in zip(row.views, row.draws, strict=True):
            flat = [len(band.unique()) == 1 for band in view]
            assert flat == [number == draws["channel_drop"] for number in range(5)]
            kept = view[0 if draws["channel_drop"] != 0 else 1]
            contrasts[draws["blur"] > 0.5].append(kept.float().diff().abs().mean().item())
    assert max(contrasts[True]) < min(contrasts[False])


def test_nothing_is_held_out_with_other_images_to_evaluate_on(pictures: DatasetIndex) -> None:
    spec = resolved(pictures, train={"batch_size": 27}, evaluate={"dataset": "others"})
    rows = Drawing(spec, pictures, 27).rows()
    assert sorted(row.position for row in rows) == list(range(27))


def test_files_and_settings(pictures: DatasetIndex, tmp_path: Path) -> None:
    spec = resolved(pictures, method={"name": "dino"})
    assert isinstance(spec.method, MultiCropConfig)
    previews.write(Drawing(spec, pictures, 3), tmp_path)
    files = previews.write(Drawing(spec, pictures, 2), tmp_path, version=4)
    assert {file.name for file in tmp_path.iterdir()} == {file.name for file in files}
    parts = ("original", "view0", "view1", "view2", "view3")
    singles = {f"{number}-{part}.png" for number in range(2) for part in parts}
    assert {file.name for file in files} == {"sheet.png", "preview.json", *singles}
    settings = json.loads((tmp_path / "preview.json").read_text())
    assert (settings["seed"], settings["dataset_version"]) == (3, 4)
    assert [view["local"] for view in settings["views"]] == [False, False, True, True]
    assert settings["views"][2]["augment"]["crop_scale"] == list(spec.method.local_scale)
    assert [image["step"] for image in settings["images"]] == [0, 0]
    assert [len(image["views"]) for image in settings["images"]] == [4, 4]
    assert settings["images"][0]["key"].startswith(settings["images"][0]["class"])
    assert settings["spec"]["augment"] == spec.augment.model_dump(mode="json")
    with Image.open(tmp_path / "0-view2.png") as local:
        assert local.size == (spec.method.local_size,) * 2


def test_image_that_is_gone_is_named(tmp_path: Path) -> None:
    index = ingest(image_folder(tmp_path / "images"))
    spec = resolved(index, train={"batch_size": 8})
    [row] = Drawing(spec, index, 1).rows()
    key = index.paths[row.position]
    (tmp_path / "images" / key).unlink()
    drawing = Drawing(spec, index, 2)
    previews.write(drawing, tmp_path / "out")
    images = json.loads((tmp_path / "out" / "preview.json").read_text())["images"]
    assert drawing.unreadable == {key: images[0]["unreadable"]}
    assert images[1]["unreadable"] is None
    with pytest.raises(ValueError, match="none of the 1 images of the preview can be read"):
        previews.write(Drawing(spec, index, 1), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_deep_pixels_are_shown_through_the_window(tmp_path: Path) -> None:
    for number in range(12):
        levels = np.linspace(1000, 3000, 24 * 20).reshape(24, 20) + number
        (tmp_path / "images").mkdir(exist_ok=True)
        tifffile.imwrite(tmp_path / "images" / f"{number:02}.tif", levels.astype(np.uint16))
    index = ingest(tmp_path / "images")
    spec = resolved(
        index, backbone={"in_channels": 1, "window": (1000, 3000)}, evaluate={"holdout": None}
    )
    [row] = Drawing(spec, index, 1).rows()
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


BANDS = {"image_size": 64, "in_channels": 5, "window": (0, 4000)}


@pytest.fixture(scope="module")
def bands(tmp_path_factory: pytest.TempPathFactory) -> DatasetIndex:
    """Twelve images of five bands of noise."""
    return ingest(band_images(tmp_path_factory.mktemp("bands")))


class Held(TorchDispatchMode):
    """Counts the bytes of the tensors that operations of this thread create, while they exist."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now, self.most = 0, 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs or {})
        for tensor in result if isinstance(result, (list, tuple)) else [result]:
            if isinstance(tensor, Tensor) and id(tensor.untyped_storage()) not in self._seen:
                self._hold(tensor.untyped_storage())
        return result

    def _hold(self, storage: torch.UntypedStorage) -> None:
        def release(key: int, size: int) -> None:
            self.now -= size
            self._seen.discard(key)

        self._seen.add(id(storage))
        self.now += storage.nbytes()
        self.most = max(self.most, self.now)
        weakref.finalize(storage, release, id(storage), storage.nbytes())


def test_memory_is_bounded_and_does_not_grow_with_images(
    bands: DatasetIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = resolved(
        bands, method={"name": "dino"}, backbone=BANDS, train={"batch_size": 4},
        evaluate={"holdout": None},
    )  # fmt: skip

    def most(images: int, threads: int) -> int:
        held = Held()
        with held:
            previews.write(Drawing(spec, bands, images, threads=threads), tmp_path)
        return held.most

    few = most(2, 1)
    assert most(6, 1) < 1.5 * few, "only their crops differ"
    # As many at a time as there is room for.
    memory = 6 * few
    monkeypatch.setattr("dasl_core.previews.drawing.MEMORY", memory)
    assert 1.5 * few < most(6, 6) <= memory
    monkeypatch.setattr("dasl_core.previews.drawing.MEMORY", few // 2)
    with pytest.raises(ValueError, match=r"backbone\.image_size: an image of 5 channels takes"):
        Drawing(spec, bands, 2)


def test_number_of_images_is_bounded(pictures: DatasetIndex) -> None:
    for images in (0, 65):
        with pytest.raises(ValueError, match="images: must be from 1 to 64"):
            Drawing(resolved(pictures), pictures, images)
    assert Drawing(resolved(pictures), pictures, 64).images == 24


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
        (
            (*data, "-o", str(tmp_path / "spec.yaml" / "out")),
            f"--output: {tmp_path / 'spec.yaml' / 'out'} cannot be written: Not a directory.",
        ),
        ((*data, *output, "--set", "augment.flip=2"), "augment.flip: is out of range"),
        ((*data, *output, "--set", "method.local_crops=2"), "method.local_crops"),
        ((*data, *output, "--set", "train.batch_size=500"), "train.batch_size"),
    ]:
        code, printed = preview_command(tmp_path, *arguments)
        assert code == 1, printed
        assert message in printed


@pytest.mark.parametrize("letter", "öÖßéñłжλ")
def test_names_of_images_in_other_languages_are_written(letter: str) -> None:
    font = _font()
    unknown = font.getmask("\U0010ffff")
    drawn = font.getmask(letter)
    assert (drawn.size, bytes(drawn)) != (unknown.size, bytes(unknown))
