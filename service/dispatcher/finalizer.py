"""Copying of attempts' logs and finalizing of ended attempts, in a separate loop.

Logs and stores may be slow, and must not delay the renewal of the dispatcher's lease. An ended attempt
holds its resources until it is finalized, which therefore waits for no log but its own.
"""

from datetime import timedelta

from service import lifecycle
from service.db.models import Attempt
from service.dispatcher.adoption import Adoption
from service.dispatcher.context import DispatcherContext, passed
from service.dispatcher.log_copier import LogCopier
from service.dispatcher.step_pool import Step, StepPool
from service.runs import repository as runs
from service.scheduling import repository as scheduling
from service.scheduling.repository import AttemptView
from service.states import AttemptState


class Finalizer:
    """Copies logs and finalizes ended attempts."""

    def __init__(
        self,
        context: DispatcherContext,
        logs: LogCopier,
        adoption: Adoption,
        finals: StepPool,
        copies: StepPool,
    ) -> None:
        self._context, self._logs, self._adoption = context, logs, adoption
        self._finals, self._copies = finals, copies

    def round(self) -> bool:
        """Finalize ended attempts, then copy new log lines of running ones.

        Returns:
            Whether this dispatcher is in charge; if not, nothing was done.
        """
        if not (self._context.in_charge and self._context.executor_answers):
            return False
        with self._context.database.read() as session:
            ended = scheduling.ended_attempts(session)
            live = scheduling.live_attempts(session)
        self._finals.run(
            Step(item.submission_id, self.finalize, item, "finalize this attempt")
            for item in ended
            if not self._copies.is_busy(item.submission_id)
        )
        self._copies.run(
            Step(item.submission_id, self._logs.follow, item, "copy the log of this attempt")
            for item in live
            if item.state != AttemptState.CREATED
        )
        return True

    def finalize(self, attempt: AttemptView) -> None:
        """Copy the rest of an ended attempt's log, adopt its checkpoints, and mark it as finalized.

        A driver that still runs is stopped first, after a grace period. The job's next attempt starts
        only after this, because it may resume from an adopted checkpoint.
        """
        assert attempt.finished_at is not None
        run = self._context.executor.status(attempt.submission_id)
        if run is not None and not run.state.ended:
            grace = timedelta(seconds=self._context.settings.cancel_grace_seconds)
            if passed(attempt.finished_at, self._context.clock(), grace):
                self._context.stop(attempt.submission_id)
            return
        if not self._adoption.adopt(attempt):
            return
        lines = self._logs.finish(attempt)
        if attempt.has_error:
            with self._context.write() as session:
                lifecycle.attach_log_tail(session, attempt.job_id, attempt.number, lines)
        with self._context.write() as session:
            runs.mark_finalized(session, Attempt, attempt.job_id, attempt.number)
        self._context.forget(attempt.submission_id)
