"""Rules for ingest runs of data sets.

A run that Ray has not accepted is submitted again, and so is one that ended with the whole service. Running it twice
is harmless: it only reads images, and the API accepts only the report with the newest token. One that Ray alone does
not know any more is lost, which counts: the ingest may be what took Ray's head down. One that did not reach the API
does not count.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from service.datasets import repository as datasets
from service.datasets.repository import IngestView
from service.db.models import IngestRun
from service.dispatcher.context import DispatcherContext, passed
from service.dispatcher.driver_errors import UNDELIVERED, driver_ended, undelivered
from service.dispatcher.executor import Submission
from service.dispatcher.log_copier import last_lines_if_readable
from service.dispatcher.train_policy import Restarted
from service.dispatcher.watcher import MissingAction, RunPolicy
from service.protocol import UNDELIVERED_EXIT_CODE
from service.runs.endings import LONGEST_RETRY, Ending, Retry
from service.runs.repository import RunView
from service.scheduling.packing import Demand
from service.states import AttemptState, DatasetState

_MAX_FAILURES = 2
# Restarts of Ray for other reasons must not fail a data set. Each loss may be that of all trainings, too.
_MAX_LOSSES = 3
# Each uses all cores of Ray's head.
_MAX_CONCURRENT = 2
_TIME_LIMIT = timedelta(hours=24)


class IngestPolicy(RunPolicy[IngestView]):
    """Rules for ingest runs of data sets."""

    noun = "ingest"
    finalized = False

    def __init__(self, context: DispatcherContext) -> None:
        self._context = context
        self.restarted: Restarted | None = None
        """Set if Ray is known to have lost all submissions of earlier dispatchers."""
        self._first_checked_at: dict[str, datetime] = {}
        self._undelivered_at: dict[str, datetime] = {}
        """When the last ingest of each data set ended without the API, for a pause of `LONGEST_RETRY`."""

    def due(self, session: Session) -> Sequence[str]:
        """Return the data sets to ingest next.

        Ray lost all ingests that ran together: one after the other, only the one that takes Ray down is lost again.
        """
        concurrent = 1 if datasets.any_was_lost(session) else _MAX_CONCURRENT
        now = self._context.clock()
        self._undelivered_at = {
            id: at for id, at in self._undelivered_at.items() if not passed(at, now, LONGEST_RETRY)
        }
        return datasets.awaiting_ingest(session, concurrent, self._undelivered_at)

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
        demand: Demand | None,
        avoided: Collection[str],
    ) -> IngestRun | None:
        return datasets.begin_ingest(session, owner, token_hash)

    def command(self, run: RunView) -> str:
        return self._context.entrypoints.ingest.format(run=run.submission_id, dataset=run.owner)

    def on_missing(self, run: IngestView) -> Ending | MissingAction:
        # A token that is left was not accepted by Ray.
        is_earlier = (
            run.submission_id not in self._context.submitted
            or run.submission_id in self._context.tokens
        )
        if run.state == AttemptState.CREATED or (self.restarted == "service" and is_earlier):
            return MissingAction.SUBMIT
        with self._context.database.read() as session:
            losses = datasets.count_lost(session, run.owner) + 1
        if losses < _MAX_LOSSES:
            message = "Ray no longer knows the ingest; Ray was probably restarted"
            return Ending("lost", {"type": "ingest-lost", "message": message}, Retry.INFRASTRUCTURE)
        message = (
            f"Ray went away {losses} times while the images were read, perhaps for lack of memory. Check why Ray's "
            "head ended, give it more memory or make the largest images smaller, then remove the data set and register it again"
        )
        return Ending("lost", {"type": "ingest-lost", "message": message}, Retry.NEVER)

    def on_driver_ended(self, run: IngestView, submission: Submission) -> Ending:
        lines = last_lines_if_readable(self._context.executor, run.submission_id)
        if submission.exit_code == UNDELIVERED_EXIT_CODE:
            message = (
                "The ingest could not be reported, because the API did not answer. It is tried again. Check that Ray's "
                f"head reaches {self._context.settings.api_url} (DASL_API_URL)"
            )
            return Ending("failed", undelivered(message, lines), Retry.FREE)
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
        if ending.retry == Retry.FREE:
            self._undelivered_at[run.owner] = self._context.clock()
        uncounted = datasets.count_lost(session, run.owner)
        uncounted += datasets.count_ended_with(session, run.owner, UNDELIVERED)
        is_free = ending.retry in (Retry.INFRASTRUCTURE, Retry.FREE)
        within_limit = is_free or run.number - uncounted < _MAX_FAILURES
        retried = ending.retry != Retry.NEVER and within_limit
        state = DatasetState.PENDING if retried else DatasetState.FAILED
        over = AttemptState.LOST if ending.outcome == "lost" else AttemptState.FAILED
        datasets.end_ingest(
            session, run.owner, run.number, state, run_state=over, error=ending.error
        )
