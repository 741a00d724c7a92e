"""The training loop."""

import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dasl_core.data.augment import draw_view, render
from dasl_core.data.index import DatasetIndex
from dasl_core.data.loader import Batch, Canvases, EpochLoader
from dasl_core.data.split import split
from dasl_core.distributed import gather_views, mean_over_ranks, rank, world_size
from dasl_core.evaluate import NotFiniteError
from dasl_core.export import export_backbone
from dasl_core.methods import MethodOutput, build_method
from dasl_core.models.batchnorm import synchronize_batchnorm
from dasl_core.regularizers import SphericalEmbeddingConstraint, difference_alignment
from dasl_core.regularizers.norms import full_precision
from dasl_core.seeds import derive_seed, stream
from dasl_core.spec import JobSpec
from dasl_core.train.checkpoint import (
    load_state,
    random_state,
    restore_random_state,
    save_state,
)
from dasl_core.train.evaluation import Evaluator, ImageSet, autocast
from dasl_core.train.optim import build_optimizer, learning_rate
from dasl_core.train.reporting import Reporter

Outcome = Literal["succeeded", "cancelled", "paused"]

# Figures of a step stay on the device until so many steps are together: reading one waits for it.
REPORT_EVERY_STEPS = 10


# Of the training state; raised when an older one can no longer be read.
FORMAT = 1


class DivergedError(ValueError):
    """The loss is no longer a number; going on, or trying again, would not help."""


@dataclass
class Progress:
    """Where a run is. Saved with every checkpoint."""

    step: int = 0
    losses: list[float] = field(default_factory=list)  # mean of each finished epoch
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    epoch_loss_sum: float = 0.0  # of the epoch under way
    epoch_loss_steps: int = 0


@dataclass(frozen=True)
class RunFiles:
    """Where a run reads and writes on this machine.

    Attributes:
        cache: folder for decoded images, shared by the runs and ranks on one data set.
        scratch: folder for what is being written; checkpoints are made here and handed over.
        resume: folder of a checkpoint to go on from.
    """

    cache: Path
    scratch: Path
    resume: Path | None = None


