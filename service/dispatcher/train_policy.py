"""Rules for attempts of jobs.

An attempt that Ray does not know is lost, and the job gets a new one. The lost attempt is not submitted
again, because a stalled earlier dispatcher may still submit it.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy.orm import Session

from service import lifecycle, states
from service.db.models import Attempt
from service.dispatcher import repository
from service.dispatcher.checks import ApiCheck, StoreCheck
from service.dispatcher.contact import Contact
from service.dispatcher.context import DispatcherContext, passed
from service.dispatcher.driver_errors import driver_ended, undelivered, was_killed
from service.dispatcher.executor import Submission, SubmissionState
from service.dispatcher.isolation import run_isolated
from service.dispatcher.log_copier import LogCopier
from service.dispatcher.watcher import MissingAction, RunPolicy
from service.protocol import UNDELIVERED_EXIT_CODE
from service.runs import liveness
from service.runs import repository as runs
from service.runs.endings import Ending, Retry
from service.runs.repository import RunView
from service.scheduling import repository as scheduling
from service.scheduling.admission import Queued
from service.scheduling.nodes import ALL_NODES, Cluster, with_drains
from service.scheduling.repository import AttemptView
from service.states import AttemptState, Desired, StopReason

_STOP_OUTCOMES: dict[Desired, states.AttemptOutcome] = {
    Desired.CANCEL: "cancelled",
    Desired.PAUSE: "paused",
}


class TrainPolicy(RunPolicy[AttemptView]):
    """Rules for attempts of jobs."""

    noun = "job"
    off_head = True
    finalized = True

    def __init__(
        self, context: DispatcherContext, logs: LogCopier, store: StoreCheck, api: ApiCheck
    ) -> None:
        self._context, self._logs, self._store, self._api = context, logs, store, api
        self.entrypoint = context.entrypoints.job
        self._silent_since: dict[str, datetime] = {}
        """When this dispatcher first saw each live attempt that has not reported, by submission id."""
        self._grace = timedelta(seconds=context.settings.cancel_grace_seconds)
        # Heartbeats arrive at least twice per interval.
        self._contact = Contact(self._grace / 2)

    def live(self, session: Session) -> Sequence[AttemptView]:
        attempts, now = scheduling.live_attempts(session), self._context.clock()
        silent = [item.submission_id for item in attempts if item.state != AttemptState.RUNNING]
        self._silent_since = {name: self._silent_since.get(name, now) for name in silent}
        self._contact.keep(attempts)
        return attempts

    def create(
        self, session: Session, owner: str, token_hash: str, admitted: Queued | None
    ) -> Attempt | None:
        assert admitted is not None, "only admitted jobs start"
        if scheduling.has_unfinalized_attempt(session, owner):
            return None  # The checkpoint to resume from is not adopted yet.
        demand = admitted.demand
        return lifecycle.start_attempt(
            session, owner, token_hash, demand.workers, admitted.avoided, demand.worker
        )

    def on_missing(self, run: AttemptView) -> Ending | MissingAction:
        if run.state != AttemptState.CREATED:
            return self._check_lost(run)
        if run.requested != Desired.RUN:
            return Ending(_STOP_OUTCOMES[run.requested])
        if run.submission_id not in self._context.tokens:
            # The token was lost with the earlier dispatcher. If that one still submits the attempt, the API
            # refuses its driver's requests.
            message = "The dispatcher was restarted before Ray accepted the attempt"
            return Ending("lost", {"type": "attempt-lost", "message": message}, Retry.FREE)
        if self._exceeds_time_limit(run):
            self._request_stop(run, StopReason.TIME_LIMIT)
            return MissingAction.WAIT
        if self._is_late(run):
            message = f"Ray has not accepted the attempt for {self._allowed_to_start()}"
            return Ending("lost", {"type": "start-timeout", "message": message}, Retry.FREE)
        return MissingAction.SUBMIT

    def on_driver_ended(self, run: AttemptView, submission: Submission) -> Ending:
        forced = run.state == AttemptState.RUNNING
        if submission.state == SubmissionState.STOPPED and run.requested != Desired.RUN:
            return Ending(_STOP_OUTCOMES[run.requested], forced=forced)
        lines = self._logs.tail(run)
        if submission.exit_code == UNDELIVERED_EXIT_CODE:
            message = (
                "The run ended and saved its checkpoint, but the API did not answer. The next attempt resumes from "
                "that checkpoint"
            )
            return Ending("failed", undelivered(message, lines), Retry.FREE)
        error = driver_ended("training driver", submission, lines)
        retry = Retry.INFRASTRUCTURE if was_killed(submission) else Retry.LIMITED
        return Ending("failed", error, retry, forced)

    def enforce(self, run: AttemptView) -> Ending | None:
        if run.requested != Desired.RUN:
            self._stop_if_due(run)
            return self._check_hang(run)
        if self._exceeds_time_limit(run):
            self._request_stop(run, StopReason.TIME_LIMIT)
            return None
        return self._check_start(run) or self._check_hang(run)

    def end(self, session: Session, run: RunView, ending: Ending) -> None:
        lifecycle.finish_attempt(session, run.owner, run.number, ending)

    def request_checkpoints(self) -> bool:
        """Request that all attempts save a checkpoint and stop, because the service is stopping.

        Returns:
            Whether any of them is still live. Attempts without progress have nothing to save and do not count.
        """
        with self._context.database.read() as session:
            live = scheduling.live_attempts(session)
        saving = [attempt for attempt in live if attempt.progress_reported_at is not None]
        for attempt in saving:
            if attempt.requested == Desired.RUN:
                self._request_save(attempt, StopReason.SHUTDOWN)
        return bool(saving)

    def request_checkpoints_on_drained(self, cluster: Cluster) -> None:
        """Request that attempts with processes on drained nodes save a checkpoint and stop.

        Attempts without progress have nothing to save yet and are skipped.
        """
        with self._context.database.read() as session:
            saving = {drain.node for drain in scheduling.drains(session) if drain.save}
            if not saving:
                return
            nodes = [node.id for node in with_drains(cluster, saving).nodes if node.drained]
            on_drained = scheduling.attempts_on(session, nodes)
            live = scheduling.live_attempts(session)
        for attempt in live:
            is_drained = ALL_NODES in saving or (attempt.job_id, attempt.number) in on_drained
            if is_drained and attempt.progress_reported_at and attempt.requested == Desired.RUN:
                self._request_save(attempt, StopReason.DRAIN)

    def _check_lost(self, attempt: AttemptView) -> Ending | MissingAction:
        """Return the ending of an attempt that Ray has forgotten, once its processes are silent."""
        # After a crash of Ray's head, its workers may run for another minute, so the next attempt may
        # start only after a lease without a heartbeat.
        last_heartbeat = attempt.heartbeat_at or attempt.created_at
        submitted_here = attempt.submission_id in self._context.submitted
        restarted = None if submitted_here else self._context.restarted
        silent = passed(last_heartbeat, self._context.clock(), self._context.lease)
        if restarted is None and not silent:
            return MissingAction.WAIT
        message = "Ray no longer knows the attempt; Ray was probably restarted"
        if restarted == "service":
            message = "The service, or its machine, was stopped while the attempt ran"
        error = {
            "type": "attempt-lost",
            "message": message,
            "log_tail": self._logs.tail(attempt),
        }
        # The job may have made Ray crash.
        retry = Retry.FREE if restarted == "service" else Retry.INFRASTRUCTURE
        return Ending("lost", error, retry)

    def _stop_if_due(self, attempt: AttemptView) -> None:
        """Stop an attempt's driver if its ranks make no progress or take too long after a stop request.

        The ranks receive the stop request from the API, and stop after a step or during an evaluation.
        Saving may take minutes, during which rank 0 reports progress. Only time with heartbeats counts:
        while the API is unreachable, the ranks do not receive the request.
        """
        requested_at = attempt.stop_requested_at
        if attempt.desired != Desired.RUN:
            with self._context.write() as session:
                lifecycle.start_stopping(session, attempt.job_id)
            with self._context.database.read() as session:
                requested_at = repository.stop_requested_at(
                    session, attempt.job_id, attempt.desired
                )
        if self._is_due(attempt, requested_at):
            self._context.stop(attempt.submission_id)

    def _is_due(self, attempt: AttemptView, requested_at: datetime | None) -> bool:
        if attempt.state == AttemptState.SUBMITTED:
            return True  # A driver that never reported has nothing to save.
        longest = timedelta(seconds=self._context.settings.cancel_max_seconds)
        if requested_at is None or passed(requested_at, self._context.clock(), longest):
            return True
        return self._contact.standstill(attempt, requested_at, self._context.clock()) >= self._grace

    def _request_save(self, attempt: AttemptView, reason: StopReason) -> None:
        request = partial(self._request_stop, reason=reason)
        run_isolated(request, attempt, "request a checkpoint of this attempt")

    def _request_stop(self, attempt: AttemptView, reason: StopReason) -> None:
        with self._context.write() as session:
            lifecycle.request_stop(session, attempt.job_id, attempt.number, reason)

    def _exceeds_time_limit(self, attempt: AttemptView) -> bool:
        """Whether a job's attempts together exceed its time limit."""
        now = self._context.clock()
        if now - (attempt.job_started_at or attempt.created_at) < attempt.limit:
            return False
        # Count only confirmed runtime: neither pauses nor the time that the service was off or its machine
        # slept. Without a heartbeat, count the time since creation.
        runtime = now - attempt.created_at
        if attempt.heartbeat_at is not None:
            silent = max(now - attempt.heartbeat_at, timedelta())
            runtime = attempt.ran + min(silent, liveness.MAX_SILENCE)
        with self._context.database.read() as session:
            earlier = runs.time_used(session, attempt.job_id, before=attempt.number)
        return earlier + runtime >= attempt.limit

    def _check_start(self, attempt: AttemptView) -> Ending | None:
        """Return the ending of an attempt that Ray accepted, but whose driver has not reported in time."""
        if not self._is_late(attempt):
            return None
        error = {
            "type": "start-timeout",
            "message": f"Ray has accepted the attempt, but its driver has not reported for "
            f"{self._allowed_to_start()}. Check that Ray's nodes reach {self._context.settings.api_url} "
            "(DASL_API_URL)",
        }
        # No driver can report while the API does not answer; the next attempt starts when it does.
        retry = Retry.INFRASTRUCTURE if self._api.answers else Retry.FREE
        return Ending("failed", error, retry)

    def _is_late(self, attempt: AttemptView) -> bool:
        """Whether this dispatcher has waited too long for an attempt's first report.

        While no dispatcher ran, the API may have been unreachable as well.
        """
        since = self._silent_since.get(attempt.submission_id)
        allowed = timedelta(seconds=self._context.settings.start_seconds)
        return since is not None and self._context.clock() - since >= allowed

    def _allowed_to_start(self) -> str:
        return f"{self._context.settings.start_seconds:g} s (DASL_START_SECONDS)"

    def _check_hang(self, attempt: AttemptView) -> Ending | None:
        """Return the ending of an attempt that hangs: it sends heartbeats, but makes no progress.

        A silent rank 0 does not count as hanging: it may train normally and only fail to reach the API.
        """
        allowed = timedelta(seconds=self._context.settings.hang_seconds)
        if attempt.standstill < allowed:
            return None
        error = {
            "type": "hang",
            "message": "The training has made no progress for "
            f"{allowed.total_seconds():g} s (DASL_HANG_SECONDS)",
        }
        # A hanging store makes attempts hang.
        retry = Retry.LIMITED if self._store.is_writable else Retry.OUTAGE
        return Ending("failed", error, retry)
