"""Rules for runs without checkpoints: ingests, and tasks such as previews and embeddings.

A run is submitted again if Ray has not accepted it, or if it ended because the whole service was stopped. Running it
twice is harmless: it only reads images, and the API accepts only reports with the newest token. A run is lost if only
Ray was restarted, or if the whole service was killed while it ran. Losses are counted, because the run may have been the
cause. Runs that could not reach the API are not counted.
"""

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from service.datasets.ingests import repository as ingests
from service.db.models import IngestRun, Run
from service.dispatcher.context import DispatcherContext, passed
from service.dispatcher.driver_errors import UNDELIVERED, driver_ended, undelivered
from service.dispatcher.executor import Submission
from service.dispatcher.log_copier import last_lines_if_readable
from service.dispatcher.watcher import MissingAction, RunPolicy
from service.protocol import UNDELIVERED_EXIT_CODE
from service.runs import repository as runs
from service.runs.endings import LONGEST_RETRY, Ending, Retry
from service.runs.repository import RunView, WatchedRun
from service.scheduling.admission import Queued
from service.states import AttemptState, DatasetState, TaskState
from service.tasks.repository import Tasks, model_runs, preparations, previews, searches

# Number of failed runs after which the owner fails.
_MAX_FAILURES = 2
# A run is looked at every few seconds. After a longer time the machine has slept, or its clock has jumped.
_LONGEST_STEP = timedelta(minutes=1)


@dataclass(frozen=True)
class Rules:
    """What differs between kinds of runs.

    Attributes:
        during: what a run did, as a part of the sentence about the loss of the last one.
        remedy: what to do then, besides checking why Ray's head ended.
        max_losses: number of lost runs after which the owner fails. Ray may also be restarted for other reasons.
        time_limit: time limit of a run, while this dispatcher watches it.
    """

    during: str
    remedy: str
    max_losses: int = 3
    time_limit: timedelta = timedelta(hours=24)


class RerunPolicy(RunPolicy[WatchedRun]):
    """Rules for runs that start from the beginning when they are repeated."""

    off_head = False
    finalized = False

    def __init__(
        self, context: DispatcherContext, entrypoint: str, noun: str, rules: Rules
    ) -> None:
        self._context, self._rules = context, rules
        self.entrypoint, self.noun = entrypoint, noun
        self._watched: dict[str, tuple[timedelta, datetime]] = {}
        """For how long each run was watched, and until when."""
        self._undelivered_at: dict[str, datetime] = {}
        """When the last run of each owner ended without reaching the API; the next one waits for `LONGEST_RETRY`."""

    @abstractmethod
    def due(self, session: Session) -> Sequence[str]:
        """Return the owners of the runs to start next."""

    def counted_after(self, session: Session, owner: str) -> int:
        """Return the number of the last run of an earlier request; later runs count."""
        return 0

    def pausing(self) -> Collection[str]:
        """Return the owners that must wait because their last run did not reach the API."""
        now = self._context.clock()
        for id, at in self._undelivered_at.copy().items():
            if passed(at, now, LONGEST_RETRY):
                del self._undelivered_at[id]
        return self._undelivered_at.copy()

    def on_missing(self, run: WatchedRun) -> Ending | MissingAction:
        # Ray has not accepted a submission whose token is still stored.
        is_earlier = (
            run.submission_id not in self._context.submitted
            or run.submission_id in self._context.tokens
        )
        ended_with_service = self._context.restarted == "service" and is_earlier
        # The run cannot have caused a regular stop of the service, but it may have caused a crash.
        crashed = ended_with_service and self._context.follows_crash
        may_be_cause = not ended_with_service or (crashed and run.state == AttemptState.RUNNING)
        if run.state == AttemptState.CREATED or not may_be_cause:
            return MissingAction.SUBMIT
        with self._context.database.read() as session:
            after = self.counted_after(session, run.owner)
            losses = runs.count_lost(session, run.owner, after) + 1
        kind = f"{self.noun}-lost"
        if losses < self._rules.max_losses:
            message = f"Ray no longer knows the {self.noun}; Ray was probably restarted"
            if crashed:
                message = (
                    f"The service was killed during the {self.noun}, perhaps for lack of memory"
                )
            return Ending("lost", {"type": kind, "message": message}, Retry.INFRASTRUCTURE)
        cause = "The service" if crashed else "Ray"
        message = (
            f"{cause} ended {losses} times {self._rules.during}, perhaps for lack of memory. Check why Ray's head ended, "
            f"{self._rules.remedy}"
        )
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
        now, limit, watched = self._context.clock(), self._rules.time_limit, self._watched
        # Drop the entries of ended runs, which are not checked again.
        for id, (_, at) in watched.copy().items():
            if now - at >= limit:
                watched.pop(id, None)
        took, last = watched.get(run.submission_id, (timedelta(), now))
        took += min(max(now - last, timedelta()), _LONGEST_STEP)
        watched[run.submission_id] = (took, now)
        if took <= limit:
            return None
        hours = limit / timedelta(hours=1)
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
        within_limit = is_free or run.number - after - uncounted < _MAX_FAILURES
        return ending.retry != Retry.NEVER and within_limit


