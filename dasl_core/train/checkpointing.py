"""Checkpoints of a run: what the training state contains, and how it is saved, published and restored."""

import copy
import logging
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import nn

from dasl_core.distributed import broadcast_int, gather_objects_to_rank0, rank, world_size
from dasl_core.export import export_backbone
from dasl_core.machine import available_memory
from dasl_core.methods import Method
from dasl_core.seeds import random_state, restore_random_state
from dasl_core.spec import ResolvedJobSpec, versions
from dasl_core.spec.base import shorten
from dasl_core.train.background import BackgroundCall, copy_to_cpu
from dasl_core.train.criterion import Criterion
from dasl_core.train.data import TrainingData
from dasl_core.train.plotting import Plotter
from dasl_core.train.progress import Progress, RunLength
from dasl_core.train.pseudo_labels import PseudoLabels
from dasl_core.train.reporter import Reporter
from dasl_core.train.serialization import StateCopy, load_state
from dasl_core.vocabulary import TRAINED

logger = logging.getLogger(__name__)

# Raised when an older training state can no longer be read.
FORMAT = 1

RETRY_SECONDS = 60.0
"""After a failed save, the next one comes this much later, after each further failure twice as much."""


class CheckpointFailed(OSError):
    """A checkpoint could not be written.

    Attributes:
        cause: the error of the disk or the store, which decides about a retry. Unlike `__cause__` it survives the
            way from a rank to its driver.
    """

    cause: OSError | None = None


