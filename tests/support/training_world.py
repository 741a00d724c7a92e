"""Helpers for tests of training: small image folders, tiny specs, a recording reporter."""

import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from dasl_core.data.index import DatasetIndex
from dasl_core.data.ingest import ingest_folder
from dasl_core.export import export_backbone
from dasl_core.spec import METHODS, JobSpec, ResolvedJobSpec, resolve
from dasl_core.train.build import RunFiles, build_trainer, open_run, pretrain
from dasl_core.train.reporter import NullReporter, Reporter
from dasl_core.train.trainer import Trainer
from dasl_core.train.validation import Validator
from dasl_core.vocabulary import Desired, Phase, Subject, TrainingOutcome


def image_folder(
    root: Path, classes: int = 3, per_class: int = 9, size: tuple[int, int] = (20, 24)
) -> Path:
    """Write images of noise around a color of their class, in one folder per class.

    Args:
        classes: number of classes; 0: no labels, all images in `root`.
        size: (width, height) of the images.
    """
    random = np.random.default_rng(7)
    for label in range(max(1, classes)):
        tint = random.integers(0, 256, 3)
        folder = root / f"class-{label}" if classes else root
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(per_class):
            noise = random.integers(-60, 60, (size[1], size[0], 3))
            pixels = np.clip(tint + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    return root


def band_images(root: Path, number: int = 12, size: int = 80) -> Path:
    """Write square images of five bands of noise in 12 bits, without labels."""
    random = np.random.default_rng(3)
    for image in range(number):
        pixels = random.integers(0, 4000, (size, size, 5), dtype=np.uint16)
        tifffile.imwrite(
            root / f"{image:02}.tif", pixels, photometric="minisblack", planarconfig="contig"
        )
    return root


# Values that make any method with these fields tiny, so that tests can run every method.
SMALL_FIELDS: dict[str, Any] = {
    "projection_dim": 8,
    "embedding_dim": 8,
    "bottleneck_dim": 8,
    "hidden_dim": 16,
    "out_dim": 24,
    "local_crops": 2,
    "prototypes": 12,
    "queue_start_epoch": 1,
}
# Settings with which a tiny network learns something in a few steps.
EASY: dict[str, dict[str, Any]] = {
    "proxy_anchor": {"alpha": 4.0, "proxy_lr": 3.0},
    # The classes are far apart from the start, so a smaller margin leaves nothing to learn.
    "triplet": {"margin": 3.0},
    "multi_similarity": {"epsilon": 1.0},
    "margin_softmax": {"scale": 8.0},
    # Of the global views' size: timm interpolates positions in float32 for any other.
    "ibot": {"local_size": 32},
    "pcl": {"queue_length": 20, "clusters": [3, 5]},
}
# The standard stem halves the time of a run: the small one keeps four times as many pixels.
TINY_BACKBONE = {"name": "test_resnet", "image_size": 16, "stem": "standard"}
# Methods that need another backbone: one with four patches.
TINY_BACKBONES = {"ibot": {"name": "test_vit", "image_size": 32, "stem": "standard"}}
# Methods that share most of their code with another one. What the regularizers do to a method is tested on
# that one; on these, only in whole runs on two ranks and in resumed runs.
KIN = {"ibot": "dino", "margin_softmax": "proxy_anchor", "pcl": "moco_v3"}
# One method of each kind of state: `make test` runs on these what depends on a method by its state alone.
FAMILIES = ("simclr", "byol", "dino", "swav", "proxy_anchor", "pcl")
SMALL: dict[str, dict[str, Any]] = {
    name: {field: value for field, value in SMALL_FIELDS.items() if field in config.model_fields}
    | EASY.get(name, {})
    for name, config in METHODS.items()
}
"""Settings that make each method tiny."""


def families_first(methods: Iterable[str], families: Iterable[str] = FAMILIES) -> list[object]:
    """Return the methods as parameters of a test, of which only `make test-rest` runs those beside `families`."""
    fast, slow = set(families), pytest.mark.slow
    return [pytest.param(name, marks=[] if name in fast else slow) for name in methods]


def tiny_spec(**changes: Any) -> dict[str, Any]:
    """Return a spec that trains in a fraction of a second, with `changes` merged into its sections."""
    method = changes.get("method", {}).get("name", "simclr")
    base: dict[str, Any] = {
        "name": "tiny",
        "dataset": "pictures",
        "method": {"name": method} | SMALL[method],
        "backbone": TINY_BACKBONES.get(method, TINY_BACKBONE),
        "train": {"epochs": 3, "batch_size": 8, "seed": 3, "checkpoint_every_epochs": 1},
        "evaluate": {"retrieval": [1, 2], "every_epochs": 2},
    }
    if changes.get("evaluate", {}).get("holdout", {}) is None:
        del base["evaluate"]["retrieval"]  # without effect, and refused
    for name, value in changes.items():
        known = base.get(name)
        merge = isinstance(known, dict) and isinstance(value, dict)
        base[name] = known | value if merge else value
    return base


def supported(method: str, **regularizers: Any) -> dict[str, Any]:
    """Return the regularizers, without `sec` for a method that refuses it."""
    if METHODS[method].compares_directions:
        return regularizers
    return {name: value for name, value in regularizers.items() if name != "sec"}


def resolved(index: DatasetIndex, **changes: Any) -> ResolvedJobSpec:
    """Resolve a tiny spec for a data set; see `tiny_spec`."""
    return resolve(JobSpec.model_validate(tiny_spec(**changes)), index.facts())


def resolved_from_checkpoint(index: DatasetIndex, **changes: Any) -> ResolvedJobSpec:
    """Resolve a tiny spec as that of a job that continues from a checkpoint: it may keep weights."""
    spec = JobSpec.model_validate(tiny_spec(**changes))
    return resolve(spec, index.facts(), from_checkpoint=True)


def ingest(root: Path) -> DatasetIndex:
    """Ingest a folder in this process."""
    return ingest_folder(root, workers=1)


class Recorder:
    """A `Reporter` that records all reports and copies checkpoints to `folder`."""

    def __init__(
        self,
        folder: Path,
        desired: Callable[[int], Desired] = lambda step: "run",
        *,
        at_work: Callable[[int], Desired] = lambda call: "run",
    ) -> None:
        """Create a reporter.

        Args:
            desired: maps the number of started steps to the desired state.
            at_work: maps the number of calls of `keepalive` to the desired state.
        """
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.points: list[dict[str, Any]] = []
        self.progresses: list[dict[str, Any]] = []
        self.reading: list[dict[str, Any]] = []
        self.phases: list[tuple[str, str]] = []
        self.worked = 0
        self.evaluations: list[tuple[int, float, str, dict[str, float]]] = []
        self.checkpoints: list[tuple[int, Path, bool]] = []
        self.latest: dict[str, float] = {}
        self.artifacts: dict[str, bytes] = {}
        self.events: list[tuple[str, str, dict[str, Any]]] = []
        self.verdicts: list[tuple[str, dict[str, Any]]] = []
        self._desired, self._started_steps = desired, 0
        self._desired_at_work = at_work

    def metrics(self, points: list[dict[str, Any]]) -> None:
        """Record points; like the service, replace values of a step that is reported again."""
        for point in points:
            if self.points and self.points[-1]["step"] == point["step"]:
                self.points[-1]["values"].update(point["values"])
            else:
                self.points.append(point)

    def progress(self, progress: dict[str, Any]) -> None:
        if "images_read" in progress:
            self.reading.append(progress)  # only if it takes long
        else:
            self.progresses.append(progress)

    def phase(self, name: Phase, message: str) -> None:
        self.phases.append((name, message))

    def keepalive(self) -> Desired:
        self.worked += 1
        return self._desired_at_work(self.worked)

    def evaluation(
        self, step: int, epoch: float, subject: Subject, metrics: dict[str, float]
    ) -> None:
        self.evaluations.append((step, epoch, subject, metrics))

    def checkpoint(
        self, folder: Path, step: int, epoch: float, metrics: dict[str, float], final: bool
    ) -> None:
        copy = self.folder / f"step-{step}"
        if copy.exists():
            copy = copy.with_name(f"step-{step}-final")
        shutil.copytree(folder, copy)
        self.checkpoints.append((step, copy, final))
        self.latest = metrics

    def artifact(self, file: Path) -> None:
        self.artifacts[file.name] = file.read_bytes()

    def event(self, type: str, message: str, data: dict[str, Any]) -> None:
        if type == "verdict":  # apart: nearly every run has one
            self.verdicts.append((message, data))
        else:
            self.events.append((type, message, data))

    def desired(self) -> Desired:
        if "training" not in dict(self.phases):
            return "run"
        self._started_steps += 1
        return self._desired(self._started_steps - 1)

    @property
    def last_checkpoint(self) -> Path:
        return self.checkpoints[-1][1]

    def curve(self, name: str = "loss") -> list[float]:
        """Return the values of a metric, one per step."""
        return [point["values"][name] for point in self.points if name in point["values"]]


def skip_plots(patch: pytest.MonkeyPatch) -> None:
    """Draw no plots, which take longer than a tiny run itself."""
    patch.setattr(Validator, "publish_plots", lambda *_: None)
    patch.setattr(Validator, "observer", lambda validator: None)


def without_onnx(*arguments: Any, **options: Any) -> str | None:
    """Export a backbone as `export_backbone` does, but not as ONNX."""
    return export_backbone(*arguments, **options | {"onnx": False})


def run(
    spec: ResolvedJobSpec,
    index: DatasetIndex,
    cache: Path,
    reporter: Reporter | None,
    resume: Path | None = None,
    *,
    onnx: bool = False,
    branch: bool = False,
    **arguments: Any,
) -> TrainingOutcome:
    """Run `pretrain` with a scratch folder that is removed afterwards.

    Args:
        onnx: whether to write ONNX with the last checkpoint, which takes longer than a tiny run.
    """

    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        if not onnx:
            stack.enter_context(
                patch("dasl_core.train.checkpointing.export_backbone", without_onnx)
            )
        files = RunFiles(
            cache=cache, evaluate_cache=cache, scratch=Path(scratch), resume=resume, branch=branch
        )
        return pretrain(spec, index, reporter or NullReporter(), files, **arguments)


def recorded(
    spec: ResolvedJobSpec,
    index: DatasetIndex,
    cache: Path,
    folder: Path,
    resume: Path | None = None,
    **options: Any,
) -> Recorder:
    """Run `pretrain` to its end as `run` does; return its reports, with copies of its checkpoints in `folder`."""
    reporter = Recorder(folder)
    assert run(spec, index, cache, reporter, resume, **options) == "succeeded"
    return reporter


def open_trainer(
    spec: ResolvedJobSpec,
    index: DatasetIndex,
    cache: Path,
    scratch: Path,
    reporter: Reporter | None = None,
) -> Trainer:
    """Build the trainer of a run, which the caller closes."""
    files = RunFiles(cache=cache, scratch=scratch)
    return build_trainer(open_run(spec, index, reporter or NullReporter(), files))


def run_and_resume(
    spec: ResolvedJobSpec, index: DatasetIndex, cache: Path, folder: Path, stop: int
) -> tuple[Recorder, Recorder]:
    """Run to the end; run again, cancel after `stop` steps and resume; check that the losses are equal.

    Returns:
        The reports of the whole and of the resumed run.
    """
    whole, resumed = Recorder(folder / "whole"), Recorder(folder / "resumed")
    stopped = Recorder(folder / "stopped", lambda started: "cancel" if started == stop else "run")
    run(spec, index, cache, whole)
    run(spec, index, cache, stopped)
    run(spec, index, cache, resumed, stopped.last_checkpoint)
    assert stopped.curve() + resumed.curve() == whole.curve()
    return whole, resumed


def assert_same(one: Any, other: Any, path: str) -> None:
    """Assert that nested states are equal, tensors bit for bit; `path` names the state in messages."""
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, path
        assert torch.equal(one, other), path
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key, value in one.items():
            assert_same(value, other[key], f"{path}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), path
        for number, value in enumerate(one):
            assert_same(value, other[number], f"{path}.{number}")
    else:
        assert type(one) is type(other), path
        assert one == other, path
