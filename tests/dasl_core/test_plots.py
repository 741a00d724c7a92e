"""Plots of a run: valid PNGs for any job name and for little data."""

from __future__ import annotations

import builtins
import errno
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from PIL import Image

from dasl_core.data.index import DatasetIndex
from dasl_core.spec import Holdout
from dasl_core.train.plots import draw_curves, draw_neighbors
from tests.support.training_world import Recorder, resolved, run


@pytest.mark.parametrize(("fraction", "held_out"), [(0.01, 0), (0.04, 1), (0.075, 2)])
def test_plots_with_few_or_no_held_out_images(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, fraction: float, held_out: int
) -> None:
    reporter = Recorder(tmp_path)
    spec = resolved(pictures)
    # Resolving rejects a share that holds nothing out, which a small data set could still cause.
    chosen = spec.evaluate.model_copy(update={"holdout": Holdout(fraction=fraction)})
    spec = spec.model_copy(update={"evaluate": chosen})
    assert run(spec, pictures, cache, reporter) == "succeeded"
    assert bool(reporter.evaluations) == bool(held_out)
    assert ("neighbours.png" in reporter.artifacts) == (held_out > 1)
    assert "curves.png" in reporter.artifacts
    assert (reporter.last_checkpoint / "README.md").read_text()


@pytest.mark.parametrize("channels", [1, 3])
def test_plots_are_non_empty_pngs(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, channels: int
) -> None:
    reporter = Recorder(tmp_path)
    # A name that the plotting library could parse as a formula, but that is none.
    spec = resolved(
        pictures,
        name="costs $5 {and $_{6",
        backbone={"in_channels": channels},
        evaluate={"holdout": {"fraction": 0.3}},
    )
    assert run(spec, pictures, cache, reporter) == "succeeded"
    assert reporter.artifacts.keys() == {"curves.png", "neighbours.png"}
    for content in reporter.artifacts.values():
        picture = Image.open(io.BytesIO(content))
        assert picture.format == "PNG"
        assert min(picture.size) > 200
        assert len(np.unique(np.asarray(picture.convert("L")))) > 10


@pytest.mark.parametrize(
    "losses",
    [
        [1e308, -1e308],
        [math.inf, 1.0],
        [math.nan, math.nan],
        [],
        [2.0, 1e300, 1.0],
    ],
)
def test_curves_draw_losses_of_any_size(
    tmp_path: Path, losses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    draw_curves(losses, [], "a run", tmp_path / "curves.png")
    assert Image.open(tmp_path / "curves.png").format == "PNG"
    assert not caplog.records


def test_curves_of_backbone_and_embedding_are_separate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, list[float]] = {}
    plot = Axes.plot

    def record(axes: Axes, *data: Any, **options: Any) -> Any:
        drawn[options.get("label", "loss")] = list(data[1])
        return plot(axes, *data, **options)

    monkeypatch.setattr(Axes, "plot", record)
    values = (("raw", 0.1), ("untrained", 0.2), ("backbone", 0.3), ("embedding", 0.4))
    evaluations = [
        {"step": 1, "epoch": 1, "subject": subject, "metrics": {"knn_top1": value}}
        for subject, value in values
    ]
    draw_curves([1.0], evaluations, "a run", tmp_path / "curves.png")
    assert drawn == {"loss": [1.0], "backbone": [0.2, 0.3], "embedding": [0.4]}


def test_plot_that_cannot_be_drawn_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken: Any = None
    draw_neighbors(torch.ones(3, 2), broken, tmp_path / "neighbours.png")
    metrics = {"knn_top1": 1e308, "recall_at_1": "text"}
    evaluations = [
        {"step": 0, "epoch": 0, "subject": "untrained", "metrics": {"knn_top1": -1e308}},
        {"step": 1, "epoch": 1, "subject": "backbone", "metrics": metrics},
    ]
    draw_curves([1.0], evaluations, "a run", tmp_path / "curves.png")
    for name in ("neighbours.png", "curves.png"):
        assert min(Image.open(tmp_path / name).size) > 200
        assert f"{name} could not be drawn" in caplog.text


def test_full_disk_for_plots_does_not_fail_finished_run(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    class FullDisk(Recorder):
        def artifact(self, file: Path) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    reporter = FullDisk(tmp_path)
    assert run(resolved(pictures, train={"epochs": 1}), pictures, cache, reporter) == "succeeded"
    assert reporter.checkpoints[-1][2]  # final
    (type, message, data) = reporter.events[-1]
    assert (type, data) == ("pictures_missing", {"step": 3})
    assert "No space left on device" in message


def test_matplotlib_without_writable_folder_does_not_fail_finished_run(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = builtins.__import__

    def without_matplotlib(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "dasl_core.train.plots":
            raise OSError("Matplotlib requires access to a writable cache directory")
        return load(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    reporter = Recorder(tmp_path)
    assert run(resolved(pictures, train={"epochs": 1}), pictures, cache, reporter) == "succeeded"
    assert reporter.artifacts == {}
    assert "writable cache directory" in reporter.events[-1][1]
