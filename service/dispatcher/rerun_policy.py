"""Rules for runs without checkpoints: ingests, and tasks such as previews and embeddings.

A run is submitted again if Ray has not accepted it, or if it ended because the whole service was stopped. Running it
twice is harmless: it only reads images, and the API accepts only reports with the newest token. A run is lost if only
Ray was restarted, or if the whole service was killed while it ran. Losses are counted, because the run may have been the
cause. Runs that could not reach the API are not counted.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from service.db.models import Run
from service.dispatcher.context import DispatcherContext, passed
from service.dispatcher.driver_errors import UNDELIVERED, driver_ended, undelivered
from service.dispatcher.executor import Submission
from service.dispatcher.log_copier import last_lines_if_readable
from service.dispatcher.train_policy import Restarted
from service.dispatcher.watcher import MissingAction, RunPolicy
from service.protocol import UNDELIVERED_EXIT_CODE
from service.runs import repository as runs
from service.runs.endings import LONGEST_RETRY, Ending, Retry
from service.runs.repository import RunView, WatchedRun
from service.scheduling.packing import Demand
from service.states import AttemptState


class RerunPolicy(RunPolicy[WatchedRun]):
    """Rules for runs that start from the beginning when they are repeated."""

    finalized = False
    max_failures: int
    """Number of failed runs after which the owner fails."""
    max_losses: int
    """Number of lost runs after which the owner fails. Ray may also be restarted for other reasons."""
    time_limit: timedelta
    """Time limit of a run, from this dispatcher's first check of it."""

    def __init__(self, context: DispatcherContext) -> None:
        self._context = context
        self.restarted: Restarted | None = None
        """Set if Ray has lost all submissions of earlier dispatchers."""
        self._first_checked_at: dict[str, datetime] = {}
        self._undelivered_at: dict[str, datetime] = {}
        """When the last run of each owner ended without reaching the API; the next one waits for `LONGEST_RETRY`."""

    def create(
        self,
        session: Session,
        owner: str,
        token_hash: str,
        demand: Demand | None,
        avoided: Collection[str],
    ) -> Run | None:
        """Begin the next run of an owner. It runs on Ray's head, so demand and avoided nodes are ignored."""
        return self.begin(session, owner, token_hash)

    @abstractmethod
    def begin(self, session: Session, owner: str, token_hash: str) -> Run | None:
        """Add the owner's next run; return `None` if none is due."""

    @abstractmethod
    def lost_message(self, cause: str, losses: int) -> str:
        """Return the error message of an owner that fails because Ray or the service lost its runs."""

    def counted_after(self, session: Session, owner: str) -> int:
        """Return the number of the last run of an earlier request; later runs count."""
        return 0

    def pausing(self) -> Collection[str]:
        """Return the owners that must wait because their last run did not reach the API."""
        now = self._context.clock()
        self._undelivered_at = {
            id: at for id, at in self._undelivered_at.items() if not passed(at, now, LONGEST_RETRY)
        }
        return self._undelivered_at

    def on_missing(self, run: WatchedRun) -> Ending | MissingAction:
        # Ray has not accepted a submission whose token is still stored.
        is_earlier = (
            run.submission_id not in self._context.submitted
            or run.submission_id in self._context.tokens
        )
        ended_with_service = self.restarted == "service" and is_earlier
        # The run cannot have caused a regular stop of the service, but it may have caused a crash.
        crashed = ended_with_service and self._context.follows_crash
        may_be_cause = not ended_with_service or (crashed and run.state == AttemptState.RUNNING)
        if run.state == AttemptState.CREATED or not may_be_cause:
            return MissingAction.SUBMIT
        with self._context.database.read() as session:
            after = self.counted_after(session, run.owner)
            losses = runs.count_lost(session, run.owner, after) + 1
        kind = f"{self.noun}-lost"
        if losses < self.max_losses:
            message = f"Ray no longer knows the {self.noun}; Ray was probably restarted"
            if crashed:
                message = (
                    f"The service was killed during the {self.noun}, perhaps for lack of memory"
                )
            return Ending("lost", {"type": kind, "message": message}, Retry.INFRASTRUCTURE)
        message = self.lost_message("The service" if crashed else "Ray", losses)
        return Ending("lost", {"type": kind, "message": message}, Retry.NEVER)

    def on_driver_ended(self, run: WatchedRun, submission: Submission) -> Ending:
        lines = last_lines_if_readable(self._context.executor, run.submission_id)
        if submission.exit_code == UNDELIVERED_EXIT_CODE:
            message = (
                f"The {self.noun} could not be reported, because the API did not answer. It is tried again. Check that "
                f"Ray's head reaches {self._context.settings.api_url} (DASL_API_URL)"
            )
            return Ending("failed", undelivered(message, lines), Retry.FREE)
        return Ending("failed", driver_ended(self.noun, submission, lines))

    def enforce(self, run: WatchedRun) -> Ending | None:
        """Return the ending of a run that hangs or exceeds its time limit, as it would block others."""
        seconds = self._context.settings.hang_seconds
        if run.standstill >= timedelta(seconds=seconds):
            message = f"The {self.noun} has read no image for {seconds:g} s (DASL_HANG_SECONDS). Check that the disk with the images responds"
            return Ending("failed", {"type": "hang", "message": message})
        now = self._context.clock()
        # Drop the entries of ended runs, which are not checked again.
        self._first_checked_at = {
            id: at for id, at in self._first_checked_at.items() if now - at < 2 * self.time_limit
        }
        if now - self._first_checked_at.setdefault(run.submission_id, now) <= self.time_limit:
            return None
        hours = self.time_limit / timedelta(hours=1)
        allowed = f"{hours:g} hours" if hours >= 1 else f"{60 * hours:g} minutes"
        message = f"The {self.noun} took longer than {allowed}. Check that the disk with the images responds"
        return Ending("failed", {"type": "too-long", "message": message}, Retry.NEVER)

    def is_repeated(self, session: Session, run: RunView, ending: Ending) -> bool:
        """Whether another run follows after this ending."""
        if ending.retry == Retry.FREE:
            self._undelivered_at[run.owner] = self._context.clock()
        after = self.counted_after(session, run.owner)
        uncounted = runs.count_lost(session, run.owner, after)
        uncounted += runs.count_ended_with(session, run.owner, UNDELIVERED, after)
        is_free = ending.retry in (Retry.INFRASTRUCTURE, Retry.FREE)
        within_limit = is_free or run.number - after - uncounted < self.max_failures
        return ending.retry != Retry.NEVER and within_limit


def state_of(ending: Ending) -> AttemptState:
    """Return the state of a run that ended without a report."""
    return AttemptState.LOST if ending.outcome == "lost" else AttemptState.FAILED
