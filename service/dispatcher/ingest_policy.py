"""Rules for ingest runs of data sets, in addition to `rerun_policy`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy.orm import Session

from service.datasets.ingests import repository as ingests
from service.db.models import IngestRun
from service.dispatcher.rerun_policy import RerunPolicy, state_of
from service.runs.endings import Ending
from service.runs.repository import RunView, WatchedRun
from service.states import DatasetState

# An ingest uses all cores of Ray's head.
_MAX_CONCURRENT = 2


class IngestPolicy(RerunPolicy):
    """Rules for ingest runs of data sets."""

    noun = "ingest"
    max_failures = 2
    # A loss of Ray may also end all trainings.
    max_losses = 3
    time_limit = timedelta(hours=24)

    def due(self, session: Session) -> Sequence[str]:
        """Return the data sets to ingest next.

        After a loss of Ray, ingests run one after the other, so that only the one that causes it is lost again.
        """
        concurrent = 1 if ingests.any_was_lost(session) else _MAX_CONCURRENT
        return ingests.awaiting_ingest(session, concurrent, self.pausing())

    def live(self, session: Session) -> Sequence[WatchedRun]:
        return ingests.ingesting(session)

    def begin(self, session: Session, owner: str, token_hash: str) -> IngestRun | None:
        return ingests.begin_ingest(session, owner, token_hash)

    def command(self, run: RunView) -> str:
        return self._context.entrypoints.ingest.format(run=run.submission_id, dataset=run.owner)

    def counted_after(self, session: Session, owner: str) -> int:
        return ingests.ingest_after(session, owner)

    def lost_message(self, cause: str, losses: int) -> str:
        return (
            f"{cause} ended {losses} times while the images were read, perhaps for lack of memory. Check why Ray's "
            "head ended, give it more memory or make the largest images smaller, then read them again: dasl datasets refresh"
        )

    def end(self, session: Session, run: RunView, ending: Ending) -> None:
        repeated = self.is_repeated(session, run, ending)
        ingests.end_ingest(
            session,
            run.owner,
            run.number,
            DatasetState.PENDING if repeated else DatasetState.FAILED,
            run_state=state_of(ending),
            error=ending.error,
        )
