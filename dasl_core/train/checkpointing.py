"""Checkpoints of a run: the training state, and its saving, publishing and restoring."""

import copy
import logging
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from itertools import chain
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from dasl_core.distributed import (
    broadcast_int,
    gather_objects_to_rank0,
    is_sharded,
    rank,
    whole_tensor,
    world_size,
)
from dasl_core.export import export_backbone
from dasl_core.export.checkpoint import finite
from dasl_core.headlines import EVALUATED_STEP
from dasl_core.machine import available_memory
from dasl_core.methods import Method
from dasl_core.seeds import random_state, restore_random_state
from dasl_core.spec import versions
from dasl_core.spec.base import shorten
from dasl_core.train.background import copy_to_cpu, run_in_background
from dasl_core.train.certificate import (
    Certificate,
    Entry,
    Environment,
    describe_data,
    digest_file,
    write_certificate,
)
from dasl_core.train.criterion import Criterion
from dasl_core.train.plotting import Plotter
from dasl_core.train.progress import Progress
from dasl_core.train.run import Run
from dasl_core.train.serialization import STATE_FILES, StateCopy, load_state
from dasl_core.train.sharding import ShardedMethod, shard_like
from dasl_core.train.update import Updater
from dasl_core.vocabulary import CERTIFICATE, TRAINED

logger = logging.getLogger(__name__)

# Increased when older training states can no longer be read.
FORMAT = 2

RETRY_SECONDS = 60.0
"""Delay of the next save after a failed one; doubled by each further failure."""


class CheckpointFailed(OSError):
    """A checkpoint could not be written.

    Attributes:
        cause: the error of the disk or the store, which decides about a retry. Unlike `__cause__`, it is pickled from
            a rank to its driver.
    """

    cause: OSError | None = None


