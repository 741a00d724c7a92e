"""Rules for ingest runs of data sets.

A run that Ray does not know is submitted again. Running it twice is harmless: it only reads images, and
the API accepts only the report with the newest token.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from service.datasets import repository as datasets
from service.datasets.repository import IngestView
from service.db.models import IngestRun
from service.dispatcher.context import DispatcherContext
from service.dispatcher.driver_errors import driver_ended
from service.dispatcher.executor import Submission
from service.dispatcher.log_copier import last_lines
from service.dispatcher.watcher import MissingAction, RunPolicy
from service.runs.endings import Ending, Retry
from service.runs.repository import RunView
from service.states import DatasetState

_MAX_RUNS = 2
# Each uses all cores of Ray's head.
_MAX_CONCURRENT = 2
_TIME_LIMIT = timedelta(hours=24)


class IngestPolicy(RunPolicy[IngestView]):
    """Rules for ingest runs of data sets."""

    noun = "ingest"
    finalized = False

    def __init__(self, context: DispatcherContext) -> None:
        self._context = context
        self._first_checked_at: dict[str, datetime] = {}

    def due(self, session: Session) -> Sequence[str]:
        """Return the data sets to ingest next."""
        return datasets.awaiting_ingest(session, _MAX_CONCURRENT)

    def restart_orphans(self) -> None:
        """Restart ingests that a version 0.1 dispatcher started during the upgrade of the tables."""
        with self._context.database.read() as session:
            orphans = datasets.without_ingest_run(session)
        for dataset_id in orphans:
            with self._context.write() as session:
                datasets.ingest_again(session, dataset_id)

    def live(self, session: Session) -> Sequence[IngestView]:
        return datasets.ingesting(session)

    def create(
        self,
        session: Session,
        owner: str,
        token_hash: str,
        workers: int | None,
        avoided: Collection[str],
    ) -> IngestRun | None:
        return datasets.begin_ingest(session, owner, token_hash)

    def command(self, run: RunView) -> str:
        return self._context.entrypoints.ingest.format(run=run.submission_id, dataset=run.owner)

    def on_missing(self, run: IngestView) -> Ending | MissingAction:
        return MissingAction.SUBMIT

    def on_driver_ended(self, run: IngestView, submission: Submission) -> Ending:
        lines = last_lines(self._context.executor, run.submission_id)
        return Ending("failed", driver_ended("ingest", submission, lines))

    def enforce(self, run: IngestView) -> Ending | None:
        """Return the ending of an ingest that hangs or takes too long: it must not block other ingests.

        Its whole time is measured from this dispatcher's first check of the run.
        """
        allowed = self._context.settings.hang_seconds
        if run.standstill >= timedelta(seconds=allowed):
            message = f"The ingest has read no image for {allowed:g} s (DASL_HANG_SECONDS). Check that the disk with the images responds"
            return Ending("failed", {"type": "hang", "message": message})
        now = self._context.clock()
        # Drop the entries of ended runs, which are not checked again.
        self._first_checked_at = {
            id: at for id, at in self._first_checked_at.items() if now - at < 2 * _TIME_LIMIT
        }
        if now - self._first_checked_at.setdefault(run.submission_id, now) <= _TIME_LIMIT:
            return None
        hours = _TIME_LIMIT / timedelta(hours=1)
        message = f"The ingest took longer than {hours:g} hours. Check that the disk with the images responds"
        return Ending("failed", {"type": "too-long", "message": message}, Retry.NEVER)

    def end(self, session: Session, run: RunView, ending: Ending) -> None:
        retried = ending.retry != Retry.NEVER and run.number < _MAX_RUNS
        state = DatasetState.PENDING if retried else DatasetState.FAILED
        datasets.end_ingest(session, run.owner, run.number, state, error=ending.error)
