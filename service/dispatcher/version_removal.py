"""Removal of the files of old versions of data sets that no job needs."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from service.datasets.versions import repository as versions
from service.datasets.versions.service import removable_uri
from service.db.models import DatasetVersion
from service.dispatcher.context import DispatcherContext, passed
from service.dispatcher.isolation import run_isolated

logger = logging.getLogger(__name__)

# The query reads the jobs of data sets with old versions.
_EVERY = timedelta(minutes=5)
_BATCH_SIZE = 20


class VersionRemoval:
    """Removes old versions in batches. A failed removal is retried after some minutes."""

    def __init__(self, context: DispatcherContext) -> None:
        self._context = context
        self._done_at: datetime | None = None
        self._failed: set[str] = set()

    def round(self) -> None:
        """Remove a batch; after the last one, wait some minutes before the next."""
        if not passed(self._done_at, self._context.clock(), _EVERY):
            return
        with self._context.database.read() as session:
            unneeded = versions.unneeded(session, _BATCH_SIZE, self._failed)
        for version in unneeded:
            run_isolated(self.remove, version, "remove this version of a data set")
        if len(unneeded) < _BATCH_SIZE:
            self._done_at = self._context.clock()
            self._failed.clear()

    def remove(self, version: DatasetVersion) -> None:
        """Remove the files of a version, unless a new job needs it."""
        dataset_id, number = version.dataset_id, version.number
        with self._context.write() as session:
            if not versions.give_up(session, dataset_id, number):
                return
        self._failed.add(dataset_id)
        try:
            self._context.storage.remove(removable_uri(version, self._context.storage))
        except (OSError, ValueError) as error:
            logger.warning("Version %s of %s cannot be removed now: %s", number, dataset_id, error)
            return
        with self._context.write() as session:
            versions.mark_removed(session, dataset_id, number)
        self._failed.discard(dataset_id)
        logger.info("removed the files of version %s of %s", number, dataset_id)
