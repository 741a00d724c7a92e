"""What a run is at a step: gathered for a checkpoint, and put back from one."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dasl_core.distributed import rank, world_size
from dasl_core.methods import Method
from dasl_core.spec import ResolvedJobSpec
from dasl_core.spec.base import shorten
from dasl_core.train.checkpoint import load_state, random_state, restore_random_state
from dasl_core.train.criterion import Criterion
from dasl_core.train.pseudo_labels import PseudoLabels

# Raised when an older training state can no longer be read.
FORMAT = 4


@dataclass
class Progress:
    """Where a run is. Saved with every checkpoint."""

    step: int = 0
    # Mean of each finished epoch; None where no step of it had a finite loss.
    losses: list[float | None] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    epoch_loss_sum: float = 0.0  # of the epoch under way
    epoch_loss_steps: int = 0
    skipped: int = 0  # steps left out because their gradients were not finite
    skipped_in_a_row: int = 0
    overflowed: int = 0  # steps left out in the search for float16's loss scale
    collapse: dict[str, Any] = field(default_factory=dict)  # what the alarm remembers
    collapsed: str | None = None  # why the run is to end
    ended: bool = False  # measured for the last time, too


@dataclass(frozen=True)
class TrainingState:
    """The parts of a run that the next step depends on.

    The schedule, the order of images, the views and the chain are functions of the step, so the step is
    their state.
    """

    spec: ResolvedJobSpec
    train_images: int
    images_digest: str
    """Of their names and sizes, in order: a sample is known by its position."""
    total_steps: int
    device: torch.device
    progress: Progress
    method: Method
    criterion: Criterion
    pseudo_labels: PseudoLabels | None
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler

    def of_rank(self) -> dict[str, Any]:
        """What the next step depends on and is this rank's own."""
        bank = None if self.pseudo_labels is None else self.pseudo_labels.rank_state()
        return {"random": random_state(self.device), "bank": bank}

    def collect(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        """All of it, ready to be written, from what `of_rank` gave on each rank."""
        return {
            "format": FORMAT,
            "spec": self.deciding_parts(),
            "progress": vars(self.progress).copy(),
            "method": dict(self.method.state_dict()),
            "criterion": self.criterion.state_dict(),
            "clusters": None if self.pseudo_labels is None else self.pseudo_labels.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "ranks": ranks,
        }

    def deciding_parts(self) -> dict[str, Any]:
        """The settings that decide every step, JSON-ready."""
        parts = {"method", "backbone", "augment", "dar", "sec", "train"}
        return self.spec.model_dump(mode="json", include=parts) | {
            "train_images": self.train_images,
            "images": self.images_digest,
        }

    def load(self, folder: Path, *, branch: bool) -> None:
        """Go on from a checkpoint: exactly, or, as a branch, with what still fits of another run's.

        Raises:
            ValueError: it cannot be read, or does not fit; the message says why.
        """
        state = load_state(folder)
        if state.get("format") != FORMAT:
            raise ValueError(f"{folder} holds the training state of another version")
        own = self.deciding_parts()
        changed = {part for part in own if state["spec"][part] != own[part]}
        ranks = state["ranks"]
        if changed and not branch:
            raise ValueError(
                "the checkpoint is of a run with other settings and cannot go on exactly: "
                + "; ".join(_differences(state["spec"], own))
            )
        if len(ranks) != world_size() and not branch:
            raise ValueError(
                f"the checkpoint was written by {len(ranks)} workers and cannot go on "
                f"exactly with {world_size()}"
            )
        progress = Progress(**state["progress"])
        if branch:
            self.check_branch(state, progress.step)
            progress.collapsed, progress.ended = None, False
        vars(self.progress).update(vars(progress))
        self.method.load_state_dict(state["method"])
        if "sec" not in changed:
            self.criterion.load_state_dict(state["criterion"])
        settings = [dict(group) for group in self.optimizer.param_groups]
        sizes = [len(group["params"]) for group in state["optimizer"]["param_groups"]]
        before = state["spec"]["train"]["optimizer"]["name"]
        # Another optimizer, or other groups for layer-wise decay, begins anew.
        if before == self.spec.train.optimizer.name and sizes == [
            len(g["params"]) for g in settings
        ]:
            self.optimizer.load_state_dict(state["optimizer"])
            for group, asked in zip(self.optimizer.param_groups, settings, strict=True):
                # Its state is the checkpoint's; momentum and what else is asked of it are the spec's.
                kept = {"params", "lr", "weight_decay"}  # each step has its own of the schedules
                group.update({name: asked[name] for name in asked.keys() - kept})
        if state["spec"]["train"]["precision"] == self.spec.train.precision:
            self.scaler.load_state_dict(state["scaler"])
        if len(ranks) == world_size():
            mine = ranks[rank()]
            if self.pseudo_labels is not None and "dar" not in changed:
                self.pseudo_labels.load_state_dict(state["clusters"], mine["bank"], self.device)
            restore_random_state(mine["random"], self.device)

    def check_branch(self, state: dict[str, Any], step: int) -> None:
        """Whether another run's training state fits this one.

        Raises:
            ValueError: weights have other shapes, the data set another size, or no step is left.
        """
        images, before = self.train_images, state["spec"]["train_images"]
        if images != before:
            raise ValueError(
                f"dataset: {images} images to train on, and the checkpoint's had {before}"
            )
        if state["spec"]["images"] != self.images_digest:
            raise ValueError("dataset: its images are others than the checkpoint's")
        if step >= self.total_steps:
            raise ValueError(
                f"train.epochs: the checkpoint is of step {step}, and "
                f"{self.spec.train.epochs} epochs end with step {self.total_steps}"
            )
        own = {name: tensor.shape for name, tensor in self.method.state_dict().items()}
        theirs = {name: tensor.shape for name, tensor in state["method"].items()}
        if own != theirs:
            odd = min(
                name for name in own.keys() | theirs.keys() if own.get(name) != theirs.get(name)
            )
            raise ValueError(f"the checkpoint does not fit this method and backbone: {odd} differs")


def _differences(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """What differs of two runs' `deciding_parts`, in words: the images, then each field."""
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
