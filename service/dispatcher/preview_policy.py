"""Rules for runs that draw previews, beside those of `rerun_policy`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy.orm import Session

from service.db.models import PreviewRun
from service.dispatcher.rerun_policy import RerunPolicy, state_of
from service.previews import repository as previews
from service.runs.endings import Ending
from service.runs.repository import RunView
from service.states import PreviewState

# Each uses one core of Ray's head.
_MAX_CONCURRENT = 2


class PreviewPolicy(RerunPolicy[RunView]):
    """Rules for runs that draw previews."""

    noun = "preview"
    max_failures = 2
    max_losses = 2
    time_limit = timedelta(minutes=15)

    def due(self, session: Session) -> Sequence[str]:
        """Return the previews to draw next."""
        return previews.awaiting(session, _MAX_CONCURRENT, self.pausing())

    def live(self, session: Session) -> Sequence[RunView]:
        return previews.running(session)

    def begin(self, session: Session, owner: str, token_hash: str) -> PreviewRun | None:
        return previews.begin(session, owner, token_hash)

    def command(self, run: RunView) -> str:
        return self._context.entrypoints.preview.format(run=run.submission_id, preview=run.owner)

    def gone(self, culprit: str, losses: int) -> str:
        return (
            f"{culprit} went away {losses} times while the preview was drawn, perhaps for lack of memory. Check why Ray's "
            "head ended, then request it again, with fewer images or a smaller backbone.image_size"
        )

    def end(self, session: Session, run: RunView, ending: Ending) -> None:
        repeated = self.is_repeated(session, run, ending)
        state = PreviewState.QUEUED if repeated else PreviewState.FAILED
        error = ending.error
        previews.end(session, run.owner, run.number, state, run_state=state_of(ending), error=error)