@dataclass
class Checkpointer:
    """Saves the training state and the exported backbone, publishes them, and resumes from them.

    Attributes:
        control: CPU group for the ranks' decisions; None with one rank.
        scratch: folder in which checkpoints are written before they are published.
        resume_from: folder of the checkpoint to resume from.
        branch: the settings may differ from that checkpoint's: take over what still fits
            (`dasl_core.spec.branch`) instead of resuming exactly.
        saved_step: step of the newest checkpoint, which may still be written; None when there is none.
    """

    spec: ResolvedJobSpec
    state: "TrainingState"
    data: TrainingData
    length: RunLength
    reporter: Reporter
    control: dist.ProcessGroup | None
    scratch: Path
    resume_from: Path | None = None
    branch: bool = False
    saved_step: int | None = None
    _write: BackgroundCall[bool] | None = None  # on rank 0
    _being_written: bool = False  # on all ranks
    _last_try: float = field(default_factory=lambda: monotonic())
    _failures: int = 0  # in a row, on rank 0

    def is_overdue(self) -> bool:
        """Whether a checkpoint is due within the epoch: the last one was `checkpoints.every_minutes` ago.

        After a failed save it is due sooner: the work since the last checkpoint is at risk already. The pauses
        grow, because a save may hold the training while a store is away. Only the answer of rank 0 counts.
        """
        minutes = self.spec.checkpoints.every_minutes
        within_epoch = self.state.progress.step % self.length.steps_per_epoch != 0
        if not within_epoch:
            return False
        regular = inf if minutes is None else 60 * minutes
        failures = self._failures_in_a_row()
        # A float overflows at 2 to the power of 1024.
        pause = RETRY_SECONDS * 2.0 ** min(failures - 1, 20) if failures else inf
        return monotonic() - self._last_try >= min(regular, pause)

    def is_due(self, epochs: int) -> bool:
        """Whether a checkpoint is saved after this many epochs."""
        return epochs % self.spec.train.checkpoint_every_epochs == 0

    def resume(self) -> bool:
        """Restore the checkpoint to resume from; False when there is none.

        Raises:
            ValueError: it cannot be read, or does not fit; the message says why.
        """
        if self.resume_from is None:
            return False
        self.state.load(self.resume_from, branch=self.branch)
        self.saved_step = self.state.progress.step
        return True

    def save(self, *, required: bool) -> None:
        """Save and publish a checkpoint from which the run resumes exactly, once per step.

        One that is not required is written in the background if the memory allows; the next save waits for it.

        Args:
            required: write it now, and fail where it cannot be written. Otherwise a full disk or an unavailable
                store is reported, and the next checkpoint tries again.

        Raises:
            CheckpointFailed: a required checkpoint could not be written.
        """
        began = monotonic()
        self._wait()
        step = self.state.progress.step
        if self.saved_step == step:
            return  # a cancel right after a save
        ranks = gather_objects_to_rank0(self.state.rank_state_dict(), self.control)
        result = _Result.WRITTEN
        if ranks is not None:
            snapshot = self._take_snapshot(ranks)
            self.reporter.keepalive()
            if not required and self._may_write_in_background(snapshot):
                self._write = BackgroundCall(lambda: self._try_to_publish(snapshot))
                result = _Result.BEING_WRITTEN
            elif required:
                self._publish(snapshot)
            elif not self._try_to_publish(snapshot):
                result = _Result.FAILED
            self._count(result)
            logger.info("saving step %d held the training for %.2f s", step, monotonic() - began)
        self._last_try = monotonic()
        result = _Result(broadcast_int(result, self.control))
        self._being_written = result == _Result.BEING_WRITTEN
        if result != _Result.FAILED:
            self.saved_step = step

    def check_write(self) -> None:
        """Raise the error of a checkpoint beside the training, if it has ended with one. Never waits.

        Only rank 0 writes. Its error makes the collectives of the other ranks fail, too.

        Raises:
            Exception: it could not be written, for another reason than a full disk or an unavailable store.
        """
        # A full disk or an unavailable store is known to all ranks at the next save.
        if self._write is not None and self._write.error is not None:
            write, self._write = self._write, None
            write.result()

    def close(self) -> None:
        """Wait for the checkpoint that is being written. Only needed after an error: saving waits, too."""
        if self._write is None:
            return
        try:
            self._write.result()
        except Exception:  # the error that ends the run must not be replaced
            logger.exception("the checkpoint beside the training failed, too")

    def _wait(self) -> None:
        """Wait on all ranks until the checkpoint of the last save is written; it may have failed."""
        if not self._being_written:
            return
        write, self._write, self._being_written = self._write, None, False
        written = write.result() if write is not None else True
        self._count(_Result.WRITTEN if written else _Result.FAILED)
        if not broadcast_int(int(written), self.control):
            self.saved_step = None

    def _count(self, result: "_Result") -> None:
        """Count failed saves in a row."""
        if result != _Result.BEING_WRITTEN:
            self._failures = self._failures + 1 if result == _Result.FAILED else 0

    def _failures_in_a_row(self) -> int:
        """How many saves have failed since one that was written, or is still being written. Never waits."""
        if self._write is None:
            return self._failures
        failed = self._write.has_returned and not self._write.result()
        return self._failures + 1 if failed else 0

    def _may_write_in_background(self, snapshot: "_Snapshot") -> bool:
        """Whether the memory has room for a snapshot while the training continues, and as much again."""
        # A copy shares nothing with a network that the steps change.
        return snapshot.is_copied and available_memory() >= snapshot.state.size

    def _take_snapshot(self, ranks: list[dict[str, Any]]) -> "_Snapshot":
        """Copy all that a checkpoint contains."""
        progress, method = self.state.progress, self.state.method
        # Baselines are no metrics of a checkpoint: they would rank it.
        trained = [e["metrics"] for e in progress.evaluations if e["subject"] in TRAINED]
        metrics = {
            "step": progress.step,
            "epoch": self.length.epoch_at(progress.step),
            "evaluations": progress.evaluations,
            "epoch_losses": progress.losses,
            "verdict": progress.verdict,
            "data": self.data.facts(),
            "unreadable_images": sum(self.data.unreadable.values()),
        }
        head = method.embedding_head if self.spec.method.supervised else None
        # A network of one's own need not be copyable.
        is_copied = not (progress.ended or self.spec.backbone.is_own)
        return _Snapshot(
            state=StateCopy.of(self.state.state_dict(ranks)),
            metrics=copy.deepcopy(metrics),
            latest=dict(trained[-1]) if trained else {},
            network=copy_to_cpu(method.representation) if is_copied else method.representation,
            head=copy_to_cpu(head) if is_copied and head is not None else head,
            is_copied=is_copied,
            ended=progress.ended,
        )

    def _try_to_publish(self, snapshot: "_Snapshot") -> bool:
        """Publish a checkpoint that is not required; report it and return False if that failed."""
        try:
            self._publish(snapshot)
        except OSError as error:
            data = {"step": snapshot.metrics["step"]}
            self.reporter.event("checkpoint_failed", str(error), data)
            return False
        return True

    def _publish(self, snapshot: "_Snapshot") -> None:
        """Write the files of a checkpoint and pass them to the reporter.

        Raises:
            CheckpointFailed: they could not be written.
        """
        step, epoch = snapshot.metrics["step"], snapshot.metrics["epoch"]
        try:
            with tempfile.TemporaryDirectory(dir=self.scratch) as name:
                folder = Path(name)
                snapshot.state.write(folder)
                missing = export_backbone(
                    snapshot.network,
                    self.spec,
                    snapshot.metrics,
                    folder,
                    head=snapshot.head,
                    onnx=snapshot.ended,
                )
                if missing is not None:
                    self.reporter.event("onnx_missing", missing, {"step": step})
                self.reporter.checkpoint(folder, step, epoch, snapshot.latest, snapshot.ended)
        except (OSError, SafetensorError) as error:
            failed = CheckpointFailed(
                f"The checkpoint of step {step} could not be written: {error}"
            )
            failed.cause = error if isinstance(error, OSError) else None
            raise failed from error


