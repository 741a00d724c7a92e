"""Our training: as a job does it, its parts alone, and its model alone."""

import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import own_run
from benchmarks.gpu.scenario import Scenario
from benchmarks.gpu.timing import Limit, median_ms
from benchmarks.memory import peak_bytes, synchronize
from dasl_core.data.index import DatasetIndex
from dasl_core.data.loader import Batch
from dasl_core.methods import Step
from dasl_core.tensors import full_precision
from dasl_core.train.reporter import NullReporter
from dasl_core.train.trainer import Trainer
from dasl_core.train.views import ViewMaker


class Recorder(NullReporter):
    """Keeps the metrics of steps."""

    def __init__(self) -> None:
        self.values: list[dict[str, float]] = []

    def metrics(self, points: list[dict[str, Any]]) -> None:
        """Keep the values."""
        self.values += [point["values"] for point in points]

    def mean(self, name: str) -> float | None:
        """Return the mean of those values that have been reported; None without any."""
        found = [values[name] for values in self.values if name in values]
        return sum(found) / len(found) if found else None

    def largest(self, name: str) -> float:
        """Return the largest one; 0 without any."""
        return max((values[name] for values in self.values if name in values), default=0.0)


@dataclass(frozen=True)
class Bench:
    """What all parts of a scenario share.

    Attributes:
        folder: of the image cache and scratch files.
        warmup: steps before those that count: a multiple of the steps between two reports.
        steps: that count, if there is time.
        rounds: of blocks, where steps take turns.
        block: steps of a block.
    """

    scenario: Scenario
    index: DatasetIndex
    images: list[Path]
    folder: Path
    device: torch.device
    cores: int
    warmup: int
    steps: int
    rounds: int
    block: int

    @contextmanager
    def trainer(
        self, reporter: Recorder | None = None, **more: Any
    ) -> Generator[Trainer, None, None]:
        """Build the trainer of a job; `more` are fields of its spec."""
        trainer = own_run.build(
            self.scenario.settings(self.device, self.cores, **more),
            self.index,
            self.folder,
            device=self.device,
            threads=self.cores,
            reporter=reporter,
        )
        try:
            yield trainer
        finally:
            trainer.close()


def first_batch(trainer: Trainer) -> Batch:
    """Return a batch as a reading thread leaves it: in pinned memory, if there is a GPU."""
    with closing(own_run.batches(trainer, 1)) as batches:
        return next(batches)


def cached_form(trainer: Trainer) -> str:
    """Return in which form the image cache holds what is read."""
    stored = trainer.loader.canvases.stored
    return "raw canvases" if stored is None else f"{stored[0]} shards"


def train(bench: Bench, limit: Limit) -> dict[str, Any]:
    """Train as a job does, from the image cache."""
    recorder = Recorder()
    peak_bytes(bench.device, reset=True)
    with bench.trainer(recorder) as trainer:
        done, began = 0, 0.0
        with closing(own_run.batches(trainer, bench.warmup + bench.steps)) as batches:
            for number, batch in enumerate(batches):
                if number == bench.warmup:
                    synchronize(bench.device)
                    recorder.values.clear()
                    began = time.perf_counter()
                if not limit.allows():
                    limit.cut.append(f"{done} of {bench.steps} steps")
                    break
                trainer.step(batch)
                done = max(0, number + 1 - bench.warmup)
        synchronize(bench.device)
        seconds = time.perf_counter() - began
        form = cached_form(trainer)
    if not done:
        return {}
    peak = max(peak_bytes(bench.device), int(recorder.largest("gpu_memory")))
    return speed(bench, seconds / done) | {
        "steps": done,
        "form": form,
        "data_wait_share": recorder.mean("time_data_wait"),
        "times": {
            name: recorder.mean(f"time_{name}") for name in ("decode", "copy", "views", "optimizer")
        },
        "gpu_utilization": recorder.mean("gpu_utilization"),
        "cpu_utilization": recorder.mean("cpu_utilization"),
        "peak_bytes": peak,
    }


