"""What a training run says to the outside, and what it asks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

Desired = Literal["run", "cancel", "pause"]
Subject = Literal["raw", "untrained", "backbone"]
Phase = Literal["reading", "baselines", "training", "final"]


def progress_line(progress: Mapping[str, Any]) -> str:
    """`epoch 3.00/100  step 12/400  loss 4.1200  812 images/s  190 s left`."""
    return (
        f"epoch {progress['epoch']:.2f}/{progress['epochs']}  "
        f"step {progress['step']}/{progress['total_steps']}  loss {progress['loss']:.4f}  "
        f"{progress['images_per_second']:.0f} images/s  {progress['eta_seconds']:.0f} s left"
    )


class Reporter(Protocol):
    """Rank 0 talks to one of these; all other ranks are silent."""

    def metrics(self, points: list[dict[str, Any]]) -> None:
        """Points `{"step", "time" (seconds since the epoch), "values": {name: float}}`."""

    def progress(self, progress: dict[str, Any]) -> None:
        """Where the run is: step, total_steps, epoch, epochs, loss, images_per_second, ..."""

    def phase(self, name: Phase, message: str) -> None:
        """A part of the run begins, which may take long."""

    def at_work(self) -> None:
        """Something goes on that is no step and takes long; called again and again while it does."""

    def evaluation(
        self, step: int, epoch: float, subject: Subject, metrics: dict[str, float]
    ) -> None:
        """Metrics of held-out images, of the pixels, the untrained or the trained backbone."""

    def checkpoint(
        self, folder: Path, step: int, epoch: float, metrics: dict[str, float], final: bool
    ) -> None:
        """A complete checkpoint lies in `folder`, which the run deletes when this returns; its files
        may be moved away."""

    def artifact(self, file: Path) -> None:
        """A file for people, such as a picture, which may be moved away; a later one of the same name
        replaces it."""

    def event(self, type: str, message: str, data: dict[str, Any]) -> None:
        """Something a person may want to know."""

    def desired(self) -> Desired:
        """What a person wants of the run; asked before every step, so it must not wait."""
