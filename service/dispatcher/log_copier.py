"""Copying of attempts' logs from the executor to the artifact store while they grow."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from service.artifacts.attempt_log import AttemptLog
from service.artifacts.storage import Storage
from service.db.session import AWAY
from service.dispatcher.context import LeaseLost, passed
from service.dispatcher.executor import Executor, ExecutorUnavailable
from service.dispatcher.store_outage import StoreOutage

logger = logging.getLogger(__name__)

TAIL_LINES = 50
_LONGEST_LINE = 2000
_TAIL_BYTES = 1 << 20
# Most bytes of one copy from a running driver's log, so that other logs are copied, too.
_BLOCK = 4 << 20
_INTERVAL = timedelta(seconds=2)
# Share of the time that copying may take; slow copies are made less often.
_SHARE = 0.05
_RETRY_AFTER = timedelta(seconds=30)


@dataclass(frozen=True)
class LogEnd:
    """The last lines of a driver's log, and whether a part of it is not stored yet."""

    lines: list[str]
    copy_later: bool = False


class LogCopier:
    """Copies drivers' logs in intervals, until they are complete.

    While the store is unavailable, only one log waits for it, and the others are copied later.

    Args:
        limit: how many bytes of an attempt's log are kept; see `AttemptLog`.
        in_charge: whether this dispatcher may still write logs; called before each block.
    """

    def __init__(
        self,
        executor: Executor,
        storage: Storage,
        clock: Callable[[], datetime],
        limit: int,
        *,
        in_charge: Callable[[], bool],
        outage: StoreOutage,
    ) -> None:
        self._executor, self._storage, self._outage = executor, storage, outage
        self._clock, self._limit = clock, limit
        self._in_charge = in_charge
        self._last_copies: dict[str, tuple[datetime, timedelta]] = {}
        """When each log was last copied, and the pause before its next copy."""
        self._begun: set[str] = set()
        """Submissions whose logs in the store were checked to be theirs."""

    def follow(self, job_id: str, number: int, submission_id: str) -> None:
        """Copy the new whole lines of a running driver's log, unless the last copy was just made.

        A log that cannot be read or stored only causes a warning: its attempt must still be watched.
        """
        now = self._clock()
        copied_at, pause = self._last_copies.get(submission_id, (None, _INTERVAL))
        if self._outage.away or not passed(copied_at, now, pause):
            return
        began = time.monotonic()
        try:
            self._copy(job_id, number, submission_id, final=False)
        except (LeaseLost, *AWAY):
            raise
        except Exception as error:  # noqa: BLE001  # fsspec backends raise errors of any type
            logger.warning("The log of %s is not copied now: %s", submission_id, error)
            pause = _RETRY_AFTER
        else:
            pause = max(_INTERVAL, timedelta(seconds=(time.monotonic() - began) / _SHARE))
        self._last_copies[submission_id] = (now, pause)

    def tail(self, job_id: str, number: int, submission_id: str) -> list[str]:
        """Return the last lines of a driver's log without copying them.

        If the executor cannot provide them, return the last copied lines.
        """
        lines = last_lines_if_readable(self._executor, submission_id)
        return lines or self._copied_tail(job_id, number)

    def finish(self, job_id: str, number: int, submission_id: str) -> LogEnd:
        """Copy the rest of a driver's log; return its last lines.

        If Ray no longer knows the driver, return the last copied lines. An attempt must be able to end
        without a log, and without a store; `copy_rest` then copies its log later.
        """
        self._last_copies.pop(submission_id, None)
        lines: list[str] = []
        try:
            lines = last_lines(self._executor, submission_id)
            if self.copy_rest(job_id, number, submission_id) is None:
                logger.warning("The rest of the log of %s is stored later", submission_id)
                return LogEnd(lines, copy_later=True)
        except ExecutorUnavailable as error:
            # The node with the log has ended.
            logger.warning("The rest of the log of %s is lost: %s", submission_id, error)
        except (LeaseLost, *AWAY):
            raise
        except Exception as error:  # noqa: BLE001  # fsspec backends raise errors of any type
            logger.warning(
                "The rest of the log of %s cannot be stored now: %s", submission_id, error
            )
            return LogEnd(lines, copy_later=True)
        return LogEnd(lines or self._copied_tail(job_id, number))

    def copy_rest(self, job_id: str, number: int, submission_id: str) -> int | None:
        """Copy the part of an ended driver's log that is not stored yet. Idempotent.

        Returns:
            The size of Ray's log, 0 if Ray no longer knows the driver; `None` if nothing was done because
            the store is unavailable.
        """
        if self._outage.away:
            return None
        return self._copy(job_id, number, submission_id, final=True)

    def _copied_tail(self, job_id: str, number: int) -> list[str]:
        if self._outage.away:
            return []
        try:
            with self._outage.watch():
                text, _ = AttemptLog(self._storage, job_id, number).tail(TAIL_LINES)
                return _lines(b"".join(text))
        except Exception as error:  # noqa: BLE001  # fsspec backends raise errors of any type
            logger.warning("The log of attempt %d of %s cannot be read: %s", number, job_id, error)
            return []

    def _copy(self, job_id: str, number: int, submission_id: str, *, final: bool) -> int:
        """Copy new bytes of a log, and return its size."""
        with self._outage.watch():
            log = AttemptLog(self._storage, job_id, number)
            if submission_id not in self._begun and not log.belongs_to(submission_id):
                self._check_in_charge(submission_id)
                log.begin(submission_id)
            self._begun.add(submission_id)
            size = self._copy_to(log, submission_id, final=final)
            if final:
                self._begun.discard(submission_id)
            return size

    def _copy_to(self, log: AttemptLog, submission_id: str, *, final: bool) -> int:
        position = log.end()
        while True:
            piece = self._executor.logs(submission_id, position, _BLOCK)
            behind = piece.size - position
            if position >= self._limit // 2 and behind > max(_BLOCK, self._limit):
                # Skip the middle of the log: `AttemptLog` would drop it anyway.
                position = piece.size - self._limit // 2
                data = self._executor.logs(submission_id, position, _BLOCK).data
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
                log.append(position, data, self._limit)
                position += len(data)
            if not final or complete or not data:
                return piece.size

    def _check_in_charge(self, submission_id: str) -> None:
        if not self._in_charge():
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
