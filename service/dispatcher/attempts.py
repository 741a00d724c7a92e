"""Live attempts: adoption after a crash, watching, stopping, and ending.

An attempt's row, with its submission id, is committed before the attempt is submitted to Ray. After a
crash, each such row is therefore looked up in Ray first. If Ray does not know the submission, the
attempt is lost and the job gets a new one: the previous dispatcher may have been only stalled, and
may still submit the old attempt.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from service import credentials, lifecycle, states
from service.dispatcher import repository
from service.dispatcher.context import DispatcherContext, passed
from service.dispatcher.executor import Run, RunState, SubmissionRefused
from service.dispatcher.log_copier import LogCopier
from service.lifecycle import Ending, Retry
from service.scheduling.repository import AttemptView
from service.states import AttemptState, Desired

# Outcome of an attempt that was stopped on request.
WOUND_DOWN: dict[Desired, states.Outcome] = {
    Desired.CANCEL: "cancelled",
    Desired.PAUSE: "paused",
}


class Attempts:
    """Starts, watches and ends the attempts of jobs."""

    def __init__(self, context: DispatcherContext, logs: LogCopier) -> None:
        self._context, self._logs = context, logs
        self._begun: set[str] = set()
        self.new_cluster = False
        """Whether the cluster is known to have lost all submissions of earlier dispatchers."""
        self.with_the_service = False
        """Whether it lost them because the service was restarted, which no job has caused."""

    def remember(self, live: Iterable[AttemptView]) -> None:
        """Keep only live attempts in the record of own submissions."""
        self._begun &= {attempt.submission_id for attempt in live}

    def start(self, job_id: str) -> None:
        """Start the next attempt of a queued job."""
        token, hashed = credentials.new_token()
        with self._context.write() as session:
            attempt = lifecycle.start_attempt(session, job_id, hashed)
        if attempt is None:
            return
        self._context.tokens[attempt.submission_id] = token
        self._submit(job_id, attempt.number, attempt.submission_id)

    def adopt(self, attempt: AttemptView) -> None:
        """Resolve an attempt that was created but not confirmed as submitted.

        If Ray has it, mark it as submitted. If this dispatcher created it, submit it again. If an
        earlier dispatcher created it, end it as lost, and the job gets a new attempt.
        """
        assert attempt.state == AttemptState.CREATED
        if self._context.executor.status(attempt.submission_id) is not None:
            with self._context.write() as session:
                lifecycle.mark_submitted(session, attempt.job_id, attempt.number)
            return
        if attempt.desired != Desired.RUN:
            with self._context.write() as session:
                ending = Ending(WOUND_DOWN[attempt.desired])
                lifecycle.finish_attempt(session, attempt.job_id, attempt.number, ending)
            return
        if attempt.submission_id not in self._context.tokens:
            # Only a hash of its token is left. The earlier dispatcher may still submit it: the API
            # then answers its driver that the attempt is over.
            message = "The dispatcher was started anew before Ray had taken the attempt"
            error = {"type": "attempt-lost", "message": message}
            ending = Ending("lost", error, Retry.FREE)
            with self._context.write() as session:
                lifecycle.finish_attempt(session, attempt.job_id, attempt.number, ending)
            return
        if not self._limit(attempt):
            self._submit(attempt.job_id, attempt.number, attempt.submission_id)

    def watch(self, attempt: AttemptView) -> None:
        """Check a submitted attempt: record its end, or enforce stop requests, time limit and progress."""
        run = self._context.executor.status(attempt.submission_id)
        if run is None:
            self._miss(attempt)
        elif run.state.ended:
            self._end(attempt, run)
        else:
            if attempt.desired != Desired.RUN:
                self._wind_down(attempt)
            else:
                self._limit(attempt)
            self._wake(attempt)

    def _submit(self, job_id: str, number: int, submission_id: str) -> None:
        command = self._context.entrypoints.job.format(job=job_id, attempt=number)
        self._begun.add(submission_id)
        try:
            self._context.submit(submission_id, command)
        except SubmissionRefused as refusal:
            error = {"type": "submission-refused", "message": f"Ray refuses the job: {refusal}"}
            with self._context.write() as session:
                ending = Ending("failed", error, Retry.NEVER)
                lifecycle.finish_attempt(session, job_id, number, ending)
            return
        with self._context.write() as session:
            lifecycle.mark_submitted(session, job_id, number)

    def _miss(self, attempt: AttemptView) -> None:
        # After a crash of Ray's head its workers may run for another minute: the next attempt may
        # start only after they were silent for the length of a lease.
        heard = attempt.heartbeat_at or attempt.created_at
        lost = self.new_cluster and attempt.submission_id not in self._begun
        if not lost and not passed(heard, self._context.clock(), self._context.lease):
            return
        lines = self._logs.tail(attempt.job_id, attempt.number, attempt.submission_id)
        with_the_service = lost and self.with_the_service
        message = (
            "The service, or its machine, was stopped while the attempt ran"
            if with_the_service
            else "Ray knows nothing of the attempt any more; it was probably restarted"
        )
        error = {"type": "attempt-lost", "message": message, "log_tail": lines}
        ending = Ending("lost", error, Retry.FREE if with_the_service else Retry.LIMITED)
        with self._context.write() as session:
            lifecycle.finish_attempt(session, attempt.job_id, attempt.number, ending)

    def _end(self, attempt: AttemptView, run: Run) -> None:
        # A driver reports its result before it ends. That report wins: the first commit counts.
        lines = self._logs.tail(attempt.job_id, attempt.number, attempt.submission_id)
        stopped = run.state == RunState.STOPPED and attempt.desired != Desired.RUN
        error = ended_error("training driver", run, lines)
        ending = Ending(
            WOUND_DOWN[attempt.desired] if stopped else "failed",
            None if stopped else error,
            forced=attempt.state == AttemptState.RUNNING,
        )
        with self._context.write() as session:
            lifecycle.finish_attempt(session, attempt.job_id, attempt.number, ending)

    def _wind_down(self, attempt: AttemptView) -> None:
        """Stop an attempt's driver if its ranks did not stop by themselves in time.

        The ranks learn from the API that a stop is desired, and stop after a step.
        """
        with self._context.write() as session:
            lifecycle.start_stopping(session, attempt.job_id)
        with self._context.database.read() as session:
            asked = repository.asked_at(session, attempt.job_id, attempt.desired)
        grace = timedelta(seconds=self._context.settings.cancel_grace_seconds)
        # Before its first report a driver has nothing to save.
        silent = attempt.state == AttemptState.SUBMITTED
        if silent or passed(asked, self._context.clock(), grace):
            self._context.stop(attempt.submission_id)

    def _limit(self, attempt: AttemptView) -> bool:
        """End an attempt if its job exceeded its time limit; return whether it was ended."""
        now = self._context.clock()
        if now - (attempt.job_started_at or attempt.created_at) < attempt.limit:
            return False
        # Only confirmed runtime counts: no pauses, and no time in which the service was off or its
        # machine slept. Without a heartbeat, the time since creation counts.
        took = now - attempt.created_at
        if attempt.heartbeat_at is not None:
            silent = max(now - attempt.heartbeat_at, timedelta())
            took = attempt.ran + min(silent, lifecycle.SILENCE)
        with self._context.database.read() as session:
            before = repository.time_of_attempts(session, attempt.job_id, before=attempt.number)
        if before + took < attempt.limit:
            return False
        hours = attempt.limit / timedelta(hours=1)
        error = {
            "type": "max-hours",
            "message": f"The job ran for longer than resources.max_hours = {hours:g}",
        }
        with self._context.write() as session:
            ending = Ending("failed", error, Retry.NEVER)
            lifecycle.finish_attempt(session, attempt.job_id, attempt.number, ending)
        # The attempt is fenced from here on; `Finalizer` makes sure that its processes end.
        self._context.stop(attempt.submission_id)
        return True

    def _wake(self, attempt: AttemptView) -> None:
        """End an attempt that hangs: it sends heartbeats but makes no progress.

        A silent rank 0 is no hang: it may train normally and only fail to reach the API. Before its
        first heartbeat, the driver's heartbeats count.
        """
        allowed = timedelta(seconds=self._context.settings.hang_seconds)
        heard = attempt.rank_heard_at or attempt.heartbeat_at
        progressed = attempt.progressed_at
        if heard is None or progressed is None or heard - progressed < allowed:
            return
        error = {
            "type": "hang",
            "message": "The training has made no progress for "
            f"{allowed.total_seconds():g} s (DASL_HANG_SECONDS)",
        }
        with self._context.write() as session:
            ending = Ending("failed", error)
            lifecycle.finish_attempt(session, attempt.job_id, attempt.number, ending)
        self._context.stop(attempt.submission_id)


def ended_error(what: str, run: Run, lines: list[str]) -> dict[str, Any]:
    """Return the error of a driver of kind `what` that ended without a report."""
    return {"type": "driver-ended", "message": _why(what, run, lines), "log_tail": lines}


def _why(what: str, run: Run, lines: list[str]) -> str:
    if run.state == RunState.SUCCEEDED:
        return f"The {what} ended without reporting a result"
    if run.state == RunState.STOPPED:
        return f"The {what} was stopped from outside"
    how = "ended"
    if run.exit_code is not None:
        number = -run.exit_code if run.exit_code < 0 else run.exit_code - 128
        try:
            how = f"was ended by {signal.Signals(number).name}"
        except ValueError:
            how = f"ended with exit code {run.exit_code}"
    last = next((line.strip() for line in reversed(lines) if line.strip()), run.message)
    last = last.replace("\0", "\ufffd")
    return f"The {what} {how}: {last}" if last else f"The {what} {how}"
