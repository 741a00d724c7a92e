"""Following a job: what is asked for, how often, and what to do while the server is away."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from service.cli.output import note
from service.client import ApiError, Client, ConnectionFailed
from service.client.models import TERMINAL_STATUSES, Evaluation, Event, Job
from service.client.waiting import OUTAGE_SECONDS

HISTORY_POINTS = 60
"""Points of the loss curve that are asked for; about as many as a terminal line can show."""


@dataclass(frozen=True)
class Snapshot:
    """A job at one moment. `events` are those that no earlier snapshot of this watch had."""

    job: Job
    events: Sequence[Event] = ()
    losses: Sequence[float] = ()
    evaluation: Evaluation | None = None

    @property
    def knn(self) -> float | None:
        """Newest k-NN accuracy of the trained backbone."""
        value = _figure(self.evaluation, "knn_top1")
        if value is None and self.job.progress is not None:
            value = self.job.progress.knn
        return value

    @property
    def recall(self) -> float | None:
        """Newest R@1 of the trained backbone."""
        return _figure(self.evaluation, "recall_at_1")


class View(Protocol):
    """Something that shows snapshots."""

    def show(self, snapshot: Snapshot) -> None:
        """Show what is new."""

    def away(self, reason: str) -> None:
        """Say that the server does not answer at the moment."""


@dataclass
class Watcher:
    """Collects snapshots, asking only for what may have changed."""

    client: Client
    job_id: str
    _seen: int = 0
    _step: int | None = None
    _losses: Sequence[float] = field(default_factory=list)
    _evaluation: Evaluation | None = None

    def look(self) -> Snapshot:
        """Ask the server. Raises ApiError and ConnectionFailed; the next look loses nothing."""
        job = self.client.jobs.get(self.job_id)
        events = list(self.client.jobs.events(self.job_id, after=self._seen))
        step = job.progress.step if job.progress else None
        if step != self._step or job.done:
            self._losses = self._curve()
            self._evaluation = self._newest_evaluation()
        # Only now, when nothing can fail any more: what was fetched counts as seen.
        self._step = step
        self._seen = events[-1].seq if events else self._seen
        return Snapshot(job, events, self._losses, self._evaluation)

    def _curve(self) -> list[float]:
        metrics = self.client.jobs.metrics(self.job_id, name="loss", max_points=HISTORY_POINTS)
        return [value for value in metrics.values.get("loss", []) if value is not None]

    def _newest_evaluation(self) -> Evaluation | None:
        trained = [e for e in self.client.jobs.evaluations(self.job_id) if e.subject == "backbone"]
        return trained[-1] if trained else None


def watch_job(
    client: Client, job_id: str, view: View, *, poll: float = 1.0, outage: float = OUTAGE_SECONDS
) -> Job:
    """Show the job until it has ended and return it.

    A server that goes away is waited for during `outage` seconds: training may go on without it. One
    that never answered is not: ConnectionFailed comes at once.
    """
    watcher = Watcher(client, job_id)
    heard: float | None = None
    while True:
        try:
            snapshot = watcher.look()
        except (ConnectionFailed, ApiError) as error:
            refused = isinstance(error, ApiError) and error.status < 500
            if refused or heard is None or time.monotonic() - heard > outage:
                raise
            view.away(error.reason if isinstance(error, ConnectionFailed) else error.title)
        else:
            heard = time.monotonic()
            view.show(snapshot)
            if snapshot.job.status in TERMINAL_STATUSES:
                return snapshot.job
        time.sleep(poll)


def print_failure(client: Client, job: Job) -> None:
    """Why a job did not succeed, and its last log lines, on stderr."""
    if job.error is None:
        note(f"{job.id} was {job.status}.")
        return
    lines = job.error.log_lines()
    if not lines:
        try:
            lines = client.jobs.logs(job.id, tail=20).splitlines()
        except (ApiError, ConnectionFailed) as error:
            lines = [f"(the log cannot be read: {error})"]
    for line in lines:
        note(f"  {line}")
    note(f"{job.id} {job.status}: {job.error.message}")


def _figure(evaluation: Evaluation | None, name: str) -> float | None:
    value = evaluation.metrics.get(name) if evaluation is not None else None
    return float(value) if isinstance(value, int | float) else None
