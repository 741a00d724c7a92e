"""Copy the ends of logs that could not be stored when their attempts were finalized.

An attempt must be able to end while the artifact store is unavailable, so the rest of its log is copied later,
for a day. After a start, the logs of the last day are compared with Ray's, as an earlier dispatcher may have been killed.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy.orm import Session

from service.db.session import AWAY
from service.dispatcher import repository
from service.dispatcher.context import DispatcherContext, LeaseLost, passed
from service.dispatcher.executor import ExecutorUnavailable
from service.dispatcher.isolation import run_isolated
from service.dispatcher.log_copier import LogCopier
from service.scheduling import repository as scheduling
from service.scheduling.repository import AttemptView, Ended

logger = logging.getLogger(__name__)

_RETRY_EVERY = timedelta(seconds=30)
KEEP_TRYING = timedelta(days=1)
"""How long after its end an attempt's log is still copied."""
_BATCH_SIZE = 20


class LogRecovery:
    """Copies the missing ends of the logs of finalized attempts."""

    def __init__(self, context: DispatcherContext, logs: LogCopier) -> None:
        self._context, self._logs = context, logs
        self._missing: dict[str, AttemptView] = {}
        """Attempts whose logs could not be stored, by submission id."""
        self._failed_at: datetime | None = None
        self._term = 0
        """The value of `terms` for which the logs of the last day are compared."""
        self._compared: Ended | None = None
        """The last attempt whose log is compared; `None`: all are."""

    @property
    def is_pending(self) -> bool:
        """Whether the rest of any log is not stored yet."""
        return bool(self._missing)

    def add(self, attempt: AttemptView) -> None:
        """Copy the rest of this attempt's log later. Thread-safe."""
        self._missing[attempt.submission_id] = attempt

    def round(self) -> bool:
        """Copy a batch of logs, unless one failed within the last 30 s.

        Returns:
            Whether this dispatcher is in charge; if not, nothing was done.
        """
        if not self._context.in_charge:
            return False
        now = self._context.clock()
        if self._context.executor_answers and passed(self._failed_at, now, _RETRY_EVERY):
            self._copy_batch(now)
        return True

    def _copy_batch(self, now: datetime) -> None:
        if self._term != self._context.terms:
            # Another dispatcher may have finalized attempts and been killed before this one took the lease.
            self._term, self._compared = self._context.terms, Ended(now - KEEP_TRYING)
        missing, compared = list(self._missing.values())[:_BATCH_SIZE], self._compared
        if not missing and compared is None:
            return
        with self._context.database.read() as session:
            recent = [] if compared is None else self._finalized(session, compared, now)
            attempts = {attempt.submission_id: attempt for attempt in (*missing, *recent)}
            jobs = {attempt.job_id for attempt in attempts.values()}
            jobs_with_logs = repository.with_logs(session, jobs)
        for name, attempt in attempts.items():
            copy = partial(self._copy, incomplete=self._missing.pop(name, None) is not None)
            if attempt.job_id in jobs_with_logs:
                run_isolated(copy, attempt, "copy the rest of this log")
        self._compared = Ended.from_view(recent[-1]) if len(recent) == _BATCH_SIZE else None

    def _finalized(self, session: Session, after: Ended, now: datetime) -> list[AttemptView]:
        return scheduling.finalized_attempts(session, after=after, before=now, limit=_BATCH_SIZE)

    def _copy(self, attempt: AttemptView, *, incomplete: bool) -> None:
        """Copy the rest of a log, or keep the attempt for later.

        Args:
            incomplete: whether the log is certain to be incomplete.
        """
        name = attempt.submission_id
        try:
            size = self._logs.copy_rest(attempt.job_id, attempt.number, name)
        except (LeaseLost, *AWAY):
            raise
        except ExecutorUnavailable as error:
            # Check whether Ray does not answer, or only the node with the log.
            try:
                self._context.executor.status(name)
            except ExecutorUnavailable:
                self._keep(attempt)
            else:
                if incomplete:
                    logger.warning("The rest of the log of %s is lost: %s", name, error)
        except Exception as error:  # noqa: BLE001  # fsspec backends raise errors of any type
            if not incomplete:
                logger.warning("The rest of the log of %s is not stored now: %s", name, error)
            self._keep(attempt)
        else:
            if size is None:
                self._keep(attempt)
            elif incomplete and size == 0:
                logger.warning("Ray no longer has the log of %s, whose end may not be stored", name)
            elif incomplete:
                logger.info("The log of %s is complete now", name)

    def _keep(self, attempt: AttemptView) -> None:
        assert attempt.finished_at is not None
        now = self._context.clock()
        self._failed_at = now
        if passed(attempt.finished_at, now, KEEP_TRYING):
            name = attempt.submission_id
            logger.warning("The rest of the log of %s is lost: it was not stored for a day", name)
            return
        self._missing[attempt.submission_id] = attempt  # moves it to the end
