"""The parts that the components of a training run share."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
import torch.distributed as dist

from dasl_core.data.index import DatasetIndex
from dasl_core.spec import ResolvedJobSpec
from dasl_core.train.data import TrainingData, report_images
from dasl_core.train.data_parallel import control_group
from dasl_core.train.interruption import Interruption
from dasl_core.train.preparing import open_images
from dasl_core.train.progress import Progress, RunLength
from dasl_core.train.reporter import Reporter
from dasl_core.train.timing import StepTimer

CPU = torch.device("cpu")


@dataclass(frozen=True)
class RunFiles:
    """Where a run reads and writes on this machine.

    Attributes:
        cache: folder for decoded images of the data set to train on, shared by its runs and ranks.
        evaluate_cache: that of the data set to evaluate on, if it is another one.
        scratch: folder in which checkpoints and plots are written before they are published.
        resume: folder of a checkpoint to resume from.
        branch: settings may differ from that checkpoint's: take over what still fits
            (`dasl_core.spec.branch`) instead of resuming exactly.
    """

    cache: Path
    scratch: Path
    evaluate_cache: Path | None = None
    resume: Path | None = None
    branch: bool = False


@dataclass(frozen=True)
class Run:
    """Settings, images, position and reports of a run on this rank.

    Attributes:
        threads: for decoding images.
        progress: the position of the run, which the components advance.
        control: CPU group for rank 0's decisions, so that their broadcast never waits for a GPU; None
            with one rank.
        timer: measures where the time goes.
    """

    spec: ResolvedJobSpec
    files: RunFiles
    device: torch.device
    threads: int
    data: TrainingData
    progress: Progress
    reporter: Reporter
    control: dist.ProcessGroup | None
    interruption: Interruption
    timer: StepTimer

    @cached_property
    def length(self) -> RunLength:
        """How many steps the run takes."""
        loader = self.data.loader
        return RunLength(self.spec.train.epochs, loader.steps, loader.batch_size)

    @property
    def epoch(self) -> float:
        """Epochs done, with a fraction."""
        return self.length.epoch_at(self.progress.step)


def open_run(
    spec: ResolvedJobSpec,
    index: DatasetIndex,
    reporter: Reporter,
    files: RunFiles,
    *,
    evaluate_on: DatasetIndex | None = None,
    device: torch.device = CPU,
    threads: int = 1,
) -> Run:
    """Read the images of a run; arguments as for `pretrain`.

    Raises:
        ValueError: the spec cannot run on this data; the message says why.
        Interrupted: the user requested to stop.
    """
    progress, control = Progress(), control_group()
    interruption = Interruption(reporter, progress, control)
    sets = open_images(
        spec, index, evaluate_on, interruption, files.cache, files.evaluate_cache, threads
    )
    data = TrainingData.select(spec, sets, control)
    report_images(sets, data.damaged, reporter, control)
    for event in data.events:
        reporter.event(*event)
    timer = StepTimer(device)
    return Run(spec, files, device, threads, data, progress, reporter, control, interruption, timer)
