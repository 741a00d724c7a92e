"""Output of a run without a service: lines on the terminal, files in the run directory."""

import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from safetensors import SafetensorError

from dasl_core.spec import JobSpec, SpecError, field_problems
from dasl_core.standalone.run_dir import METRICS, RunDirectory
from dasl_core.train.reporter import NullReporter, progress_line
from dasl_core.vocabulary import Desired, Phase, Subject

REPORT = "report.html"
# Seconds between two lines on the images that are read.
READING_SECONDS = 10.0


class ProgressPrinter(NullReporter):
    """Prints progress and events; a signal handler sets `interrupted` to end the run after the current step."""

    def __init__(self) -> None:
        self.interrupted = False
        self._shown_step = -1
        self._print_reading_at = 0.0

    def progress(self, progress: dict[str, Any]) -> None:
        """Print a line for each new step, and the number of images read every ten seconds."""
        if "images_read" in progress:
            if time.monotonic() < self._print_reading_at:
                return
            self._print_reading_at = time.monotonic() + READING_SECONDS
        elif progress["step"] == self._shown_step:
            return  # updated by an evaluation, which prints another line
        else:
            self._shown_step = progress["step"]
        print_line(progress_line(progress))

    def phase(self, name: Phase, message: str) -> None:
        print_line(message)

    def event(self, type: str, message: str, data: dict[str, Any]) -> None:
        print_line(f"{type}: {message.removeprefix(f'{type.capitalize()}: ')}")

    def desired(self) -> Desired:
        """Return "cancel" after an interrupt."""
        return "cancel" if self.interrupted else "run"


class ConsoleReporter(ProgressPrinter):
    """Also writes metrics, checkpoints and artifacts to a run directory.

    Attributes:
        saved: whether this process has written a checkpoint.
    """

    def __init__(self, run_dir: RunDirectory) -> None:
        super().__init__()
        self.run_dir = run_dir
        self.saved = False
        # The newest checkpoints of all attempts, with their epochs; None before this process's first one.
        self._newest: list[tuple[Path, float]] | None = None
        self._metrics_failed = False

    def metrics(self, points: list[dict[str, Any]]) -> None:
        """Append to the metrics; after a full disk they are written later."""
        try:
            self.run_dir.add_metrics(points)
        except OSError as error:
            if not self._metrics_failed:
                print_line(
                    f"{METRICS} cannot be written; its lines stay in memory for now: {error}"
                )
            self._metrics_failed = True
        else:
            self._metrics_failed = False

    def evaluation(
        self, step: int, epoch: float, subject: Subject, metrics: dict[str, float]
    ) -> None:
        """Print the metrics on one line."""
        values = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        print_line(f"evaluation of {subject} at epoch {epoch:g}: {values}")

    def checkpoint(
        self, folder: Path, step: int, epoch: float, metrics: dict[str, float], final: bool
    ) -> None:
        """Move the checkpoint to the run directory; of those within epochs, retain the two newest."""
        if self._newest is None:
            self._newest = self.run_dir.checkpoint_epochs(before=step)
        saved = self.run_dir.add_checkpoint(folder, step)
        print_line(f"Saved checkpoint {saved}")
        if final:
            print_line(f"Load it: {saved / 'README.md'} has the lines of Python")
        self.saved = True
        if self._newest and self._newest[-1][0] == saved:
            self._newest.pop()  # replaced
        self._newest.append((saved, epoch))
        for older, its_epoch in self._newest[:-2]:
            if not its_epoch.is_integer():
                shutil.rmtree(older, ignore_errors=True)
        del self._newest[:-2]

    def artifact(self, file: Path) -> None:
        """Move the file to the run directory; print the path of the report."""
        stored = file.rename(self.run_dir.path / file.name)
        if stored.name == REPORT:
            print_line(f"Report: {stored}")


def print_line(line: str, stream: Literal["stdout", "stderr"] = "stdout") -> None:
    """Print a line, ignoring a closed terminal or pipe, or a log on a full disk.

    Control characters, which file names may contain, are escaped.
    """
    line = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)
    try:
        print(line, file=getattr(sys, stream), flush=True)
    except OSError:
        # Otherwise the rest of the buffer would fail again at exit.
        setattr(sys, stream, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


USER_ERRORS = (ValueError, OSError, SafetensorError)
"""Errors of a spec, of images and of files."""


def fail(error: Exception | str) -> int:
    """Print an error on rank 0 only, even without a process group; return the exit code 1."""
    problems: Sequence[object] = [error]
    if isinstance(error, ValidationError):
        problems = field_problems(error, JobSpec)
    elif isinstance(error, SpecError):
        problems = error.problems
    if os.environ.get("RANK", "0") == "0":
        for line in ("Error: " + "\n".join(map(str, problems))).splitlines():
            print_line(line, "stderr")
    return 1
