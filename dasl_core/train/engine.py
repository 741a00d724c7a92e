"""The training loop."""

import math
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dasl_core.data.index import DatasetIndex
from dasl_core.data.loader import Batch
from dasl_core.distributed import gather_objects_at_first, rank, world_size
from dasl_core.evaluate import NotFiniteError
from dasl_core.export import export_backbone
from dasl_core.methods import Outputs, Step, build_method
from dasl_core.models.backbone import feature_width
from dasl_core.models.batchnorm import synchronize_batchnorm
from dasl_core.models.checkpointing import checkpoint_blocks
from dasl_core.regularizers import angular_update
from dasl_core.seeds import derive_seed
from dasl_core.spec import ResolvedJobSpec
from dasl_core.train.checkpoint import save_state
from dasl_core.train.collapse import CollapseAlarm
from dasl_core.train.criterion import Criterion
from dasl_core.train.data import TrainingData
from dasl_core.train.evaluation import Evaluator, autocast
from dasl_core.train.figures import StepFigures, embedding_figures, spread_figures
from dasl_core.train.gradients import GradientComputer, total
from dasl_core.train.optim import build_optimizer, learning_rate_factors, set_schedules
from dasl_core.train.pseudo_labels import PseudoLabels
from dasl_core.train.reporting import Phase, Reporter
from dasl_core.train.state import Progress, TrainingState
from dasl_core.train.update import Updater
from dasl_core.train.views import ViewMaker

Outcome = Literal["succeeded", "cancelled", "paused"]

# Figures of a step stay on the device until so many steps are together: reading one waits for it.
REPORT_EVERY_STEPS = 10
# Images whose embeddings are compared before and after an update, at each report.
PROBE_IMAGES = 32


class CollapsedError(ValueError):
    """The representation has collapsed, and the job asked to be ended then."""


class DivergedError(ValueError):
    """The loss is no longer a number; going on, or trying again, would not help."""


@dataclass(frozen=True)
class RunFiles:
    """Where a run reads and writes on this machine.

    Attributes:
        cache: folder for decoded images, shared by the runs and ranks on one data set.
        scratch: folder for what is being written; checkpoints are made here and handed over.
        resume: folder of a checkpoint to go on from.
        branch: settings may have changed since that checkpoint: go on with what still fits
            (`dasl_core.spec.branch`), not exactly.
    """

    cache: Path
    scratch: Path
    resume: Path | None = None
    branch: bool = False


def pretrain(
    spec: ResolvedJobSpec,
    index: DatasetIndex,
    reporter: Reporter | None,
    files: RunFiles,
    *,
    evaluate_on: DatasetIndex | None = None,
    device: torch.device | None = None,
    threads: int = 1,
) -> Outcome:
    """Run a resolved spec from its start, or from a checkpoint, to its end.

    Every rank of the process group calls this alike; without a group it is the only rank.

    Args:
        spec: resolved: no "auto" is left.
        index: the data set to train on.
        reporter: on rank 0; None on the others.
        evaluate_on: the data set `spec.evaluate.dataset` names.
        threads: for decoding images, and for torch on a CPU.

    Raises:
        ValueError: the spec cannot run on this data; the message says why.
        DivergedError: the loss became NaN or infinite.
    """
    device = device or torch.device("cpu")
    if device.type == "cpu":
        torch.set_num_threads(threads)
    if spec.train.deterministic:
        # Read by cuBLAS when it starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(spec.train.deterministic)
    torch.backends.cudnn.benchmark = device.type == "cuda" and not spec.train.deterministic
    run = Run(spec, index, reporter, files, evaluate_on, device, threads)
    try:
        return run.train()
    finally:
        run.close()


