"""Checks of the artifact store and of the API, in separate loops: one that hangs must not delay the dispatcher."""

import logging
from datetime import datetime, timedelta
from functools import cached_property

from service.artifacts import free_space
from service.checkpoints import repository as checkpoints
from service.client import ApiError, ConnectionFailed
from service.client.config import Connection
from service.client.sync.transport import Transport
from service.dispatcher.context import DispatcherContext, passed
from service.scheduling.dispatcher_report import StoreReport

logger = logging.getLogger(__name__)

_EVERY = timedelta(minutes=1)
# The query reads all checkpoints and artifacts.
_SIZES_EVERY = timedelta(minutes=10)
_TIMEOUT_SECONDS = 5.0
# A single check may fail while the API is busy or restarted.
_FAILURES = 2


class StoreCheck:
    """Checks every minute whether the store is writable, and every ten how much it holds."""

    def __init__(self, context: DispatcherContext) -> None:
        self._context = context
        self._checked_at: datetime | None = None
        self._sized_at: datetime | None = None
        self._sizes = (0, 0)
        self._result: StoreReport | None = None
        self._asked_at: datetime | None = None
        """When the pending check began."""

    @property
    def report(self) -> StoreReport | None:
        """The last result; a problem if the store has not answered for five minutes."""
        asked_at, now = self._asked_at, self._context.clock()
        if asked_at is None or not passed(asked_at, now, free_space.SILENT):
            return self._result
        problem = free_space.silent(now - asked_at)
        result = self._result or StoreReport(checked_at=asked_at)
        return result.model_copy(update={"problem": problem})

    @property
    def hangs(self) -> bool:
        """Whether a check has not ended, or the last one found that the store cannot be written."""
        return self._asked_at is not None or not self.is_writable

    @property
    def is_writable(self) -> bool:
        """Whether the store was writable at the last check."""
        report = self.report
        return report is None or report.problem is None

    def round(self) -> bool:
        """Check the store if due; return whether the database was used."""
        now = self._context.clock()
        if not self._context.in_charge or not passed(self._checked_at, now, _EVERY):
            return False
        self._asked_at = now
        try:
            problem, free = self._problem()
        finally:
            self._asked_at = None
        if problem is not None and (self._result is None or self._result.problem is None):
            logger.error("Nothing starts, because no artifact can be stored: %s", problem)
        if passed(self._sized_at, now, _SIZES_EVERY):
            with self._context.database.read() as session:
                self._sizes = checkpoints.stored_bytes(session)
            self._sized_at = now
        of_checkpoints, of_artifacts = self._sizes
        self._result = StoreReport(
            checked_at=now,
            problem=problem,
            free_bytes=free,
            checkpoint_bytes=of_checkpoints,
            artifact_bytes=of_artifacts,
        )
        # Set it last, so that after an outage of the database the next check comes at once.
        self._checked_at = now
        return True

    def _problem(self) -> tuple[str | None, int | None]:
        """Return why the store cannot be written (`None` if it can) and its free space."""
        uri, free = self._context.storage.root, None
        try:
            free = free_space.free_bytes(uri)
            if (shortage := free_space.shortage(free_space.ARTIFACTS, uri)) is not None:
                return shortage, free
            self._context.storage.check_writable()
        except (OSError, ValueError) as error:
            return str(error), free
        return None, free


class ApiCheck:
    """Checks whether the API answers at the address that the workers use.

    Before its first answer it counts as answering: this dispatcher may not reach the address at all, or starts before
    the API.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._failures: int | None = None
        """Checks that failed since the last answer; `None` before the first one."""

    @cached_property
    def _transport(self) -> Transport:
        connection = Connection(self._url, token=None)
        return Transport(connection, patience=0.0, timeout=_TIMEOUT_SECONDS)

    @property
    def answers(self) -> bool:
        """Whether the API answered recently."""
        return self._failures is None or self._failures < _FAILURES

    def round(self) -> bool:
        """Check the API; return whether the database was used."""
        answered = self.answers
        try:
            # Do not keep the connection: it would break at a restart of the API.
            self._transport.json("GET", "/livez", headers={"Connection": "close"})
        except (ConnectionFailed, ApiError) as error:
            if self._failures is not None:
                self._failures += 1
            if answered and not self.answers:
                logger.warning(
                    "Nothing starts, because the API at %s (DASL_API_URL) does not answer: %s",
                    self._url,
                    error,
                )
        else:
            self._failures = 0
            if not answered:
                logger.info("The API answers")
        return False
