"""Polling of a job for `dasl watch`, with tolerance for server outages."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from dasl_core.headlines import ACCURACIES, Accuracy, number_of
from dasl_core.vocabulary import TRAINED
from service.cli import console
from service.cli.trouble import started_at, trouble
from service.client import ApiError, Client, ConnectionFailed
from service.client.sync.models import Job
from service.client.sync.waiting import OUTAGE_SECONDS
from service.wire.events import EventView
from service.wire.jobs import EvaluationView

# After this long without news of the job, the service is asked how it is.
_QUIET_SECONDS = 10.0

HISTORY_POINTS = 60
"""Points of the loss curve to request; about as many as fit in a terminal line."""


@dataclass(frozen=True)
class Snapshot:
    """State of a job at one moment, with the events since the previous snapshot."""

    job: Job
    events: Sequence[EventView] = ()
    losses: Sequence[float] = ()
    evaluation: EvaluationView | None = None

    @property
    def accuracies(self) -> dict[Accuracy, float | None]:
        """Latest accuracies of the trained backbone; None means not known yet."""
        metrics = self.evaluation.metrics if self.evaluation is not None else {}
        progress = dict(self.job.progress or ())
        return {
            accuracy: number_of(
                {accuracy.metric: progress.get(accuracy.field), **metrics}, accuracy.metric
            )
            for accuracy in ACCURACIES
        }


class View(Protocol):
    """Display of snapshots."""

    def show(self, snapshot: Snapshot) -> None:
        """Show the changes since the last snapshot."""

    def show_outage(self, reason: str) -> None:
        """Show that the server does not answer at the moment."""

    def show_note(self, text: str) -> None:
        """Show a sentence about the service; an empty one: nothing is wrong any more."""


@dataclass
class Watcher:
    """Fetches snapshots of a job; requests only what may have changed."""

    client: Client
    job_id: str
    _last_seq: int = 0
    _step: int | None = None
    _losses: Sequence[float] = field(default_factory=list)
    _evaluation: EvaluationView | None = None

    def poll(self) -> Snapshot:
        """Fetch a snapshot. After an error, the next call returns everything that was missed.

        Raises:
            ApiError: the server refused a request.
            ConnectionFailed: the server does not answer.
        """
        job = self.client.jobs.get(self.job_id)
        events = list(self.client.jobs.events(self.job_id, after=self._last_seq))
        step = job.progress.step if job.progress else None
        if step != self._step or job.done:
            history = self.client.jobs.metrics(self.job_id, name="loss", max_points=HISTORY_POINTS)
            self._losses = [loss for loss in history.values.get("loss", []) if loss is not None]
            trained = [e for e in self.client.jobs.evaluations(self.job_id) if e.subject in TRAINED]
            newest_last = sorted(trained, key=lambda e: (e.step, TRAINED.index(e.subject)))
            self._evaluation = newest_last[-1] if newest_last else None
        # Only after the last request: if one of them fails, the next call must fetch all of it again.
        self._step = step
        self._last_seq = events[-1].seq if events else self._last_seq
        return Snapshot(job, events, self._losses, self._evaluation)


def watch_job(
    client: Client, job_id: str, view: View, *, poll: float = 1.0, outage: float = OUTAGE_SECONDS
) -> Job:
    """Show the job until it has ended, or is paused at its time limit, and return it.

    An outage of up to `outage` seconds is tolerated, because training may continue without the server.

    Raises:
        ConnectionFailed: the server never answered, or the outage was longer.
        ApiError: the server refused a request.
    """
    watcher = Watcher(client, job_id)
    last_answer: float | None = None
    started: datetime | None = None
    away, quiet_since, last_state, problem = False, time.monotonic(), None, ""
    while True:
        try:
            snapshot = watcher.poll()
        except (ConnectionFailed, ApiError) as error:
            refused = isinstance(error, ApiError) and error.status < 500
            if refused or last_answer is None or time.monotonic() - last_answer > outage:
                raise
            view.show_outage(
                error.reason if isinstance(error, ConnectionFailed) else error.detail or error.title
            )
            away = True
        else:
            first, last_answer = last_answer is None, time.monotonic()
            view.show(snapshot)
            if first or away:
                before, started, away = started, started_at(client) or started, False
                if before is not None and started is not None and started != before:
                    view.show_note(f"the server was restarted at {started.astimezone():%H:%M:%S}")
            state = (snapshot.job.status, snapshot.job.progress)
            if snapshot.events or state != last_state:
                quiet_since, last_state = last_answer, state
                if problem:
                    view.show_note(problem := "")
            elif last_answer - quiet_since >= _QUIET_SECONDS:
                quiet_since, problem = last_answer, trouble(client) or ""
                view.show_note(problem)
            if snapshot.job.done or snapshot.job.is_at_time_limit:
                return snapshot.job
        time.sleep(poll)


def print_failure(client: Client, job: Job) -> None:
    """Print the error of a job and its last log lines on stderr."""
    if job.error is None:
        console.note(f"Job {job.id} was {job.status}.")
        return
    if job.error.is_explained:  # the traceback is no help
        console.note(f"Job {job.id} {job.status}: {job.error.message}\nIts log: dasl logs {job.id}")
        return
    lines = job.error.log_lines()
    if not lines:
        try:
            lines = client.jobs.logs(job.id, tail=20).splitlines()
        except (ApiError, ConnectionFailed) as error:
            lines = [f"(the log cannot be read: {error})"]
    for line in lines:
        console.note(f"  {line}")
    console.note(f"Job {job.id} {job.status}: {job.error.message}")
