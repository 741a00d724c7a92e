"""Entry point of a training run, and the wiring of its components."""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from dasl_core.data.index import DatasetIndex
from dasl_core.distributed import collectives_timed
from dasl_core.spec import ResolvedJobSpec
from dasl_core.train.checkpointing import Checkpointer, TrainingState
from dasl_core.train.criterion import Criterion
from dasl_core.train.data import TrainingData, field_that_needs_classes, report_cache
from dasl_core.train.data_parallel import control_group, wrap_ddp
from dasl_core.train.divergence import DivergenceGuard
from dasl_core.train.evaluation import Evaluator
from dasl_core.train.features import ImageEncoder
from dasl_core.train.gradients import GradientComputer
from dasl_core.train.input_bound import InputWatch
from dasl_core.train.interruption import Interrupted, Interruption
from dasl_core.train.network import seeded_method, without_start
from dasl_core.train.optim import build_optimizer, learning_rate_factors
from dasl_core.train.outcomes import STEPS_IN_FLIGHT, Outcomes
from dasl_core.train.plotting import Plotter
from dasl_core.train.precision import autocast, refuse_undefined_gradients, weight_dtype
from dasl_core.train.prefetch import ViewPrefetcher
from dasl_core.train.preparing import open_images
from dasl_core.train.progress import Progress, RunLength
from dasl_core.train.pseudo_labels import pseudo_labels_of
from dasl_core.train.reporter import Reporter
from dasl_core.train.step_metrics import StepMetrics
from dasl_core.train.timing import StepTimer
from dasl_core.train.trainer import Trainer
from dasl_core.train.update import Updater
from dasl_core.train.validation import Validator
from dasl_core.train.views import Augmentation, OwnViewMaker, ViewMaker
from dasl_core.vocabulary import TrainingOutcome

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


def pretrain(
    spec: ResolvedJobSpec,
    index: DatasetIndex,
    reporter: Reporter,
    files: RunFiles,
    *,
    evaluate_on: DatasetIndex | None = None,
    backbone: nn.Module | None = None,
    augmentation: Augmentation | None = None,
    device: torch.device = CPU,
    threads: int = 1,
) -> TrainingOutcome:
    """Run a resolved spec to its end, from the first step or from a checkpoint.

    Every rank of the process group must call this; without a group, this process is the only rank.

    Args:
        spec: resolved: no "auto" is left.
        index: the data set to train on; `MappedIndex.of` makes one of a map-style data set.
        reporter: a `NullReporter` on the ranks other than 0.
        evaluate_on: the data set that `spec.evaluate.dataset` names.
        backbone: the network, if `spec.backbone.name` is "own", the same on every rank; it is trained in
            place. To resume, pass one of the same architecture.
        augmentation: makes the views, instead of `spec.augment`; to resume, pass the same one.
        threads: for decoding images, and for torch on a CPU.

    Raises:
        ValueError: the spec cannot run on this data; the message says why.
        CollapsedError: the representation has collapsed, and `train.collapse` is "stop".
        DivergedError: the loss or the weights became NaN or infinite.
    """
    if device.type == "cpu":
        torch.set_num_threads(threads)
    if spec.train.deterministic:
        # Read by cuBLAS when it starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(spec.train.deterministic)
    torch.backends.cudnn.benchmark = device.type == "cuda" and not spec.train.deterministic
    try:
        trainer = build_trainer(
            spec,
            index,
            reporter,
            files,
            evaluate_on=evaluate_on,
            backbone=backbone,
            augmentation=augmentation,
            device=device,
            threads=threads,
        )
    except Interrupted as stop:
        return stop.outcome  # while images were read: nothing is to be saved
    try:
        with collectives_timed(trainer.metrics.timer.collective):
            return trainer.train()
    finally:
        trainer.close()