class Run:
    """The parts of one run, wired together."""

    def __init__(
        self,
        spec: ResolvedJobSpec,
        index: DatasetIndex,
        reporter: Reporter | None,
        files: RunFiles,
        evaluate_on: DatasetIndex | None,
        device: torch.device,
        threads: int,
    ) -> None:
        self.spec, self.reporter, self.files, self.device = spec, reporter, files, device
        self.dtype = torch.float64 if spec.train.precision == "fp64" else torch.float32
        self.progress = Progress()  # `self.state` reads and restores it
        self.saved_step: int | None = None
        self.latest: dict[str, float] | None = None  # figures of the last reported step
        self.embedding_dim = 0  # known after the first step
        self.begin("reading", f"Reading {len(index)} images of {spec.dataset}")
        self.data = TrainingData.open(spec, index, evaluate_on, files.cache, threads)
        self.loader = self.data.loader
        self.total_steps = self.loader.steps * spec.train.epochs
        self.batch_size = self.loader.batch_size
        self.figures = StepFigures(self.batch_size, device)
        self.evaluator: Evaluator | None = None
        if len(self.data.held_out.samples):
            self.evaluator = Evaluator(
                spec, self.data.train, self.data.held_out, device, self.dtype, self.at_work
            )

        # Model. Same weights on every rank; then a random stream of its own for each.
        torch.manual_seed(derive_seed(spec.train.seed, "weights"))
        self.method = build_method(
            # A checkpoint brings all weights: those to start from need not be there any more.
            spec if files.resume is None else without_start(spec),
            self.data.num_classes,
        ).to(device=device, dtype=self.dtype)
        if spec.train.channels_last:
            self.method = self.method.to(memory_format=torch.channels_last)
        if world_size() > 1:
            synchronize_batchnorm(self.method, device)
        if spec.train.checkpoint_activations:
            checkpoint_blocks(self.method.backbone)
        if spec.train.compile:
            for network in {self.method.backbone, *self.method.teachers()}:
                network.compile()
        torch.manual_seed(derive_seed(spec.train.seed, "rank", rank()))
        self.optimizer = build_optimizer(
            spec.train.optimizer,
            self.method,
            learning_rate_factors(spec.train.optimizer, self.method),
        )
        self.model: nn.Module = self.method
        if world_size() > 1:
            self.model = DistributedDataParallel(
                self.method,
                device_ids=[device] if device.type == "cuda" else None,
                gradient_as_bucket_view=True,
            )
            # Statistics are computed over all ranks, so buffers are equal without a broadcast. Its
            # argument has another name from torch 2.13 on; the attribute has not.
            self.model.broadcast_buffers = False
        self.pseudo_labels: PseudoLabels | None = None
        dar = spec.dar if spec.dar is not None and spec.dar.active else None
        if dar is not None and dar.labels == "cluster" and dar.clusters.source == "kmeans":
            self.pseudo_labels = PseudoLabels(
                dar.clusters,
                torch.from_numpy(self.data.train.samples),
                self.loader.steps,
                self.batch_size // world_size(),
                spec.train.seed,
            )
        self.make_views = ViewMaker(spec, device, self.dtype)
        self.criterion = Criterion(spec, self.method, device, self.pseudo_labels)
        self.alarm = CollapseAlarm()
        self.updater = Updater(
            self.optimizer,
            spec.train.clip,
            [*self.method.buffers(), *self.criterion.buffers()],
            device,
            scaled=spec.train.precision == "fp16",
        )
        self.gradients = GradientComputer(
            self.model,
            self.method,
            self.criterion,
            parts=spec.train.micro_batches,
            adds_up=self.criterion.adds_up,
            autocast=partial(autocast, spec, device),
            scale=self.updater.scaler.scale,
        )
        self.state = TrainingState(
            spec,
            len(self.data.train.samples),
            self.data.digest(),
            self.total_steps,
            device,
            self.progress,
            self.method,
            self.criterion,
            self.pseudo_labels,
            self.optimizer,
            self.updater.scaler,
        )
        # Decisions of rank 0 travel between CPUs, so that no step waits for a GPU to hear them.
        self.control: dist.ProcessGroup | None = None
        if world_size() > 1:
            group = dist.new_group(backend="gloo")
            assert isinstance(group, dist.ProcessGroup), "every rank is in the group of all"
            self.control = group

    def train(self) -> Outcome:
        """Epochs of steps; evaluations and checkpoints between epochs."""
        self.data.check_images(self.reporter, self.control)
        if self.files.resume is not None:
            self.state.load(self.files.resume, branch=self.files.branch)
            self.saved_step = self.progress.step
            if self.progress.collapse:
                self.alarm.load_state_dict(self.progress.collapse)
            if self.progress.ended or self.progress.step < self.total_steps:
                self.end_if_collapsed()  # a process that was killed between saving and saying so
        else:
            if self.reporter is not None:
                for event in unmeasured(self.spec, len(self.data.index), self.evaluator):
                    self.reporter.event(*event)
            self.evaluate_baselines()
        train = self.spec.train
        if self.progress.step < self.total_steps:
            step = self.progress.step
            begins = f"goes on after step {step}" if step else "begins"
            self.begin("training", f"The training {begins}: {self.total_steps} steps in all")
        while self.progress.step < self.total_steps:
            epoch, first_step = divmod(self.progress.step, self.loader.steps)
            self.method.train()
            for batch in self.loader.epoch(epoch, first_step):
                if (desired := self.desired()) != "run":
                    self.report()
                    self.save(required=True)
                    return "cancelled" if desired == "cancel" else "paused"
                self.step(batch)
                if self.progress.step % self.loader.steps:  # else the epoch is closed first
                    self.end_if_collapsed()
            self.end_epoch()
            self.end_if_never_updated()
            done = epoch + 1
            if done == train.epochs:
                break
            if done % self.spec.evaluate.every_epochs == 0:
                self.evaluate("backbone")
            self.end_if_collapsed()
            if done % int(train.checkpoint_every_epochs) == 0:
                self.save(required=False)
        self.end()
        self.draw_pictures()
        return "succeeded"

    def end(self) -> None:
        """The last evaluation and the final checkpoint; of a run that died in them, once more."""
        if self.progress.ended:
            return
        if self.evaluator is not None:
            self.begin("final", "The last step is done; the final evaluation begins")
        if self.evaluator is not None and self.evaluator.trains_at_end:
            self.save(required=False)  # a probe, or fine-tuning, may take hours, and may fail
        self.evaluate("backbone")
        self.progress.ended = True
        self.saved_step = None
        self.end_if_collapsed()
        self.save(required=True)

    def step(self, batch: Batch) -> None:
        """One optimizer step on one global batch."""
        index = self.progress.step
        labels = None if self.data.labels is None else self.data.labels[batch.samples]
        step = Step(index, self.total_steps, self.loader.steps, batch.samples, labels)
        lr = set_schedules(self.optimizer, index, self.loader.steps, self.spec.train)
        views = self.make_views.make(batch, index)
        self.updater.keep_buffers()
        terms, outputs = self.gradients.backward(views, step)
        # Before the unscaling, which looks for overflow: what is frozen has no gradient to look at.
        self.method.before_update(step)
        self.updater.unscale()
        at_end = (index + 1) % self.loader.steps == 0
        reported = at_end or (index + 1) % REPORT_EVERY_STEPS == 0
        before = self.probe(views) if reported else None
        norm, updated = self.updater.apply()
        if updated:
            self.method.after_update(step)
            if self.pseudo_labels is not None:
                self.pseudo_labels.observe(outputs["embeddings"], batch.samples)
        self.progress.step += 1
        self.embedding_dim = outputs["embeddings"].shape[-1]
        seldom: dict[str, Tensor] = {}
        if before is not None:
            seldom = spread_figures(outputs["embeddings"])
            seldom["angular_update"] = angular_update(before, self.probe(views))
        self.figures.add(
            terms
            | {
                "loss": total(terms),
                "lr": torch.tensor(lr, dtype=torch.float64),
                "gradient_norm": norm,
            }
            | self.criterion.figures()
            | embedding_figures(outputs["embeddings"])
            | self.method.figures(outputs, step)
            | seldom
        )
        if self.updater.overflowed:
            self.progress.overflowed += 1
        else:
            self.count_skipped(updated, batch)
        if reported:
            # Only here, at steps that a run which was stopped and goes on reports, too.
            self.watch(self.report() | {"embedding_dim": self.embedding_dim})

    @torch.no_grad()
    def probe(self, views: list[Tensor]) -> Tensor:
        """Embeddings (P, h) of a few of the batch's images as evaluation would see them: how far
        they turn in one update tells how fast the network learns (SEC's question)."""
        self.method.eval()
        with autocast(self.spec, self.device):
            outputs: Outputs = self.method([view[:PROBE_IMAGES] for view in views[:2]])
        self.method.train()
        return outputs["embeddings"][0]

    def count_skipped(self, updated: bool, batch: Batch) -> None:
        """Tell of a step that was left out; end the run when there are too many in a row."""
        progress = self.progress
        if updated:
            progress.skipped_in_a_row = 0
            return
        progress.skipped += 1
        progress.skipped_in_a_row += 1
        index = self.data.index
        names = [index.paths[sample] for sample in batch.samples.tolist()]
        if self.reporter is not None:
            self.reporter.event(
                "step_skipped",
                f"step {progress.step} was left out: its gradients are not finite",
                {"step": progress.step, "skipped": progress.skipped, "images": names[:100]},
            )
        if progress.skipped_in_a_row > self.spec.train.skip_not_finite:
            self.report()
            few = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            raise self.diverged(
                f"the gradients of {progress.skipped_in_a_row} steps in a row are not finite, the "
                f"last one's at step {progress.step}, with the images {few}"
            )

    def report(self) -> dict[str, float]:
        """Send the figures of the steps since the last time; returns those of the last one, if any."""
        values = self.figures.flush()
        if not values:
            return {}
        first = self.progress.step - len(values) + 1
        # One by one: the sum must not depend on where a resumed run reports.
        for loss in (row["loss"] for row in values):
            if math.isfinite(loss):
                self.progress.epoch_loss_sum += loss
                self.progress.epoch_loss_steps += 1
        if self.reporter is not None:
            points = [
                {"step": first + i, "time": time.time(), "values": row}
                for i, row in enumerate(values)
            ]
            self.reporter.metrics(points)
            self.latest = values[-1]
            self.reporter.progress(self.describe(self.latest))
        return values[-1]

    def watch(self, figures: dict[str, float]) -> None:
        """Tell of a collapse, and remember it if it is to end the run: all ranks see the same."""
        wanted = self.spec.train.collapse
        if wanted == "ignore":
            return
        alarms = self.alarm.observe(figures, self.progress.step / self.total_steps)
        self.progress.collapse = self.alarm.state_dict()
        for alarm in alarms:
            if self.reporter is not None:
                data = {"cause": alarm.cause, "figures": alarm.figures}
                self.reporter.event("collapse", alarm.message, data)
        if alarms and wanted == "stop":
            self.progress.collapsed = alarms[0].message

    def end_if_collapsed(self) -> None:
        """End a run that has collapsed and asked to be ended then, with all that it has."""
        if self.progress.collapsed is not None:
            self.save(required=True)
            raise CollapsedError(self.progress.collapsed)

    def end_if_never_updated(self) -> None:
        """What no step has changed is no result."""
        progress = self.progress
        if progress.skipped + progress.overflowed < self.total_steps:
            return
        if progress.overflowed:
            raise DivergedError(
                f"no loss scale of float16 was found in {self.total_steps} steps, so none of them "
                "changed a weight; train for more steps, or with train.precision bf16"
            )
        raise self.diverged(f"none of the {self.total_steps} steps had finite gradients")

    def diverged(self, what: str) -> DivergedError:
        """The error that ends a run, with what a person can do."""
        lr = self.spec.train.optimizer.lr
        return DivergedError(f"{what}; try a lower train.optimizer.lr than {lr} or more warm-up")

    def describe(self, values: dict[str, float]) -> dict[str, Any]:
        """Progress for people."""
        step, speed = self.progress.step, values["images_per_second"]
        metrics = self.progress.evaluations[-1]["metrics"] if self.progress.evaluations else {}
        return {
            "step": step,
            "total_steps": self.total_steps,
            "epoch": round(step / self.loader.steps, 3),
            "epochs": self.spec.train.epochs,
            "loss": values["loss"],
            "images_per_second": speed,
            "eta_seconds": (self.total_steps - step) * self.batch_size / speed,
            "knn": metrics.get("knn_top1"),
            "recall_at_1": metrics.get("recall_at_1"),
        }

    def begin(self, phase: Phase, message: str) -> None:
        """Tell that a part of the run begins."""
        if self.reporter is not None:
            self.reporter.phase(phase, message)

    def at_work(self) -> None:
        """Tell that an evaluation goes on."""
        if self.reporter is not None:
            self.reporter.at_work()

    def desired(self) -> str:
        """What a person wants, the same on all ranks: rank 0 knows and tells."""
        desired = self.reporter.desired() if self.reporter is not None else "run"
        if self.control is None:
            return desired
        choices = ["run", "cancel", "pause"]
        told = torch.tensor(choices.index(desired))
        dist.broadcast(told, 0, group=self.control)
        return choices[int(told)]

    def end_epoch(self) -> None:
        """Close the epoch's mean loss."""
        self.data.check_images(self.reporter, self.control)
        progress = self.progress
        steps = progress.epoch_loss_steps
        progress.losses.append(progress.epoch_loss_sum / steps if steps else None)
        progress.epoch_loss_sum, progress.epoch_loss_steps = 0.0, 0
        if self.pseudo_labels is not None:
            classes = self.data.labels
            if classes is not None:
                classes = classes[torch.from_numpy(self.data.train.samples)]
            figures = self.pseudo_labels.end_epoch(len(progress.losses), classes)
            if figures and self.reporter is not None:
                values = {f"clusters_{name}": value for name, value in figures.items()}
                self.reporter.metrics(
                    [{"step": progress.step, "time": time.time(), "values": values}]
                )

    def evaluate_baselines(self) -> None:
        """What the pixels and the untrained network are worth, before the first step."""
        if self.evaluator is not None:
            images = len(self.data.held_out.samples)
            self.begin("baselines", f"Evaluating the untrained network on {images} held-out images")
        if self.evaluator is not None and self.evaluator.labels is not None:
            self.record("raw", self.evaluator.raw_pixels())
        self.evaluate("untrained")

    def evaluate(self, subject: Literal["untrained", "backbone"]) -> None:
        """Measure the backbone on held-out images."""
        if self.evaluator is not None:
            try:
                metrics = self.evaluator.backbone(
                    self.method.representation, final=self.progress.step == self.total_steps
                )
            except NotFiniteError as error:
                # The last update lost the weights: no loss has shown it yet.
                raise self.diverged(f"after step {self.progress.step}, {error}") from error
            self.record(subject, metrics)
            # The untrained network's, too: whether a rank has fallen shows beside it.
            seen: dict[str, float] = {
                "effective_rank": metrics.get("effective_rank", math.nan),
                # So few images span no more dimensions than there are of them.
                "embedding_dim": min(
                    feature_width(self.method.representation), len(self.data.held_out.samples)
                ),
            }
            if self.spec.method.supervised and self.data.num_classes is not None:
                seen["num_classes"] = self.data.num_classes
            self.watch(seen)
        self.figures.leave_out_time()

    def record(
        self, subject: Literal["raw", "untrained", "backbone"], metrics: dict[str, float]
    ) -> None:
        """Keep an evaluation and report it."""
        step, epoch = self.progress.step, self.progress.step / self.loader.steps
        self.progress.evaluations.append(
            {"step": step, "epoch": epoch, "subject": subject, "metrics": metrics}
        )
        if self.reporter is not None:
            self.reporter.evaluation(step, epoch, subject, metrics)
            if self.latest is not None:  # progress shows the newest figures
                self.reporter.progress(self.describe(self.latest))

    def save(self, *, required: bool) -> None:
        """Write a checkpoint from which the run would go on exactly, and hand it over.

        A disk that is full, or a store that does not answer, is told of and tried again at the next
        one, unless this one is `required`: at the end, or where the run stops.
        """
        if self.saved_step == self.progress.step:
            return  # a cancel right after a save finds it done
        ranks = gather_objects_at_first(self.state.of_rank(), self.control)
        saved = torch.tensor(True)
        if self.reporter is not None:
            assert ranks is not None, "rank 0 has the reporter"
            try:
                self.hand_over(self.state.collect(ranks), self.reporter)
            except (OSError, SafetensorError) as error:
                message = (
                    f"The checkpoint of step {self.progress.step} could not be written: {error}"
                )
                if required:
                    raise OSError(message) from error
                saved = torch.tensor(False)
                self.reporter.event("checkpoint_failed", message, {"step": self.progress.step})
        if self.control is not None:
            dist.broadcast(saved, 0, group=self.control)
        if saved:
            self.saved_step = self.progress.step
        self.figures.leave_out_time()

    def hand_over(self, state: dict[str, Any], reporter: Reporter) -> None:
        """Write the files of a checkpoint and give them to the reporter."""
        progress = self.progress
        epoch = progress.step / self.loader.steps
        latest = progress.evaluations[-1]["metrics"] if progress.evaluations else {}
        with tempfile.TemporaryDirectory(dir=self.files.scratch) as name:
            folder = Path(name)
            save_state(state, folder)
            metrics = {
                "step": progress.step,
                "epoch": epoch,
                "evaluations": progress.evaluations,
                "epoch_losses": progress.losses,
                "data": self.data.facts(),
                "unreadable_images": sum(self.data.unreadable.values()),
            }
            missing = export_backbone(
                self.method.representation, self.spec, metrics, folder, onnx=progress.ended
            )
            if missing is not None:
                reporter.event("onnx_missing", missing, {"step": progress.step})
            reporter.checkpoint(folder, progress.step, epoch, latest, progress.ended)

    def draw_pictures(self) -> None:
        """Curves, and the nearest neighbours of a few held-out images, as artifacts."""
        features = None
        if self.evaluator is not None and len(self.data.held_out.samples) > 1:
            self.method.eval()
            features = self.evaluator.features(self.method.representation, self.data.held_out)
        if self.reporter is None:
            return
        curves = self.files.scratch / "curves.png"
        losses = [math.nan if loss is None else loss for loss in self.progress.losses]
        try:
            # Only now and only here: Matplotlib's import would keep every rank from its first step,
            # and wants a folder of its own to write to.
            from dasl_core.train.pictures import draw_curves, draw_neighbours

            draw_curves(losses, self.progress.evaluations, self.spec.name, curves)
            self.reporter.artifact(curves)
            if features is not None:
                neighbours = self.files.scratch / "neighbours.png"
                draw_neighbours(features, self.data.held_out, neighbours)
                self.reporter.artifact(neighbours)
        except OSError as error:  # a disk that is full: the run is over, and its weights are safe
            message = f"The pictures could not be written: {error}"
            self.reporter.event("pictures_missing", message, {"step": self.progress.step})

    def close(self) -> None:
        """End the threads that decode."""
        self.data.close()


def without_start(spec: ResolvedJobSpec) -> ResolvedJobSpec:
    """The same spec from random weights."""
    backbone = spec.backbone.model_copy(update={"pretrained": None})
    return spec.model_copy(update={"backbone": backbone})


def unmeasured(
    spec: ResolvedJobSpec, images: int, evaluator: Evaluator | None
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Type, message and data of the events that say what a run will not measure, and why."""
    if evaluator is None:
        fraction = spec.evaluate.holdout.fraction
        message = (
            f"evaluate.holdout.fraction {fraction:g} of {images} images is none: nothing is held out, "
            "and only the loss is measured"
        )
        yield "nothing_held_out", message, {"images": images, "fraction": fraction}
    elif evaluator.train_labels is None:
        asked = [name for name in ("linear", "finetune") if getattr(spec.evaluate, name)]
        if asked:
            names = " and ".join(f"evaluate.{name}" for name in asked)
            message = (
                f"{names} will not be measured: a classifier needs held-out images of classes that "
                "are trained on, too"
            )
            yield "classifier_not_measured", message, {"evaluations": asked}