class _Result(IntEnum):
    FAILED, WRITTEN, BEING_WRITTEN = 0, 1, 2


@dataclass(frozen=True)
class _Snapshot:
    """All that a checkpoint contains.

    Attributes:
        latest: metrics of the last evaluation.
        is_copied: whether `network` and `head` are copies, which no step changes.
    """

    state: StateCopy
    metrics: dict[str, Any]
    latest: dict[str, float]
    network: nn.Module
    head: nn.Module | None
    is_copied: bool
    ended: bool


@dataclass(frozen=True)
class TrainingState:
    """All state that the next step depends on.

    The schedule, the order of images, the views and the chain are functions of the step, so the step is
    their state.

    Attributes:
        settings: of the spec that decide every step (`StepSettings.deciding`), JSON-ready.
        images_digest: of the names and sizes of the training images, in order: an image is known by
            its position.
    """

    settings: dict[str, Any]
    train_images: int
    images_digest: str
    total_steps: int
    device: torch.device
    progress: Progress
    method: Method
    criterion: Criterion
    pseudo_labels: PseudoLabels | None
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    plotter: Plotter

    def rank_state_dict(self) -> dict[str, Any]:
        """The part of the state that differs between ranks."""
        bank = None if self.pseudo_labels is None else self.pseudo_labels.rank_state()
        return {"random": random_state(self.device), "bank": bank}

    def state_dict(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        """The whole state, ready to be written, given the `rank_state_dict` of every rank."""
        return {
            "format": FORMAT,
            "spec": self.fingerprint(),
            **versions.version_entry(),
            "progress": self.progress.saved(),
            "method": dict(self.method.state_dict()),
            "criterion": self.criterion.state_dict(),
            "clusters": None if self.pseudo_labels is None else self.pseudo_labels.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "ranks": ranks,
            "plots": self.plotter.state_dict(),
        }

    def fingerprint(self) -> dict[str, Any]:
        """The settings and images that decide every step, JSON-ready."""
        return self.settings | {"train_images": self.train_images, "images": self.images_digest}

    def load(self, folder: Path, *, branch: bool) -> None:
        """Restore a checkpoint: exactly, or, as a branch, what still fits of another run's.

        Raises:
            ValueError: it cannot be read, or does not fit; the message says why.
        """
        state = load_state(folder)
        if state.get("format") != FORMAT:
            raise ValueError(f"{folder} holds the training state of another version")
        state["spec"] = versions.load_step_settings(state["spec"], versions.read_version(state))
        expected = self.fingerprint()
        changed = {part for part in expected if state["spec"][part] != expected[part]}
        ranks = state["ranks"]
        if changed and not branch:
            raise ValueError(
                "the checkpoint is of a run with other settings and cannot be resumed exactly: "
                + "; ".join(_differences(state["spec"], expected))
            )
        progress = Progress(**state["progress"])
        if branch:
            self.check_branch(state, progress.step)
            progress.collapsed, progress.ended, progress.verdict = None, False, None
            progress.branched_at = progress.step
        self._check_shapes(state)
        vars(self.progress).update(vars(progress))
        self.method.load_state_dict(state["method"])
        self.plotter.load_state_dict(state["plots"])
        self.criterion.load_state_dict(state["criterion"], changed)
        settings = [dict(group) for group in self.optimizer.param_groups]
        sizes = [len(group["params"]) for group in state["optimizer"]["param_groups"]]
        before = state["spec"]["train"]["optimizer"]["name"]
        # Another optimizer, or other groups for layer-wise decay, starts without state.
        if before == self.settings["train"]["optimizer"]["name"] and sizes == [
            len(g["params"]) for g in settings
        ]:
            for saved, requested in zip(state["optimizer"]["param_groups"], settings, strict=True):
                # Torch places the counts of steps by the saved option: on the device for a fused optimizer.
                if "fused" in requested:
                    saved["fused"] = requested["fused"]
            self.optimizer.load_state_dict(state["optimizer"])
            for group, requested in zip(self.optimizer.param_groups, settings, strict=True):
                # The state is the checkpoint's; momentum and other options are the spec's.
                kept = {"params", "lr", "weight_decay"}  # set at each step by the schedules
                group.update({name: requested[name] for name in requested.keys() - kept})
        if state["spec"]["train"]["precision"] == self.settings["train"]["precision"]:
            self.scaler.load_state_dict(state["scaler"])
        # A branch on other ranks is another experiment: it starts with no clusters and fresh streams.
        if len(ranks) != world_size() and branch:
            return
        if self.pseudo_labels is not None and "dar" not in changed:
            banks = [each["bank"] for each in ranks]
            self.pseudo_labels.load_state_dict(state["clusters"], banks, self.device)
        # Ranks that the checkpoint does not have keep the streams that they started with.
        if rank() < len(ranks):
            restore_random_state(ranks[rank()]["random"], self.device)

    def check_branch(self, state: dict[str, Any], step: int) -> None:
        """Check that another run's training state fits this one.

        Raises:
            ValueError: the data set has other images, or no step is left.
        """
        images, before = self.train_images, state["spec"]["train_images"]
        if images != before:
            raise ValueError(
                f"dataset: {images} images to train on, and the checkpoint's had {before}"
            )
        if state["spec"]["images"] != self.images_digest:
            raise ValueError("dataset: its images differ from the checkpoint's")
        if step >= self.total_steps:
            raise ValueError(
                f"train.epochs: the checkpoint is of step {step}, and "
                f"{self.settings['train']['epochs']} epochs end with step {self.total_steps}"
            )

    def _check_shapes(self, state: dict[str, Any]) -> None:
        """Check that the saved weights have the names and shapes of this run's.

        Those of a branch, or of a network of one's own, may have others.

        Raises:
            ValueError: they have others.
        """
        shapes = {name: tensor.shape for name, tensor in self.method.state_dict().items()}
        saved = {name: tensor.shape for name, tensor in state["method"].items()}
        if shapes != saved:
            differing = min(
                name for name in shapes.keys() | saved.keys() if shapes.get(name) != saved.get(name)
            )
            raise ValueError(
                f"the checkpoint does not fit this method and backbone: {differing} differs"
            )


def _differences(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """Describe how two runs' fingerprints differ: the images first, then each field."""
    if before["train_images"] != now["train_images"]:
        yield f"{now['train_images']} images to train on, which were {before['train_images']}"
    elif before["images"] != now["images"]:
        yield "the images differ in their names or sizes"
    for part in (part for part in now if part not in ("train_images", "images")):
        yield from _changes(part, before[part], now[part])


def _changes(setting: str, before: Any, now: Any) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for name in {**now, **before}:
            yield from _changes(f"{setting}.{name}", before.get(name), now.get(name))
    elif before != now:
        yield f"{setting} is {shorten(now)}, and was {shorten(before)}"
