"""What only a GPU can show. `pytest --noconftest -m cuda tests/cuda` needs pytest and what `benchmarks.gpu` needs.

| What | Test |
|---|---|
| Operators that only CUDA lacks, or computes otherwise; mixtures of devices | a step equals the CPU's |
| Waits of the host, found by CUDA itself | a step does not wait |
| bf16 and fp16 with tensor cores, the search for a loss scale | runs in half precision learn |
| `train.compile` through Triton; `channels_last` of cuDNN | a compiled run learns |
| Random streams and deferred updates of the device | a resumed run repeats the weights bit for bit |
| Weights that leave the device | an exported backbone equals the trained one |
"""

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from benchmarks import own_run
from dasl_core.data.index import DatasetIndex
from dasl_core.data.ingest import ingest_folder
from dasl_core.methods import Step
from dasl_core.spec import METHODS, JobSpec, resolve
from dasl_core.train.build import RunFiles, pretrain
from dasl_core.train.reporter import NullReporter

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="There is no CUDA device"),
]
CUDA, CPU = torch.device("cuda"), torch.device("cpu")
# Their losses choose pairs on the host.
READING = ("multi_similarity", "npair", "proxy_anchor")
SMALL = {"projection_dim": 64, "hidden_dim": 64, "out_dim": 128, "local_crops": 2, "clusters": (3,)}
REGULARIZERS: dict[str, dict[str, Any]] = {
    "alone": {},
    "dar": {"dar": {"share": 0.1}},
    "sec": {"sec": {"share": 0.1, "ramp": False}},
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> DatasetIndex:
    folder, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for number in range(64):
        path = folder / f"class-{number % 4}" / f"{number:02}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(random.integers(0, 256, (40, 48, 3), dtype=np.uint8)).save(path)
    return ingest_folder(folder)


def settings(method: str, **changes: Any) -> dict[str, Any]:
    fields = METHODS[method].model_fields
    small = {name: value for name, value in SMALL.items() if name in fields}
    is_vit = method == "ibot"
    base: dict[str, Any] = {
        "method": {"name": method, **small},
        "backbone": {
            "name": "test_vit" if is_vit else "test_resnet",
            "image_size": 32,
            "stem": "standard",
        },
        "train": {"epochs": 2, "batch_size": 16, "precision": "fp32"},
        "evaluate": {"holdout": None},
    }
    train = base["train"] | changes.pop("train", {})
    return base | changes | {"train": train}


@contextmanager
def full_float32() -> Iterator[None]:
    """Products of matrices and convolutions without TF32, as a CPU computes them."""
    cudnn = torch.backends.cudnn
    before = torch.get_float32_matmul_precision(), cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32 = before[1]


@pytest.mark.parametrize(
    ("method", "regularizer"),
    [
        (method, regularizer)
        for method, config in METHODS.items()
        for regularizer in REGULARIZERS
        if regularizer != "sec" or config.compares_directions
    ],
)
def test_step_equals_the_cpus(
    pictures: DatasetIndex, tmp_path: Path, method: str, regularizer: str
) -> None:
    job = settings(method, **REGULARIZERS[regularizer])
    host = own_run.build(job, pictures, tmp_path, device=CPU, threads=2)
    device = own_run.build(job, pictures, tmp_path, device=CUDA, threads=2)
    with closing(host), closing(device), full_float32():
        device.method.load_state_dict(host.method.state_dict())
        batch, views = next(own_run.views_of_epoch(host, 0))
        labels = None if host.run.data.labels is None else host.run.data.labels[batch.indices]
        step = Step(0, 8, 4, batch.indices, labels)
        masks = host.method.draw_masks(list(range(len(batch.indices))))
        found: list[dict[str, float]] = []
        for trainer, place in ((host, CPU), (device, CUDA)):
            trainer.begin_epoch(0)
            moved = [view.to(place) for view in views]
            terms, _ = trainer.gradients.backward(moved, step, masks, measure_shares=True)
            norm = torch.nn.utils.get_total_norm(
                [w.grad for w in trainer.updater.weights if w.grad is not None]
            )
            metrics = terms | trainer.criterion.metrics() | {"gradient": norm}
            found.append({name: value.item() for name, value in metrics.items()})
    assert found[1] == pytest.approx(found[0], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("method", sorted(METHODS.keys() - set(READING)))
def test_step_does_not_wait(pictures: DatasetIndex, tmp_path: Path, method: str) -> None:
    parts = {} if not METHODS[method].compares_directions else REGULARIZERS["sec"]
    job = settings(method, **REGULARIZERS["dar"], **parts)
    trainer = own_run.build(job, pictures, tmp_path, device=CUDA, threads=2)
    with closing(trainer), closing(own_run.batches(trainer, 3)) as batches:
        trainer.step(next(batches))
        batch = next(batches)
        torch.cuda.set_sync_debug_mode("error")
        try:
            trainer.step(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")


class Kept(NullReporter):
    """Keeps losses and copies of checkpoints, oldest first."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.losses = folder, list[float]()
        self.checkpoints: list[Path] = []

    def metrics(self, points: list[dict[str, Any]]) -> None:
        self.losses += [point["values"]["loss"] for point in points if "loss" in point["values"]]

    def checkpoint(
        self, folder: Path, step: int, epoch: float, metrics: dict[str, float], final: bool
    ) -> None:
        self.checkpoints.append(self.folder / str(len(self.checkpoints)))
        shutil.copytree(folder, self.checkpoints[-1])


def train(pictures: DatasetIndex, folder: Path, resume: Path | None = None, **changes: Any) -> Kept:
    job = settings("simclr", dar={}, **changes)
    spec = resolve(JobSpec.model_validate({"dataset": "pictures", **job}), pictures.facts())
    for part in ("scratch", "kept"):
        (folder / part).mkdir(parents=True)
    reporter = Kept(folder / "kept")
    files = RunFiles(folder / "cache", folder / "scratch", resume=resume)
    assert pretrain(spec, pictures, reporter, files, device=CUDA, threads=2) == "succeeded"
    return reporter


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_runs_in_half_precision_learn(
    pictures: DatasetIndex, tmp_path: Path, precision: str
) -> None:
    losses = train(pictures, tmp_path, train={"precision": precision, "epochs": 10}).losses
    assert np.isfinite(losses).all()
    assert np.mean(losses[-4:]) < np.mean(losses[:4])


def test_compiled_run_learns(pictures: DatasetIndex, tmp_path: Path) -> None:
    options = {"compile": True, "channels_last": True, "epochs": 10}
    losses = train(pictures, tmp_path, train=options).losses
    assert np.mean(losses[-4:]) < np.mean(losses[:4])


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "backbone.safetensors")


def test_resumed_run_repeats_the_weights_bit_for_bit(
    pictures: DatasetIndex, tmp_path: Path
) -> None:
    saving = {"epochs": 3, "checkpoint_every_epochs": 1}
    whole = train(pictures, tmp_path / "whole", train=saving)
    resumed = train(pictures, tmp_path / "resumed", whole.checkpoints[0], train=saving)
    assert len(resumed.losses) == 8
    assert whole.losses[-8:] == resumed.losses
    expected, found = (weights(each.checkpoints[-1]) for each in (whole, resumed))
    assert expected.keys() == found.keys()
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


def test_exported_backbone_equals_the_trained_one(pictures: DatasetIndex, tmp_path: Path) -> None:
    kept = train(pictures, tmp_path)
    backbone = timm.create_model("test_resnet", num_classes=0)
    backbone.load_state_dict(weights(kept.checkpoints[-1]))
    images = torch.randn(4, 3, 32, 32)
    with full_float32(), torch.no_grad():
        on_cpu = backbone.eval()(images)
        on_device = backbone.to(CUDA)(images.to(CUDA)).cpu()
    torch.testing.assert_close(on_device, on_cpu, rtol=1e-3, atol=1e-4)
