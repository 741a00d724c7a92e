"""Checks of the artifact store, in a loop of their own: a store that hangs must not stop the dispatcher."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from service.artifacts import free_space
from service.checkpoints import repository as checkpoints
from service.dispatcher.context import DispatcherContext, passed
from service.scheduling.dispatcher_report import StoreReport

logger = logging.getLogger(__name__)

# The sizes of all checkpoints are added up.
_EVERY = timedelta(minutes=1)


class StoreCheck:
    """Checks every minute whether the store is writable, and what it holds."""

    def __init__(self, context: DispatcherContext) -> None:
        self._context = context
        self._checked_at: datetime | None = None
        self.report: StoreReport | None = None
        """The last result."""

    def round(self) -> bool:
        """Check the store if due; return whether the database was used."""
        now = self._context.clock()
        if not self._context.in_charge or not passed(self._checked_at, now, _EVERY):
            return False
        problem, free = self._problem()
        if problem is not None and (self.report is None or self.report.problem is None):
            logger.error("Artifacts cannot be stored: %s", problem)
        with self._context.database.read() as session:
            of_checkpoints, of_artifacts = checkpoints.stored_bytes(session)
        self.report = StoreReport(
            checked_at=now,
            problem=problem,
            free_bytes=free,
            checkpoint_bytes=of_checkpoints,
            artifact_bytes=of_artifacts,
        )
        # Last: after an outage of the database the next check is not a minute later.
        self._checked_at = now
        return True

    def _problem(self) -> tuple[str | None, int | None]:
        """Return why the store cannot be written, if so, and its free space."""
        uri, free = self._context.storage.root, None
        try:
            free = free_space.free_bytes(uri)
            if (shortage := free_space.shortage(free_space.ARTIFACTS, uri)) is not None:
                return shortage, free
            self._context.storage.check_writable()
        except (OSError, ValueError) as error:
            return str(error), free
        return None, free
