"""Our side of a comparison: the trainer of a real run, on a folder of images."""

from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dasl_core.data.index import DatasetIndex
from dasl_core.data.loader import Batch
from dasl_core.machine import keep_freed_memory
from dasl_core.spec import JobSpec, resolve
from dasl_core.train.build import RunFiles, build_trainer, open_run
from dasl_core.train.reporter import NullReporter, Reporter
from dasl_core.train.trainer import Trainer

# The views of lightly's `SimCLRTransform`, which the paper describes.
SIMCLR_VIEWS = {"crop_scale": [0.08, 1.0], "jitter": 1.0, "grayscale": 0.2, "blur": 0.5}


def build(
    settings: dict[str, Any],
    index: DatasetIndex,
    folder: Path,
    *,
    device: torch.device,
    threads: int,
    reporter: Reporter | None = None,
) -> Trainer:
    """Return the trainer of a job.

    Args:
        settings: fields of a job spec; no image is held out unless they say so.
        folder: for the cache of decoded images, which is built if it is not there, and for scratch files.
        threads: for decoding, and for torch on a CPU.
        reporter: of the run; None discards all reports.
    """
    keep_freed_memory()  # as `dasl train` and the service's workers
    defaults = {"dataset": "images", "evaluate": {"holdout": None}}
    spec = JobSpec.model_validate(defaults | settings)
    files = RunFiles(cache=folder / "cache", scratch=folder)
    return build_trainer(
        open_run(
            resolve(spec, index.facts()),
            index,
            reporter or NullReporter(),
            files,
            device=device,
            threads=threads,
        )
    )


def batches(trainer: Trainer, count: int) -> Generator[Batch, None, None]:
    """Yield the batches of the next steps, read ahead as in `Trainer.train`; epochs begin and end.

    Close it before the last one, else it keeps its threads.
    """
    first = trainer.run.progress.step
    last = min(first + count, trainer.run.length.total_steps)
    read_ahead = trainer.loader.batches(first, last, trainer.prefetcher.pin)
    with closing(trainer.prefetcher.batches(read_ahead, first)) as prepared:
        for number, batch in enumerate(prepared):
            epoch, step = divmod(trainer.run.progress.step, trainer.run.length.steps_per_epoch)
            if number and step == 0:
                trainer.end_epoch()
            if number == 0 or step == 0:
                trainer.begin_epoch(epoch)
            yield batch


def views_of_epoch(trainer: Trainer, epoch: int) -> Iterator[tuple[Batch, list[Tensor]]]:
    """Yield every batch of an epoch with its views, as training makes them, without training."""
    for number, batch in enumerate(trainer.loader.epoch(epoch)):
        yield (
            batch,
            list(trainer.prefetcher.maker.make(batch, epoch * trainer.loader.steps + number)),
        )
