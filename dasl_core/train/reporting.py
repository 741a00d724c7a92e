"""What a training run says to the outside, and what it asks."""

from pathlib import Path
from typing import Any, Literal, Protocol

Desired = Literal["run", "cancel", "pause"]
Subject = Literal["raw", "untrained", "backbone"]


class Reporter(Protocol):
    """Rank 0 talks to one of these; all other ranks are silent."""

    def metrics(self, points: list[dict[str, Any]]) -> None:
        """Points `{"step", "time" (seconds since the epoch), "values": {name: float}}`."""

    def progress(self, progress: dict[str, Any]) -> None:
        """Where the run is: step, total_steps, epoch, epochs, loss, images_per_second, ..."""

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