@dataclass
class Checkpointer:
    """Saves the training state and the exported backbone, publishes them, and resumes from them.

    Attributes:
        own_views: whether `augmentation` of `pretrain` makes the views.
        saved_step: step of the newest checkpoint, which may still be written; None when there is none.
        certificate: SHA-256 of the certificate of the newest written checkpoint, on rank 0.
    """

    run: Run
    state: "TrainingState"
    own_views: bool = False
    saved_step: int | None = None
    certificate: str | None = None
    _write: Future[bool] | None = None  # on rank 0
    _being_written: bool = False  # on all ranks
    _last_try: float = field(default_factory=lambda: monotonic())
    _failures: int = 0  # in a row, on rank 0
    _data: dict[str, Any] | None = None

    def is_overdue(self) -> bool:
        """Whether a checkpoint is due within the epoch, by `checkpoints.every_minutes`.

        After a failed save it is due sooner, because the work since the last checkpoint is at risk. The delays grow,
        because a save may block training while a store is unavailable. Only rank 0's result is used.
        """
        minutes = self.run.spec.checkpoints.every_minutes
        within_epoch = self.run.progress.step % self.run.length.steps_per_epoch != 0
        if not within_epoch:
            return False
        regular = inf if minutes is None else 60 * minutes
        failures = self._failures_in_a_row()
        # A float overflows at 2 to the power of 1024.
        pause = RETRY_SECONDS * 2.0 ** min(failures - 1, 20) if failures else inf
        return monotonic() - self._last_try >= min(regular, pause)

    def is_due(self, epochs: int) -> bool:
        """Whether a checkpoint is saved after this many epochs."""
        return epochs % self.run.spec.train.checkpoint_every_epochs == 0

    def resume(self) -> bool:
        """Restore the checkpoint to resume from, False without one; a ValueError says why it cannot be used."""
        files = self.run.files
        if files.resume is None:
            return False
        self.state.load(files.resume, branch=files.branch)
        self.saved_step = self.run.progress.step
        if (files.resume / CERTIFICATE).exists():
            self.certificate = digest_file(files.resume / CERTIFICATE)
        return True

    def save(self, *, required: bool) -> None:
        """Save and publish a checkpoint from which the run resumes exactly, once per step.

        An optional checkpoint is written in the background if memory allows; the next save waits for it.

        Args:
            required: write it now, and raise on failure. Otherwise a full disk or an unavailable store is reported,
                and the next checkpoint retries.

        Raises:
            CheckpointFailed: a required checkpoint could not be written.
        """
        began = monotonic()
        self._wait()
        step = self.run.progress.step
        if self.saved_step == step:
            return  # a cancel right after a save
        ranks = gather_objects_to_rank0(self.state.rank_state_dict(), self.run.control)
        result = _Result.WRITTEN
        if ranks is None:
            self.state.join_gathers()
        else:
            snapshot = self._take_snapshot(ranks)
            self.run.reporter.keepalive()
            # Only a copy is safe from the changes of further steps.
            has_room = snapshot.is_copied and available_memory() >= snapshot.state.size
            if not required and has_room:
                self._write = run_in_background(lambda: self._try_to_publish(snapshot))
                result = _Result.BEING_WRITTEN
            elif required:
                self._publish(snapshot)
            elif not self._try_to_publish(snapshot):
                result = _Result.FAILED
            self._count(result)
            logger.info("saving step %d held the training for %.2f s", step, monotonic() - began)
        self._last_try = monotonic()
        result = _Result(broadcast_int(result, self.run.control))
        self._being_written = result == _Result.BEING_WRITTEN
        if result != _Result.FAILED:
            self.saved_step = step

    def check_write(self) -> None:
        """Raise the error of a failed background checkpoint. Never waits.

        Only rank 0 writes; its error makes the collectives of the other ranks fail, too.

        Raises:
            Exception: it could not be written for a reason other than a full disk or an unavailable store.
        """
        # The next save tells all ranks about a full disk or an unavailable store.
        if self._write is not None and self._write.done() and self._write.exception() is not None:
            write, self._write = self._write, None
            write.result()

    def close(self) -> None:
        """Wait for the background checkpoint. Only needed after an error: saving waits, too."""
        if self._write is None:
            return
        try:
            self._write.result()
        except Exception:  # must not replace the error that ends the run
            logger.exception("the background checkpoint failed, too")

    def _wait(self) -> None:
        """Wait on all ranks until the last save has finished or failed."""
        if not self._being_written:
            return
        write, self._write, self._being_written = self._write, None, False
        written = write.result() if write is not None else True
        self._count(_Result.WRITTEN if written else _Result.FAILED)
        if not broadcast_int(int(written), self.run.control):
            self.saved_step = None

    def _count(self, result: "_Result") -> None:
        """Count failed saves in a row."""
        if result != _Result.BEING_WRITTEN:
            self._failures = self._failures + 1 if result == _Result.FAILED else 0

    def _failures_in_a_row(self) -> int:
        """Return the number of failed saves since the last success. Never waits."""
        if self._write is None:
            return self._failures
        # `check_write` raises an exception.
        failed = self._write.done() and not self._write.exception() and not self._write.result()
        return self._failures + 1 if failed else 0

    def _take_snapshot(self, ranks: list[dict[str, Any]]) -> "_Snapshot":
        """Copy all that a checkpoint contains."""
        progress, method = self.run.progress, self.state.method
        # Baselines are no metrics of a checkpoint: they would rank it.
        trained = [e for e in progress.evaluations if e["subject"] in TRAINED]
        latest = trained[-1]["metrics"] | {EVALUATED_STEP: trained[-1]["step"]} if trained else {}
        metrics = {
            "step": progress.step,
            "epoch": self.run.epoch,
            "evaluations": progress.evaluations,
            "epoch_losses": progress.losses,
            "verdict": progress.verdict,
            "data": self.run.data.facts(),
            "unreadable_images": sum(self.run.data.unreadable.values()),
        }
        head = method.embedding_head if self.run.spec.method.supervised else None
        # A network of one's own need not be copyable.
        is_copied = not (progress.ended or self.run.spec.backbone.is_own)
        state = StateCopy.copy(self.state.state_dict(ranks))
        network = method.representation
        if self.state.sharded is not None:
            network = self.state.sharded.whole(network, on_rank_0=True)
        elif is_copied:
            network = copy_to_cpu(network)
        return _Snapshot(
            state=state,
            metrics=copy.deepcopy(metrics),
            latest=latest,
            network=network,
            head=copy_to_cpu(head) if is_copied and head is not None else head,
            chain=list(progress.chain),
            environments=list(progress.environments),
            is_copied=is_copied,
            ended=progress.ended,
        )

    def _try_to_publish(self, snapshot: "_Snapshot") -> bool:
        """Publish an optional checkpoint; on failure, report it and return False."""
        try:
            self._publish(snapshot)
        except OSError as error:
            data = {"step": snapshot.metrics["step"]}
            self.run.reporter.event("checkpoint_failed", str(error), data)
            return False
        return True

    def _publish(self, snapshot: "_Snapshot") -> None:
        """Write the files of a checkpoint and pass them to the reporter; a CheckpointFailed if that fails."""
        step, epoch = snapshot.metrics["step"], snapshot.metrics["epoch"]
        try:
            with tempfile.TemporaryDirectory(dir=self.run.files.scratch) as name:
                folder = Path(name)
                snapshot.state.write(folder)
                self.certificate = self._certify(snapshot, folder)
                missing = export_backbone(
                    snapshot.network,
                    self.run.spec,
                    snapshot.metrics | {"certificate": self.certificate},
                    folder,
                    head=snapshot.head,
                    onnx=snapshot.ended,
                )
                if missing is not None:
                    self.run.reporter.event("onnx_missing", missing, {"step": step})
                self.run.reporter.checkpoint(folder, step, epoch, snapshot.latest, snapshot.ended)
        except (OSError, SafetensorError) as error:
            failed = CheckpointFailed(
                f"The checkpoint of step {step} could not be written: {error}"
            )
            failed.cause = error if isinstance(error, OSError) else None
            raise failed from error

    def _certify(self, snapshot: "_Snapshot", folder: Path) -> str:
        """Write the certificate of the training state in `folder`, or raise an OSError; return its SHA-256."""
        run = self.run
        if self._data is None:
            self._data = describe_data(run.data, run.reporter.keepalive)
        content = Certificate(
            step=snapshot.metrics["step"],
            ended=snapshot.ended,
            branched_at=run.progress.branched_at,
            own_views=self.own_views,
            spec_version=versions.current(),
            spec=run.spec.model_dump(mode="json"),
            names=run.data.digest(),
            data=self._data,
            environments=[Environment(**each) for each in snapshot.environments],
            unreadable=snapshot.metrics["unreadable_images"],
            chain=[Entry(**entry) for entry in snapshot.chain],
            state={name: digest_file(folder / name) for name in sorted(STATE_FILES)},
            figures=finite(snapshot.metrics["evaluations"]),
        )
        return write_certificate(folder, content)