def build_trainer(
    spec: ResolvedJobSpec,
    index: DatasetIndex,
    reporter: Reporter,
    files: RunFiles,
    *,
    evaluate_on: DatasetIndex | None = None,
    backbone: nn.Module | None = None,
    augmentation: Augmentation | None = None,
    device: torch.device = CPU,
    threads: int = 1,
) -> Trainer:
    """Wire the components of a run; arguments as for `pretrain`.

    Raises:
        ValueError: the spec cannot run on this data; the message says why.
        Interrupted: the user requested to stop while images were read.
    """
    seed, precision = spec.train.seed, spec.train.precision
    dtype = weight_dtype(precision)
    progress, control = Progress(), control_group()
    interruption = Interruption(reporter, progress, control)
    sets = open_images(
        spec,
        index,
        evaluate_on,
        interruption,
        cache=files.cache,
        evaluate_cache=files.evaluate_cache,
        threads=threads,
    )
    needs_classes = field_that_needs_classes(spec)
    data = TrainingData.of(
        sets, spec.train, spec.evaluate, needs_classes=needs_classes, control=control
    )
    data.report_damaged(reporter)
    report_cache(sets, reporter, control)
    loader = data.loader
    evaluator: Evaluator | None = None
    if len(data.held_out):
        encoder = ImageEncoder.of(
            spec, device, keepalive=reporter.keepalive, check=interruption.check_work
        )
        evaluator = Evaluator(spec.evaluate, encoder, data.train, data.held_out)

    # A checkpoint contains all weights: the start weights may no longer exist.
    method = seeded_method(
        spec if files.resume is None else without_start(spec),
        data.num_classes,
        backbone,
        device,
        dtype,
    )
    refuse_undefined_gradients(method, precision, device)
    optimizer = build_optimizer(
        spec.train.optimizer, method, learning_rate_factors(spec.train.optimizer, method)
    )
    timer = StepTimer(device)
    wrap = partial(wrap_ddp, method, timer)
    pseudo_labels = pseudo_labels_of(spec, data)
    criterion = Criterion(
        spec.method.name,
        method,
        spec.active_regularizers(),
        seed,
        device,
        pseudo_labels,
    )
    updater = Updater(
        optimizer,
        spec.train.clip,
        [*method.buffers(), *criterion.buffers()],
        device,
        scaled=precision == "fp16",
        deferred=device.type == "cuda" and precision != "fp16",
    )
    gradients = GradientComputer(
        wrap(),
        method,
        criterion,
        micro_batches=spec.train.micro_batches,
        is_mean=criterion.is_mean,
        autocast=partial(autocast, precision, device),
        scale=updater.scaler.scale,
        span=timer.span,
    )

    length = RunLength(spec.train.epochs, loader.steps, loader.batch_size)
    watch = InputWatch(data.reading(threads, device))
    metrics = StepMetrics(length, progress, reporter, device, spec.train.collapse, timer, watch)
    guard = DivergenceGuard(
        progress,
        reporter,
        index.paths,
        limit=spec.train.skip_not_finite,
        lr=spec.train.optimizer.lr,
        flush=metrics.report,
    )
    plotter = Plotter(
        spec=spec,
        data=data,
        evaluator=evaluator,
        length=length,
        progress=progress,
        reporter=reporter,
        scratch=files.scratch,
        control=control,
    )
    state = TrainingState(
        settings=spec.deciding(),
        train_images=len(data.train),
        images_digest=data.digest(),
        total_steps=length.total_steps,
        device=device,
        progress=progress,
        method=method,
        criterion=criterion,
        pseudo_labels=pseudo_labels,
        optimizer=optimizer,
        scaler=updater.scaler,
        plotter=plotter,
    )
    validator = Validator(
        settings=spec.evaluate,
        stop=spec.train.stop,
        frozen_steps=spec.train.head_only_epochs * length.steps_per_epoch,
        supervised=spec.method.supervised,
        start="start" if spec.backbone.may_have_weights else "untrained",
        evaluator=evaluator,
        method=method,
        data=data,
        length=length,
        progress=progress,
        metrics=metrics,
        guard=guard,
        reporter=reporter,
        plotter=plotter,
    )
    checkpointer = Checkpointer(
        spec=spec,
        state=state,
        data=data,
        length=length,
        reporter=reporter,
        control=control,
        scratch=files.scratch,
        resume_from=files.resume,
        branch=files.branch,
    )
    view_maker = _build_view_maker(spec, augmentation, device, dtype)
    return Trainer(
        settings=spec.train,
        length=length,
        data=data,
        method=method,
        view_maker=view_maker,
        criterion=criterion,
        pseudo_labels=pseudo_labels,
        gradients=gradients,
        updater=updater,
        metrics=metrics,
        guard=guard,
        validator=validator,
        checkpointer=checkpointer,
        progress=progress,
        reporter=reporter,
        interruption=interruption,
        wrap=wrap,
        control=control,
        prefetcher=ViewPrefetcher(view_maker, device, timer),
        outcomes=Outcomes(STEPS_IN_FLIGHT if updater.deferred else 0),
    )


def _build_view_maker(
    spec: ResolvedJobSpec,
    augmentation: Augmentation | None,
    device: torch.device,
    dtype: torch.dtype,
) -> ViewMaker | OwnViewMaker:
    """Make the views by `spec.augment`, or by a function of the user."""
    if augmentation is None:
        return ViewMaker.of(spec, device, dtype)
    return OwnViewMaker(
        augmentation,
        spec.method.num_views,
        spec.train.seed,
        device,
        dtype,
        channels_last=spec.train.channels_last,
    )
