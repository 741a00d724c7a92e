"""Copying of attempts' logs from the executor to the artifact store.

Logs are copied while they grow. An attempt must be able to end while the store is unavailable, so the rest of its log is
then copied later, for a day. After a start, the logs of the last day are compared with Ray's, as an earlier dispatcher
may have been killed.
"""

import logging
import time
from datetime import datetime, timedelta
from functools import partial

from service.artifacts.attempt_log import AttemptLog
from service.db.session import AWAY
from service.dispatcher import repository
from service.dispatcher.context import DispatcherContext, LeaseLost, passed
from service.dispatcher.executor import Executor, ExecutorUnavailable
from service.dispatcher.isolation import run_isolated
from service.scheduling import repository as scheduling
from service.scheduling.repository import AttemptView, Ended

logger = logging.getLogger(__name__)

KEEP_TRYING = timedelta(days=1)
"""How long after its end an attempt's log is still copied."""
TAIL_LINES = 50
_LONGEST_LINE = 2000
_TAIL_BYTES = 1 << 20
# Most bytes of one copy from a running driver's log, so that other logs are copied, too.
_BLOCK = 4 << 20
_INTERVAL = timedelta(seconds=2)
# Share of the time that copying may take; slow copies are made less often.
_SHARE = 0.05
_RETRY_AFTER = timedelta(seconds=30)
_BATCH_SIZE = 20