def pretrain(
    spec: JobSpec,
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
    run = Run(spec, index, reporter, files, evaluate_on, device, threads)
    try:
        return run.train()
    finally:
        run.close()


class Run:
    """The parts of one run, wired together."""

    def __init__(
        self,
        spec: JobSpec,
        index: DatasetIndex,
        reporter: Reporter | None,
        files: RunFiles,
        evaluate_on: DatasetIndex | None,
        device: torch.device,
        threads: int,
    ) -> None:
        self.spec, self.reporter, self.files, self.device = spec, reporter, files, device
        self.dtype = torch.float64 if spec.train.precision == "fp64" else torch.float32
        self.progress = Progress()
        self.saved_step: int | None = None
        self.latest: dict[str, float] | None = None  # figures of the last reported step
        self._pending: list[dict[str, Tensor]] = []
        self._reported_at = time.perf_counter()

        # Data
        assert isinstance(spec.backbone.image_size, int), "resolve the spec first"
        assert isinstance(spec.train.batch_size, int), "resolve the spec first"
        self.image_size, self.batch_size = spec.backbone.image_size, spec.train.batch_size

        def canvases(of: DatasetIndex) -> Canvases:
            channels = spec.backbone.in_channels
            return Canvases(of, self.image_size, channels, cache=files.cache, threads=threads)

        own = canvases(index)
        if evaluate_on is None:
            parts = split(index, spec.evaluate.holdout)
            train, held_out = ImageSet(own, parts.train), ImageSet(own, parts.held_out)
        else:
            other = canvases(evaluate_on)
            train = ImageSet(own, np.arange(len(index)))
            held_out = ImageSet(other, np.arange(len(evaluate_on)))
        self.train_set, self.held_out = train, held_out
        self.loader = EpochLoader(own, train.samples, self.batch_size, spec.train.seed)
        self.total_steps = self.loader.steps * spec.train.epochs
        self.evaluator = (
            Evaluator(spec, train, held_out, device, self.dtype) if len(held_out.samples) else None
        )

        # Model. Same weights on every rank; then a random stream of its own for each.
        torch.manual_seed(derive_seed(spec.train.seed, "weights"))
        self.method = build_method(spec).to(device=device, dtype=self.dtype)
        if world_size() > 1:
            synchronize_batchnorm(self.method, device)
        torch.manual_seed(derive_seed(spec.train.seed, "rank", rank()))
        self.constraint = (
            SphericalEmbeddingConstraint(spec.sec.target, spec.sec.momentum).to(device)
            if spec.sec is not None and spec.sec.weight > 0
            else None
        )
        self.optimizer = build_optimizer(spec.train.optimizer, self.method)
        self.model: nn.Module = self.method
        if world_size() > 1:
            self.model = DistributedDataParallel(
                self.method,
                device_ids=[device] if device.type == "cuda" else None,
                # Statistics are computed over all ranks, so buffers are equal without a broadcast.
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
            )
        # Decisions of rank 0 travel between CPUs, so that no step waits for a GPU to hear them.
        self.control: dist.ProcessGroup | None = None
        if world_size() > 1:
            group = dist.new_group(backend="gloo")
            assert isinstance(group, dist.ProcessGroup), "every rank is in the group of all"
            self.control = group

    def train(self) -> Outcome:
        """Epochs of steps; evaluations and checkpoints between epochs."""
        if self.files.resume is not None:
            self.load(self.files.resume)
        else:
            self.evaluate_baselines()
        train = self.spec.train
        while self.progress.step < self.total_steps:
            epoch, first_step = divmod(self.progress.step, self.loader.steps)
            self.method.train()
            for batch in self.loader.epoch(epoch, first_step):
                if (desired := self.desired()) != "run":
                    self.report()
                    self.save()
                    return "cancelled" if desired == "cancel" else "paused"
                self.step(batch)
            self.end_epoch()
            done = epoch + 1
            last = done == train.epochs
            if last or done % int(self.spec.evaluate.every_epochs) == 0:
                self.evaluate("backbone")
            if last or done % int(train.checkpoint_every_epochs) == 0:
                self.save()
        self.draw_pictures()
        return "succeeded"

    def step(self, batch: Batch) -> None:
        """One optimizer step on one global batch."""
        step, train = self.progress.step, self.spec.train
        lr = learning_rate(step, self.loader.steps, train)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        views = self.views(batch, step)
        with autocast(self.spec, self.device):
            output: MethodOutput = self.model(views)
        terms = self.loss_terms(output, step)
        loss = torch.stack(list(terms.values())).sum()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.progress.step += 1

        embeddings = output.embeddings.detach().flatten(0, 1).float()
        norms = torch.linalg.vector_norm(embeddings, dim=1)
        directions = embeddings / norms.clamp(min=1e-12).unsqueeze(1)
        self._pending.append(
            {name: value.detach() for name, value in terms.items()}
            | {
                "loss": loss.detach(),
                "lr": torch.tensor(lr, dtype=torch.float64),
                "embedding_norm": norms.mean(),
                "embedding_std": directions.std(dim=0).mean(),
            }
        )
        at_end = self.progress.step % self.loader.steps == 0
        if at_end or self.progress.step % REPORT_EVERY_STEPS == 0:
            self.report()

    def views(self, batch: Batch, step: int) -> list[Tensor]:
        """The method's random views of this rank's images, on the device.

        Parameters are drawn for the global batch and cut to the rank's share. Each sample's come
        from its own row of random numbers, so the extents of the other ranks' images, which this
        one does not know, do not matter.
        """
        canvases = batch.canvases.to(self.device, non_blocking=True)
        share = len(batch.samples)
        first = rank() * share
        extents = torch.ones(self.batch_size, 2, dtype=batch.extents.dtype)
        extents[first : first + share] = batch.extents
        views = []
        for view in range(self.method.num_views):
            generator = stream(self.spec.train.seed, "augment", step, view)
            drawn = draw_view(extents, self.spec.augment, generator).rows(first, first + share)
            drawn = drawn.to(self.device, self.dtype)
            views.append(render(canvases, batch.extents, drawn, self.image_size, self.dtype))
        return views

    def loss_terms(self, output: MethodOutput, step: int) -> dict[str, Tensor]:
        """The method's loss and the weighted regularizers, each a scalar, by name.

        The regularizers see the embeddings of the global batch and are computed alike on all ranks.
        """
        spec = self.spec
        terms = {f"loss_{spec.method.name}": output.loss}
        dar = spec.dar if spec.dar is not None and spec.dar.weight > 0 else None
        if dar is None and self.constraint is None:
            return terms
        # Before the gather: its backward sums over ranks, which bfloat16 would round.
        embeddings = gather_views(full_precision(output.embeddings))  # (V, N, h)
        if dar is not None:
            views, samples, _ = embeddings.shape
            # Cluster-free: an image's views share its label, so they are never a pair. On the CPU,
            # where the chain is drawn: no step waits for a GPU.
            labels = torch.arange(samples).repeat(views)
            alignment = difference_alignment(
                embeddings.flatten(0, 1),
                labels,
                norm=dar.norm,
                difference=dar.difference,
                estimator=dar.estimator,
                reduction=dar.reduction,
                normalize=dar.normalize,
                generator=stream(spec.train.seed, "dar", step),
            )
            terms["loss_dar"] = dar.weight * alignment
        if self.constraint is not None:
            assert spec.sec is not None
            ramp = step / max(1, self.total_steps - 1) if spec.sec.ramp else 1.0
            terms["loss_sec"] = spec.sec.weight * ramp * self.constraint(embeddings.flatten(0, 1))
        return terms

    def report(self) -> None:
        """Send the figures of the steps since the last time; stop the run if the loss is lost."""
        if not self._pending:
            return
        names = list(self._pending[0])
        rows = [
            [point[name].to(self.device, torch.float64) for name in names]
            for point in self._pending
        ]
        table = mean_over_ranks(torch.stack([torch.stack(row) for row in rows])).tolist()
        first = self.progress.step - len(table) + 1
        self._pending.clear()
        now = time.perf_counter()
        speed = len(table) * self.batch_size / max(now - self._reported_at, 1e-9)
        self._reported_at = now
        values = [
            dict(zip(names, row, strict=True)) | {"images_per_second": speed} for row in table
        ]
        losses = [row["loss"] for row in values]
        for loss in losses:  # one by one: the sum must not depend on where a resumed run reports
            self.progress.epoch_loss_sum += loss
        self.progress.epoch_loss_steps += len(losses)
        if self.reporter is not None:
            points = [
                {"step": first + i, "time": time.time(), "values": row}
                for i, row in enumerate(values)
            ]
            self.reporter.metrics(points)
            self.latest = values[-1]
            self.reporter.progress(self.describe(self.latest))
        if not np.isfinite(losses).all():
            lost = int(np.flatnonzero(~np.isfinite(losses))[0])
            raise self.diverged(f"the loss is {losses[lost]} at step {first + lost}")

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
        progress = self.progress
        progress.losses.append(progress.epoch_loss_sum / progress.epoch_loss_steps)
        progress.epoch_loss_sum, progress.epoch_loss_steps = 0.0, 0

    def evaluate_baselines(self) -> None:
        """What the pixels and the untrained network are worth, before the first step."""
        if self.evaluator is not None and self.evaluator.labels is not None:
            self.record("raw", self.evaluator.raw_pixels())
        self.evaluate("untrained")

    def evaluate(self, subject: Literal["untrained", "backbone"]) -> None:
        """Measure the backbone on held-out images."""
        if self.evaluator is not None:
            try:
                metrics = self.evaluator.backbone(self.method.backbone)
            except NotFiniteError as error:
                # The last update lost the weights: no loss has shown it yet.
                raise self.diverged(f"after step {self.progress.step}, {error}") from error
            self.record(subject, metrics)
        self._reported_at = time.perf_counter()  # images/s is of training

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

    def save(self) -> None:
        """Write a checkpoint from which the run would go on exactly, and hand it over."""
        if self.saved_step == self.progress.step:
            return  # a cancel right after a save finds it done
        self.saved_step = self.progress.step
        random_states: list[Any] = [random_state(self.device)]
        if self.control is not None:
            random_states = [None] * world_size()
            dist.all_gather_object(random_states, random_state(self.device), group=self.control)
        if self.reporter is not None:
            progress = self.progress
            epoch = progress.step / self.loader.steps
            latest = progress.evaluations[-1]["metrics"] if progress.evaluations else {}
            with tempfile.TemporaryDirectory(dir=self.files.scratch) as name:
                folder = Path(name)
                save_state(self.state(random_states), folder)
                metrics = {
                    "step": progress.step,
                    "epoch": epoch,
                    "evaluations": progress.evaluations,
                    "epoch_losses": progress.losses,
                }
                export_backbone(self.method.backbone, self.spec, metrics, folder)
                final = progress.step == self.total_steps
                self.reporter.checkpoint(folder, progress.step, epoch, latest, final)
        if self.control is not None:
            dist.barrier(group=self.control)
        self._reported_at = time.perf_counter()

    def state(self, random_states: list[Any]) -> dict[str, Any]:
        """All that the next step depends on. The schedule, the order of images, the views and the
        chain are functions of the step, so the step is their state."""
        return {
            "format": FORMAT,
            "spec": self.deciding_parts(),
            "progress": vars(self.progress).copy(),
            "method": dict(self.method.state_dict()),
            "constraint": dict(self.constraint.state_dict()) if self.constraint else None,
            "optimizer": self.optimizer.state_dict(),
            "random": random_states,
        }

    def deciding_parts(self) -> dict[str, Any]:
        """The settings that decide every step, JSON-ready."""
        parts = {"method", "backbone", "augment", "dar", "sec", "train"}
        return self.spec.model_dump(mode="json", include=parts) | {
            "train_images": len(self.train_set.samples)
        }

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint of the same spec on the same number of ranks."""
        state = load_state(folder)
        if state.get("format") != FORMAT:
            raise ValueError(f"{folder} holds the training state of another version")
        own = self.deciding_parts()
        if changed := [part for part in own if state["spec"][part] != own[part]]:
            raise ValueError(
                "the checkpoint is of a run with other settings and cannot go on exactly: "
                f"{', '.join(changed)} differ"
            )
        if len(state["random"]) != world_size():
            raise ValueError(
                f"the checkpoint was written by {len(state['random'])} workers and cannot go on "
                f"exactly with {world_size()}"
            )
        self.progress = Progress(**state["progress"])
        self.saved_step = self.progress.step
        self.method.load_state_dict(state["method"])
        if self.constraint is not None:
            self.constraint.load_state_dict(state["constraint"])
        self.optimizer.load_state_dict(state["optimizer"])
        restore_random_state(state["random"][rank()], self.device)

    def draw_pictures(self) -> None:
        """Curves, and the nearest neighbours of a few held-out images, as artifacts."""
        features = None
        if self.evaluator is not None and len(self.held_out.samples) > 1:
            self.method.backbone.eval()
            features = self.evaluator.features(self.method.backbone, self.held_out)
        if self.reporter is None:
            return
        # Only now and only here: Matplotlib's import would keep every rank from its first step.
        from dasl_core.train.pictures import draw_curves, draw_neighbours

        curves = self.files.scratch / "curves.png"
        draw_curves(self.progress.losses, self.progress.evaluations, self.spec.name, curves)
        self.reporter.artifact(curves)
        if features is not None:
            neighbours = self.files.scratch / "neighbours.png"
            draw_neighbours(features, self.held_out, neighbours)
            self.reporter.artifact(neighbours)

    def close(self) -> None:
        """End the threads that decode."""
        for canvases in {
            id(s.canvases): s.canvases for s in (self.train_set, self.held_out)
        }.values():
            canvases.close()