def speed(bench: Bench, seconds: float) -> dict[str, float]:
    """Return milliseconds of a step, and images per second."""
    return {
        "step_ms": round(1000 * seconds, 3),
        "images_per_second": round(bench.scenario.batch_size / seconds, 1),
    }


def inputs(bench: Bench, limit: Limit) -> dict[str, Any]:
    """Time what happens to a batch before the network: read, copied, made into views."""
    device = bench.device
    with bench.trainer() as trainer:
        batch = first_batch(trainer)
        there = replace(batch, canvases=batch.canvases.to(device))
        indices = batch.indices.numpy()
        size = batch.canvases.nbytes
        views = median_ms(
            lambda: trainer.prefetcher.maker.make(there, 0), device, bench.steps, limit, "views"
        )
        read = median_ms(
            lambda: trainer.loader.canvases.read(indices), device, bench.steps, limit, "reading"
        )
        copy = None
        if device.type == "cuda":
            copy = median_ms(
                lambda: batch.canvases.to(device, non_blocking=True),
                device,
                bench.steps,
                limit,
                "copy",
            )
        assert isinstance(trainer.prefetcher.maker, ViewMaker), "the views of the spec"
        sizes = [view.image_size for view in trainer.prefetcher.maker.views]
        form = cached_form(trainer)
    return {
        "form": form,
        "images": len(batch.canvases),
        "views": [f"{sizes.count(size)} of {size} px" for size in dict.fromkeys(sizes)],
        "views_ms": views,
        "batch_megabytes": round(size / 1e6, 3),
        "read_ms": read,
        "copy_ms": copy,
        "copy_gigabytes_per_second": None if copy is None else round(size / 1e6 / copy, 1),
    }


def synthetic_views(trainer: Trainer, device: torch.device) -> list[Tensor]:
    """Return noise of the shape, type and layout of a step's views, on the device."""
    maker = trainer.prefetcher.maker
    assert isinstance(maker, ViewMaker), "the views of the spec"
    batch = trainer.run.length.batch_size
    return [
        torch.randn(batch, 3, view.image_size, view.image_size, device=device).to(
            maker.dtype, memory_format=maker.layout
        )
        for view in maker.views
    ]


def whole_step(trainer: Trainer, views: list[Tensor], device: torch.device) -> Callable[[], None]:
    """Return the trainer's step on views that are there: with metrics, clipping and checks."""
    batch = first_batch(trainer)
    batch = replace(batch, canvases=batch.canvases.to(device))
    trainer.prefetcher.maker.make = lambda batch, step: views  # type: ignore[method-assign]
    return lambda: trainer.step(batch)


def model_alone(trainer: Trainer, views: list[Tensor]) -> Callable[[], None]:
    """Return forward, loss, backward, and update of weights and teacher; nothing else of a step."""
    method, length = trainer.method, trainer.run.length
    indices = torch.arange(length.batch_size)
    done = [0]
    method.train()

    def run() -> None:
        step = Step(done[0], length.total_steps, length.steps_per_epoch, indices)
        done[0] += 1
        with trainer.gradients.autocast():
            outputs = method(views)
        torch.autograd.backward(method.loss(outputs, step))
        method.update(trainer.updater.optimizer, step)

    return run


def regularizer_alone(trainer: Trainer, views: list[Tensor]) -> Callable[[], None]:
    """Return forward and backward of DAR, or of SEC, on the embeddings of a step."""
    with torch.no_grad(), trainer.gradients.autocast():
        outputs = trainer.method(views)
    embeddings = full_precision(outputs["embeddings"]).clone().requires_grad_()
    [regularizer] = trainer.criterion.regularizers.values()
    indices = torch.arange(trainer.run.length.batch_size)

    def run() -> None:
        torch.autograd.backward(regularizer(embeddings, indices, 0))
        embeddings.grad = None

    return run