class IngestPolicy(RerunPolicy):
    """Rules for ingest runs of data sets. A loss of Ray, which ends them, may also end all trainings."""

    def __init__(self, context: DispatcherContext) -> None:
        rules = Rules(
            during="while the images were read",
            remedy="give it more memory or make the largest images smaller, then read them again: dasl datasets refresh",
        )
        super().__init__(context, context.entrypoints.ingest, "ingest", rules)

    def due(self, session: Session) -> Sequence[str]:
        """Return the data sets to ingest next."""
        most = self._context.settings.runs_at_once
        return ingests.awaiting_ingest(session, most, self.pausing())

    def live(self, session: Session) -> Sequence[WatchedRun]:
        return ingests.ingesting(session)

    def create(
        self, session: Session, owner: str, token_hash: str, admitted: Queued | None
    ) -> IngestRun | None:
        return ingests.begin_ingest(session, owner, token_hash)

    def counted_after(self, session: Session, owner: str) -> int:
        return ingests.ingest_after(session, owner)

    def end(self, session: Session, run: RunView, ending: Ending) -> None:
        is_repeated = self.is_repeated(session, run, ending)
        state = DatasetState.PENDING if is_repeated else DatasetState.FAILED
        run_state, error = AttemptState(ending.outcome), ending.error
        ingests.end_ingest(session, run.owner, run.number, state, run_state=run_state, error=error)


class TaskPolicy(RerunPolicy):
    """Rules for runs of tasks of one kind."""

    def __init__(
        self, context: DispatcherContext, entrypoint: str, tasks: Tasks[Any], rules: Rules
    ) -> None:
        super().__init__(context, entrypoint, tasks.noun, rules)
        self._tasks = tasks

    def due(self, session: Session) -> Sequence[str]:
        return self._tasks.awaiting(session, self._context.settings.runs_at_once, self.pausing())

    def live(self, session: Session) -> Sequence[WatchedRun]:
        return self._tasks.running(session)

    def create(
        self, session: Session, owner: str, token_hash: str, admitted: Queued | None
    ) -> Run | None:
        return self._tasks.begin(session, owner, token_hash)

    def end(self, session: Session, run: RunView, ending: Ending) -> None:
        state = TaskState.QUEUED if self.is_repeated(session, run, ending) else TaskState.FAILED
        run_state, error = AttemptState(ending.outcome), ending.error
        self._tasks.end(session, run.owner, run.number, state, run_state=run_state, error=error)


def rerun_policies(context: DispatcherContext) -> list[RerunPolicy]:
    """Return the rules of all kinds of runs that start from the beginning when they are repeated."""
    commands = context.entrypoints
    preview = Rules(
        during="while the preview was drawn",
        remedy="then request it again, with fewer images or a smaller backbone.image_size",
        max_losses=2,
        time_limit=timedelta(minutes=15),
    )
    preparation = Rules(
        during="while the images were decoded",
        remedy="give it more memory or make the largest images smaller, then request it again: it continues",
    )
    model_run = Rules(
        during="during the run of the model",
        remedy="and give it more memory, then request it again",
    )
    search = Rules(during="while neighbors were searched", remedy="then ask again", max_losses=2)
    return [
        IngestPolicy(context),
        TaskPolicy(context, commands.preview, previews, preview),
        TaskPolicy(context, commands.prepare, preparations, preparation),
        TaskPolicy(context, commands.model_run, model_runs, model_run),
        TaskPolicy(context, commands.search, searches, search),
    ]