class LogCopier:
    """Copies drivers' logs in intervals, until they are complete.

    While the store is unavailable, only the logs that are being copied wait for it, and the others are copied later.
    """

    def __init__(self, context: DispatcherContext) -> None:
        self._context = context
        self._last_copies: dict[str, tuple[datetime, timedelta]] = {}
        """When each log was last copied, and the pause before its next copy."""
        self._begun: set[str] = set()
        """Submissions whose logs in the store were checked to be theirs."""
        self._missing: dict[str, AttemptView] = {}
        """Ended attempts the rest of whose logs could not be stored, by submission id."""
        self._failed_at: datetime | None = None
        """When `complete` last failed to store a log."""
        self._term = 0
        """The value of `terms` for which the logs of the last day are compared."""
        self._compared: Ended | None = None
        """The last attempt whose log is compared; `None`: all are."""

    @property
    def is_pending(self) -> bool:
        """Whether the rest of any log is not stored yet."""
        return bool(self._missing)

    def follow(self, attempt: AttemptView) -> None:
        """Copy the new whole lines of a running driver's log, unless the last copy was just made.

        A log that cannot be read or stored only causes a warning: its attempt must still be watched.
        """
        now, name = self._context.clock(), attempt.submission_id
        copied_at, pause = self._last_copies.get(name, (None, _INTERVAL))
        if self._context.store_is_away or not passed(copied_at, now, pause):
            return
        began = time.monotonic()
        try:
            self._copy(attempt, final=False)
        except (LeaseLost, *AWAY):
            raise
        except Exception as error:  # noqa: BLE001  # fsspec backends raise errors of any type
            logger.warning("The log of %s is not copied now: %s", name, error)
            pause = _RETRY_AFTER
        else:
            pause = max(_INTERVAL, timedelta(seconds=(time.monotonic() - began) / _SHARE))
        self._last_copies[name] = (now, pause)

    def tail(self, attempt: AttemptView) -> list[str]:
        """Return the last lines of a driver's log without copying them.

        If the executor cannot provide them, return the last copied lines.
        """
        lines = last_lines_if_readable(self._context.executor, attempt.submission_id)
        return lines or self._copied_tail(attempt)

    def finish(self, attempt: AttemptView) -> list[str]:
        """Copy the rest of an ended driver's log; return its last lines.

        If Ray no longer knows the driver, return the last copied lines. If the store is unavailable, `complete` copies
        the rest.
        """
        name = attempt.submission_id
        self._last_copies.pop(name, None)
        lines: list[str] = []
        try:
            lines = last_lines(self._context.executor, name)
            if self._copy_rest(attempt) is not None:
                return lines or self._copied_tail(attempt)
            logger.warning("The rest of the log of %s is stored later", name)
        except ExecutorUnavailable as error:
            # The node with the log has ended.
            logger.warning("The rest of the log of %s is lost: %s", name, error)
            return lines or self._copied_tail(attempt)
        except (LeaseLost, *AWAY):
            raise
        except Exception as error:  # noqa: BLE001  # fsspec backends raise errors of any type
            logger.warning("The rest of the log of %s cannot be stored now: %s", name, error)
        self._missing[name] = attempt
        return lines

    def complete(self) -> bool:
        """Copy a batch of the missing ends of logs, unless one failed within the last 30 s.

        Returns:
            Whether this dispatcher is in charge; if not, nothing was done.
        """
        if not self._context.in_charge:
            return False
        now = self._context.clock()
        if self._context.executor_answers and passed(self._failed_at, now, _RETRY_AFTER):
            self._complete_batch(now)
        return True

    def _complete_batch(self, now: datetime) -> None:
        if self._term != self._context.terms:
            # Another dispatcher may have finalized attempts and been killed before this one took the lease.
            self._term, self._compared = self._context.terms, Ended(now - KEEP_TRYING)
        missing, compared = list(self._missing.values())[:_BATCH_SIZE], self._compared
        if not missing and compared is None:
            return
        recent: list[AttemptView] = []
        with self._context.database.read() as session:
            if compared is not None:
                recent = scheduling.finalized_attempts(
                    session, after=compared, before=now, limit=_BATCH_SIZE
                )
            attempts = {attempt.submission_id: attempt for attempt in (*missing, *recent)}
            jobs = {attempt.job_id for attempt in attempts.values()}
            jobs_with_logs = repository.with_logs(session, jobs)
        for name, attempt in attempts.items():
            copy = partial(self._complete, incomplete=self._missing.pop(name, None) is not None)
            if attempt.job_id in jobs_with_logs:
                run_isolated(copy, attempt, "copy the rest of this log")
        self._compared = Ended.from_view(recent[-1]) if len(recent) == _BATCH_SIZE else None

    def _complete(self, attempt: AttemptView, *, incomplete: bool) -> None:
        """Copy the rest of a log, or keep the attempt for later.

        Args:
            incomplete: whether the log is certain to be incomplete.
        """
        name = attempt.submission_id
        try:
            size = self._copy_rest(attempt)
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
        self._failed_at = now = self._context.clock()
        name = attempt.submission_id
        if passed(attempt.finished_at, now, KEEP_TRYING):
            logger.warning("The rest of the log of %s is lost: it was not stored for a day", name)
            return
        self._missing[name] = attempt  # moves it to the end

    def _copy_rest(self, attempt: AttemptView) -> int | None:
        """Copy the part of an ended driver's log that is not stored yet. Idempotent.

        Returns:
            The size of Ray's log, 0 if Ray no longer knows the driver; `None` if nothing was done because
            the store is unavailable.
        """
        return None if self._context.store_is_away else self._copy(attempt, final=True)

    def _copied_tail(self, attempt: AttemptView) -> list[str]:
        if self._context.store_is_away:
            return []
        try:
            with self._context.watch_store():
                text, _ = self._stored(attempt).tail(TAIL_LINES)
                return _lines(b"".join(text))
        except Exception as error:  # noqa: BLE001  # fsspec backends raise errors of any type
            job_id, number = attempt.job_id, attempt.number
            logger.warning("The log of attempt %d of %s cannot be read: %s", number, job_id, error)
            return []

    def _stored(self, attempt: AttemptView) -> AttemptLog:
        return AttemptLog(self._context.storage, attempt.job_id, attempt.number)

    def _copy(self, attempt: AttemptView, *, final: bool) -> int:
        """Copy new bytes of a log, and return its size."""
        name = attempt.submission_id
        with self._context.watch_store():
            log = self._stored(attempt)
            if name not in self._begun and not log.belongs_to(name):
                self._check_in_charge(name)
                log.begin(name)
            self._begun.add(name)
            size = self._copy_to(log, name, final=final)
            if final:
                self._begun.discard(name)
            return size

    def _copy_to(self, log: AttemptLog, submission_id: str, *, final: bool) -> int:
        position, limit = log.end(), self._context.settings.log_max_bytes
        while True:
            piece = self._context.executor.logs(submission_id, position, _BLOCK)
            behind = piece.size - position
            if position >= limit // 2 and behind > max(_BLOCK, limit):
                # Skip the middle of the log: `AttemptLog` would drop it anyway.
                position = piece.size - limit // 2
                data = self._context.executor.logs(submission_id, position, _BLOCK).data
                line = data.find(b"\n") + 1
                position, data = position + line, data[line:]
            else:
                data = piece.data
            complete = position + len(data) >= piece.size
            # A partial line may end within a character. A line longer than a block is copied in parts.
            if not (final and complete) and (b"\n" in data or len(data) < _BLOCK):
                data = data[: data.rfind(b"\n") + 1]
            if data:
                self._check_in_charge(submission_id)
                log.append(position, data, limit)
                position += len(data)
            if not final or complete or not data:
                return piece.size

    def _check_in_charge(self, submission_id: str) -> None:
        if not self._context.in_charge:
            raise LeaseLost(f"Another dispatcher copies the log of {submission_id}")


def last_lines(executor: Executor, submission_id: str) -> list[str]:
    """Return the last lines of a driver's log, for an error; empty if the driver is unknown."""
    size = executor.logs(submission_id, 0, 1).size
    start = max(0, size - _TAIL_BYTES)
    return _lines(executor.logs(submission_id, start, _TAIL_BYTES).data)


def last_lines_if_readable(executor: Executor, submission_id: str) -> list[str]:
    """Return `last_lines`; empty if the executor cannot provide them, for example after the node has ended."""
    try:
        return last_lines(executor, submission_id)
    except ExecutorUnavailable as error:
        logger.warning("The end of the log of %s cannot be read: %s", submission_id, error)
        return []


def _lines(end: bytes) -> list[str]:
    # PostgreSQL cannot store NUL characters.
    lines = end.decode(errors="replace").replace("\0", "\ufffd").splitlines()[-TAIL_LINES:]
    return [line[:_LONGEST_LINE] for line in lines]
