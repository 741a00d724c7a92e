"""A reporter that also passes metrics on to trackers."""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dasl_core.spec.track import Track
from dasl_core.track.delivery import CLOSE_SECONDS, Delivery
from dasl_core.track.tracker import Ending, Point, TrackedRun, Tracker
from dasl_core.train.reporter import Reporter
from dasl_core.vocabulary import Subject, TrainingOutcome

# The number that TensorBoard shows of a series.
POINTS_PER_STRIDE = 1000


class TrackingReporter:
    """Context manager that passes reports on to another reporter, and metrics to the trackers of the spec.

    On exit, the trackers have `CLOSE_SECONDS` to record the outcome passed to `ended`, or else a failure.

    Args:
        superseded: errors after which a newer attempt continues the run.
    """

    def __init__(
        self,
        reporter: Reporter,
        run: TrackedRun,
        *,
        superseded: tuple[type[BaseException], ...] = (),
    ) -> None:
        self._reporter, self._run, self._superseded = reporter, run, superseded
        self._ending: Ending = "failed"
        self._thinner = Thinner()
        self._deliveries: list[Delivery] = []
        # Passed on as they are.
        self.progress, self.phase, self.event = reporter.progress, reporter.phase, reporter.event
        self.artifact, self.keepalive = reporter.artifact, reporter.keepalive
        self.desired = reporter.desired

    def __enter__(self) -> Self:
        trackers = build_trackers(self._run.spec.track, self._run)
        self._deliveries = [Delivery(tracker, self._reporter) for tracker in trackers]
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            return  # a second Ctrl-C: the threads end with the process
        if isinstance(error, self._superseded):
            self._ending = "superseded"
        deadline = time.monotonic() + CLOSE_SECONDS
        for delivery in self._deliveries:
            delivery.end(self._ending)
        for delivery in self._deliveries:
            delivery.wait(deadline)

    def ended(self, outcome: TrainingOutcome) -> None:
        """Record the outcome of the training."""
        self._ending = outcome

    def metrics(self, points: list[dict[str, Any]]) -> None:
        """Pass the points on; trackers get them as `train/NAME`."""
        self._reporter.metrics(points)
        self._track(
            Point(p["step"], p["time"], {f"train/{name}": x for name, x in p["values"].items()})
            for p in points
        )

    def evaluation(
        self, step: int, epoch: float, subject: Subject, metrics: dict[str, float]
    ) -> None:
        """Pass the metrics on; trackers get them as `SUBJECT/NAME`."""
        self._reporter.evaluation(step, epoch, subject, metrics)
        values = {f"{subject}/{name}": value for name, value in metrics.items()}
        self._track([Point(step, time.time(), values)])

    def checkpoint(
        self, folder: Path, step: int, epoch: float, metrics: dict[str, float], final: bool
    ) -> None:
        """Pass it on; trackers then store their points, because the next attempt resumes from here."""
        self._reporter.checkpoint(folder, step, epoch, metrics, final)
        for delivery in self._deliveries:
            delivery.publish()

    def _track(self, points: Iterable[Point]) -> None:
        if not self._deliveries:
            return
        thinned = [point for point in map(self._thinner.take, points) if point.values]
        for delivery in self._deliveries:
            delivery.put(thinned)


def build_trackers(track: Track, run: TrackedRun) -> list[Tracker]:
    # Imported late, because most runs have at most one of them.
    trackers: list[Tracker] = []
    if track.tensorboard:
        from dasl_core.track.tensorboard import TensorBoard

        trackers.append(TensorBoard(run))
    if track.mlflow is not None:
        from dasl_core.track.mlflow import MLflowServer

        trackers.append(MLflowServer(track.mlflow, run))
    if track.wandb is not None:
        from dasl_core.track.wandb import OfflineWandB

        trackers.append(OfflineWandB(track.wandb, run))
    return trackers


@dataclass
class _Series:
    last_step: int = -1
    seen: int = 0
    taken: int = 0


class Thinner:
    """Takes the first 1000 points of each series, then every second of the next 2000, and so on.

    The number of points grows logarithmically with the length of a run: about 10,000 for 10^6 steps.
    """

    def __init__(self) -> None:
        self._series: dict[str, _Series] = {}

    def take(self, point: Point) -> Point:
        """Return a point with the selected finite values of new steps of their series."""
        values = {
            name: value
            for name, value in point.values.items()
            if math.isfinite(value) and self._takes(name, point.step)
        }
        return point._replace(values=values)

    def _takes(self, name: str, step: int) -> bool:
        series = self._series.setdefault(name, _Series())
        if step <= series.last_step:  # repeated, but trackers cannot replace a value
            return False
        series.last_step = step
        series.seen += 1
        if (series.seen - 1) % 2 ** (series.taken // POINTS_PER_STRIDE):
            return False
        series.taken += 1
        return True
