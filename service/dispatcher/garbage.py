"""Files that nothing needs any more: of checkpoints marked to be deleted, and of none at all.

What may go is decided in SQL alone. Files go first and the row after them, so that whatever is cut
short in between is done again.
"""

from __future__ import annotations

import logging

from service.checkpoints import repository as checkpoints
from service.dispatcher.repository import AttemptView
from service.dispatcher.shared import Shared

logger = logging.getLogger(__name__)

_AT_ONCE = 20


class Garbage:
    """The dispatcher's part that removes files."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def sweep(self) -> None:
        """Remove the files of some checkpoints that are marked."""
        with self._shared.database.read() as session:
            found = checkpoints.to_delete(session, _AT_ONCE)
            marked = [(checkpoint.id, checkpoint.uri) for checkpoint in found]
        for id, uri in marked:
            try:
                self._shared.storage.remove(uri)
            except OSError as error:
                logger.warning("The files of %s stay for now: %s", id, error)
                continue
            with self._shared.write() as session:
                checkpoints.mark_deleted(session, id)

    def sweep_attempt(self, attempt: AttemptView) -> None:
        """Remove what an attempt that is over, and whose processes are gone, wrote and never
        registered: it was killed between the two."""
        assert attempt.finished_at is not None
        storage = self._shared.storage
        with self._shared.database.read() as session:
            known = checkpoints.places(session, attempt.job_id, attempt.number)
        try:
            for uri in storage.folders(storage.checkpoints_uri(attempt.job_id, attempt.number)):
                if uri not in known:
                    logger.info("Nobody registered %s: it is removed", uri)
                    storage.remove(uri)
        except OSError as error:
            logger.warning("What %s left behind stays: %s", attempt.submission_id, error)