class _Result(IntEnum):
    FAILED, WRITTEN, BEING_WRITTEN = 0, 1, 2


@dataclass(frozen=True)
class _Snapshot:
    """Contents of a checkpoint.

    Attributes:
        latest: metrics of the last evaluation.
        is_copied: whether `network` and `head` are copies that no step changes.
    """

    state: StateCopy
    metrics: dict[str, Any]
    latest: dict[str, float]
    network: nn.Module
    head: nn.Module | None
    chain: list[dict[str, Any]]
    environments: list[dict[str, Any]]
    is_copied: bool
    ended: bool


@dataclass(frozen=True)
class TrainingState:
    """All state that the next step depends on.

    The schedule, the order of images, the views and the chain are functions of the step, which is their only
    state.

    Attributes:
        sharded: the method under FSDP; None without.
    """

    run: Run
    method: Method
    criterion: Criterion
    updater: Updater
    plotter: Plotter
    sharded: ShardedMethod | None = None

    def rank_state_dict(self) -> dict[str, Any]:
        """The part of the state that differs between ranks."""
        clusters = self.criterion.pseudo_labels
        bank = None if clusters is None else clusters.rank_state()
        return {"random": random_state(self.run.device), "bank": bank}

    def state_dict(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        """The whole state, ready to be written, given the `rank_state_dict` of every rank."""
        clusters = self.criterion.pseudo_labels
        return {
            "format": FORMAT,
            "spec": self.fingerprint,
            **versions.version_entry(),
            "progress": self.run.progress.saved(),
            "method": dict(self.method.state_dict()),
            "criterion": self.criterion.state_dict(),
            "clusters": None if clusters is None else clusters.state_dict(),
            "optimizer": self.updater.optimizer.state_dict(),
            "scaler": self.updater.scaler.state_dict(),
            "ranks": ranks,
            "plots": self.plotter.state_dict(),
        }

    def join_gathers(self) -> None:
        """Send this rank's shards to rank 0, in the order in which it copies the state and the network."""
        if self.sharded is None:
            return
        moments = self.updater.optimizer.state_dict()["state"].values()
        values = chain(self.method.state_dict().values(), *(each.values() for each in moments))
        for value in values:
            if isinstance(value, Tensor):
                whole_tensor(value)
        self.sharded.whole(self.method.representation, on_rank_0=True)

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """The settings, images and labels that a resumed run must have, JSON-ready.

        Images are known by their position, so their names and sizes count in order.
        """
        data = self.run.data
        images = {"train_images": len(data.train), "images": data.digest()}
        return self.run.spec.deciding() | images | data.digest_labels()

    def load(self, folder: Path, *, branch: bool) -> None:
        """Restore a checkpoint: exactly, or as a branch what fits; a ValueError says why it cannot be used."""
        state = load_state(folder)
        if state.get("format") != FORMAT:
            raise ValueError(f"{folder} holds the training state of another version")
        state["spec"] = versions.load_step_settings(state["spec"], versions.read_version(state))
        expected = self.fingerprint
        changed = {part for part in expected if state["spec"][part] != expected[part]}
        ranks = state["ranks"]
        if changed and not branch:
            raise ValueError(
                "the checkpoint is of a run with other settings and cannot be resumed exactly: "
                + "; ".join(_differences(state["spec"], expected))
            )
        progress = Progress(**state["progress"])
        if branch:
            self.check_branch(state["spec"], progress.step)
            progress.collapsed, progress.ended, progress.verdict = None, False, None
            progress.branched_at = progress.step
            if changed:  # the steps before are those of another spec
                progress.chain, progress.recent_losses, progress.terms = [], [], ""
        self._check_shapes(state)
        vars(self.run.progress).update(vars(progress))
        weights = self.method.state_dict()
        self.method.load_state_dict(
            {name: shard_like(value, weights[name]) for name, value in state["method"].items()}
        )
        self.plotter.load_state_dict(state["plots"])
        self.criterion.load_state_dict(state["criterion"], changed)
        before, now = state["spec"]["train"], expected["train"]
        if before["optimizer"]["name"] == now["optimizer"]["name"]:
            self._load_optimizer(state["optimizer"])
        if before["precision"] == now["precision"]:
            self.updater.scaler.load_state_dict(state["scaler"])
        # A branch on other ranks is another experiment: it starts with no clusters and fresh streams.
        if len(ranks) != world_size() and branch:
            return
        clusters = self.criterion.pseudo_labels
        if clusters is not None and "dar" not in changed:
            banks = [each["bank"] for each in ranks]
            clusters.load_state_dict(state["clusters"], banks, self.run.device)
        # Ranks that the checkpoint does not have keep the streams that they started with.
        if rank() < len(ranks):
            restore_random_state(ranks[rank()]["random"], self.run.device)

    def _load_optimizer(self, state: dict[str, Any]) -> None:
        """Restore the state of the optimizer, unless layer-wise decay has other groups now."""
        optimizer = self.updater.optimizer
        settings = [dict(group) for group in optimizer.param_groups]
        sizes = [len(group["params"]) for group in state["param_groups"]]
        if sizes != [len(group["params"]) for group in settings]:
            return
        for saved, requested in zip(state["param_groups"], settings, strict=True):
            # Torch places the counts of steps by the saved option: on the device for a fused optimizer.
            if "fused" in requested:
                saved["fused"] = requested["fused"]
        weights = [weight for group in settings for weight in group["params"]]
        for number, values in state["state"].items():
            for name, value in values.items():
                weight = weights[number]
                if isinstance(value, Tensor) and value.shape == weight.shape:
                    if not is_sharded(weight):
                        # Fused kernels need the weight's order in memory, and a CPU's do not check it.
                        value = torch.empty_like(weight, dtype=value.dtype, device="cpu").copy_(
                            value
                        )
                    values[name] = shard_like(value, weight)
        optimizer.load_state_dict(state)
        for group, requested in zip(optimizer.param_groups, settings, strict=True):
            # The state is the checkpoint's; momentum and other options are the spec's.
            scheduled = {"params", "lr", "weight_decay"}  # set at each step by the schedules
            group.update({name: requested[name] for name in requested.keys() - scheduled})

    def check_branch(self, before: dict[str, Any], step: int) -> None:
        """Raise a ValueError if another run's fingerprint is of other images, or no step remains after it."""
        images, length = self.fingerprint["train_images"], self.run.length
        if images != before["train_images"]:
            raise ValueError(
                f"dataset: {images} images to train on, and the checkpoint's had {before['train_images']}"
            )
        if before["images"] != self.fingerprint["images"]:
            raise ValueError("dataset: its images differ from the checkpoint's")
        if step >= length.total_steps:
            raise ValueError(
                f"train.epochs: the checkpoint is of step {step}, and {length.epochs} epochs end with step "
                f"{length.total_steps}"
            )

    def _check_shapes(self, state: dict[str, Any]) -> None:
        """Check that the saved weights have the names and shapes of this run's weights.

        Weights of a branch, or of a custom network, may differ.

        Raises:
            ValueError: they differ.
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
    """Describe how two runs' fingerprints differ: the images and labels first, then each field."""
    if before["train_images"] != now["train_images"]:
        yield f"{now['train_images']} images to train on, which were {before['train_images']}"
    elif before["images"] != now["images"]:
        yield "the images differ in their names or sizes"
    elif before["classes"] != now["classes"]:
        other = min({*before["classes"]} ^ {*now["classes"]})
        yield f"the classes differ, such as {shorten(other)}"
    elif before["labels"] != now["labels"]:
        yield "images have other labels"
    described = ("train_images", "images", "classes", "labels")
    for part in (part for part in now if part not in described):
        yield from _changes(part, before[part], now[part])


def _changes(setting: str, before: Any, now: Any) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for name in {**now, **before}:
            yield from _changes(f"{setting}.{name}", before.get(name), now.get(name))
    elif before != now:
        yield f"{setting} is {shorten(now)}, and was {shorten(before)}"
