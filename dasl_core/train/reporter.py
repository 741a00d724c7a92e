"""The interface through which a training run sends reports and receives the desired state."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from dasl_core.vocabulary import Desired, Phase, Subject


def progress_line(progress: Mapping[str, Any]) -> str:
    """Format progress in one line: `epoch 3.00/100  step 12/400  loss 4.1200  812 images/s  190 s left`.

    Before the first step: `read 12,000 of 60,000 images`.
    """
    if "images_read" in progress:
        return f"read {progress['images_read']:,} of {progress['images_total']:,} images"
    speed = progress["images_per_second"]
    return (
        f"epoch {progress['epoch']:.2f}/{progress['epochs']}  "
        f"step {progress['step']}/{progress['total_steps']}  loss {progress['loss']:.4f}  "
        f"{speed:.{0 if speed >= 10 else 1}f} images/s  {progress['eta_seconds']:.0f} s left"
    )


class Reporter(Protocol):
    """Receives the reports of a run. Rank 0 has a real one, all other ranks a `NullReporter`."""

    def metrics(self, points: list[dict[str, Any]]) -> None:
        """Report metrics: `{"step", "time" (seconds since the epoch), "values": {name: float}}`."""

    def progress(self, progress: dict[str, Any]) -> None:
        """Report the position: step, total_steps, epoch, epochs, loss, images_per_second, ...

        While images are read into the cache: images_read and images_total.
        """

    def phase(self, name: Phase, message: str) -> None:
        """Report the start of a potentially long phase."""

    def keepalive(self) -> Desired:
        """Signal that the run is alive, and return `desired`.

        Called repeatedly during long work outside of steps.
        """

    def evaluation(
        self, step: int, epoch: float, subject: Subject, metrics: dict[str, float]
    ) -> None:
        """Report held-out metrics of the raw pixels, or of the backbone before or after training."""

    def checkpoint(
        self, folder: Path, step: int, epoch: float, metrics: dict[str, float], final: bool
    ) -> None:
        """Store the complete checkpoint in `folder`.

        Its files may be moved away; the run deletes the folder when this returns.
        """

    def artifact(self, file: Path) -> None:
        """Store a file for users, such as a plot.

        It may be moved away; a later one of the same name replaces it.
        """

    def event(self, type: str, message: str, data: dict[str, Any]) -> None:
        """Report an event."""

    def desired(self) -> Desired:
        """Return the state requested by the user.

        Called before every step, so it must not block, and every second while images are read.
        """


class NullReporter:
    """Discards all reports: the reporter of the ranks other than 0."""

    def metrics(self, points: list[dict[str, Any]]) -> None: ...
    def progress(self, progress: dict[str, Any]) -> None: ...
    def phase(self, name: Phase, message: str) -> None: ...
    def keepalive(self) -> Desired:
        """Return `desired`."""
        return self.desired()

    def evaluation(
        self, step: int, epoch: float, subject: Subject, metrics: dict[str, float]
    ) -> None: ...
    def checkpoint(
        self, folder: Path, step: int, epoch: float, metrics: dict[str, float], final: bool
    ) -> None: ...
    def artifact(self, file: Path) -> None: ...
    def event(self, type: str, message: str, data: dict[str, Any]) -> None: ...
    def desired(self) -> Desired:
        """Return "run"; rank 0 broadcasts the desired state."""
        return "run"
