"""Entry point of a training run, and the wiring of its components."""

import os
from functools import partial

import torch
from torch import nn

from dasl_core.data.index import DatasetIndex
from dasl_core.distributed import collectives_timed, rank, world_size
from dasl_core.methods import Method, build_method
from dasl_core.models.batchnorm import synchronize_batchnorm
from dasl_core.models.checkpointing import checkpoint_blocks
from dasl_core.seeds import derive_seed
from dasl_core.spec import ResolvedJobSpec
from dasl_core.train.checkpointing import Checkpointer, TrainingState
from dasl_core.train.criterion import Criterion
from dasl_core.train.data_parallel import wrap_ddp
from dasl_core.train.evaluation import Evaluator
from dasl_core.train.features import ImageEncoder
from dasl_core.train.gradients import GradientComputer
from dasl_core.train.input_bound import InputWatch
from dasl_core.train.interruption import Interrupted
from dasl_core.train.optim import build_optimizer, learning_rate_factors
from dasl_core.train.outcomes import STEPS_IN_FLIGHT, DivergenceGuard, Outcomes
from dasl_core.train.plotting import Plotter
from dasl_core.train.precision import autocast, define_gradients, weight_dtype
from dasl_core.train.prefetch import ViewPrefetcher
from dasl_core.train.pseudo_labels import build_pseudo_labels
from dasl_core.train.reporter import Reporter
from dasl_core.train.run import CPU, Run, RunFiles, open_run
from dasl_core.train.sharding import shard
from dasl_core.train.step_metrics import StepMetrics
from dasl_core.train.trainer import Trainer
from dasl_core.train.update import Updater
from dasl_core.train.validation import Validator
from dasl_core.train.views import Augmentation, CustomViewMaker, ViewMaker
from dasl_core.vocabulary import TrainingOutcome

__all__ = ["RunFiles", "build_trainer", "open_run", "pretrain"]


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
        index: the data set to train on; `MappedIndex.from_dataset` makes one of a map-style data set.
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
    configure_torch(device, threads, deterministic=spec.train.deterministic)
    try:
        run = open_run(
            spec, index, reporter, files, evaluate_on=evaluate_on, device=device, threads=threads
        )
    except Interrupted as stop:
        return stop.outcome  # while images were read: nothing is to be saved
    trainer = build_trainer(run, backbone=backbone, augmentation=augmentation)
    try:
        with collectives_timed(run.timer.collective):
            return trainer.train()
    finally:
        trainer.close()


def configure_torch(device: torch.device, threads: int, *, deterministic: bool) -> None:
    """Set torch's global options for a run."""
    if device.type == "cpu":
        torch.set_num_threads(threads)
    if deterministic:
        # Read by cuBLAS when it starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.benchmark = device.type == "cuda" and not deterministic


def build_trainer(
    run: Run,
    *,
    backbone: nn.Module | None = None,
    augmentation: Augmentation | None = None,
) -> Trainer:
    """Build the components of a run; arguments and ValueError as for `pretrain`."""
    spec, device = run.spec, run.device
    train = spec.train
    evaluator = None
    if len(run.data.held_out):
        encoder = ImageEncoder(
            spec, device, keepalive=run.reporter.keepalive, check=run.interruption.check_work
        )
        evaluator = Evaluator(spec.evaluate, encoder, run.data.train, run.data.held_out)
    method = _seeded_method(run, backbone)
    define_gradients(method, train.precision, device)
    criterion = Criterion(
        spec.method.name,
        method,
        spec.active_regularizers(),
        train.seed,
        device,
        build_pseudo_labels(spec, run.data),
    )
    sharded = shard(method, train, device)
    is_scaled = train.precision == "fp16"
    updater = Updater(
        build_optimizer(train.optimizer, method, learning_rate_factors(train.optimizer, method)),
        train.clip,
        [*method.restored_buffers(), *criterion.buffers()],
        device,
        scaled=is_scaled,
        deferred=device.type == "cuda" and not is_scaled,
    )
    if is_scaled:
        criterion.scale = updater.scaler.scale
    gradients = GradientComputer(
        wrap_ddp(method, run.timer) if sharded is None else sharded,
        method,
        criterion,
        micro_batches=train.micro_batches,
        is_mean=criterion.is_mean,
        autocast=partial(autocast, train.precision, device),
        scale=updater.scaler.scale,
        span=run.timer.span,
    )
    watch = InputWatch(run.data.reading(run.threads, device))
    metrics = StepMetrics(
        run.length, run.progress, run.reporter, device, train.collapse, run.timer, watch
    )
    guard = DivergenceGuard(run, flush=metrics.report)
    plotter = Plotter(run, evaluator)
    state = TrainingState(run, method, criterion, updater, plotter, sharded)
    maker = CustomViewMaker(augmentation, spec, device) if augmentation else ViewMaker(spec, device)
    return Trainer(
        run,
        method,
        criterion,
        gradients,
        updater,
        metrics,
        guard,
        Validator(run, method, evaluator, metrics, guard, plotter, sharded),
        Checkpointer(run, state, own_views=augmentation is not None),
        ViewPrefetcher(maker, device, run.timer),
        Outcomes(STEPS_IN_FLIGHT if updater.deferred else 0),
    )


def _seeded_method(run: Run, backbone: nn.Module | None) -> Method:
    """Build the method with the same weights on every rank, then seed the rank's own random stream."""
    # A checkpoint contains all weights: the start weights may no longer exist.
    spec = run.spec
    if run.files.resume is not None:
        backbone_settings = spec.backbone.model_copy(update={"pretrained": None})
        spec = spec.model_copy(update={"backbone": backbone_settings})
    torch.manual_seed(derive_seed(spec.train.seed, "weights"))
    method = build_method(spec, run.data.num_classes, backbone)
    method = method.to(device=run.device, dtype=weight_dtype(spec.train.precision))
    if spec.train.channels_last:
        method = method.to(memory_format=torch.channels_last)
    if world_size() > 1 and spec.train.sync_batch_norm:
        synchronize_batchnorm(method, run.device)
    if spec.train.checkpoint_activations:
        checkpoint_blocks(method.backbone)
    if spec.train.compile:
        for network in {method.backbone, *method.teachers()}:
            network.compile()
    torch.manual_seed(derive_seed(spec.train.seed, "rank", rank()))
    return method
