"""Watcher of runs: submits, adopts, watches and ends the runs of one kind.

The row of a run, with its submission id, is committed before the run is submitted to Ray. The watcher therefore
looks up each live run in Ray before it submits one, as it may have crashed in between. A `RunPolicy` contains the
rules that differ between kinds of runs.
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar

from sqlalchemy.orm import Session

from service import credentials
from service.db.models import Run
from service.dispatcher.context import DispatcherContext
from service.dispatcher.executor import Submission, SubmissionRefused
from service.runs import repository as runs
from service.runs.endings import Ending, Retry
from service.runs.repository import RunView
from service.scheduling.admission import Queued
from service.states import AttemptState

V = TypeVar("V", bound=RunView)


class MissingAction(Enum):
    """Action for a run that Ray does not know and that has not ended."""

    SUBMIT = auto()
    """Submit it, for the first time or again."""
    WAIT = auto()
    """Check it again in the next round."""


class RunPolicy(Protocol[V]):
    """Rules for runs of one kind. `V` is the view of a run that the rules need."""

    noun: str
    """Name of this kind of run in messages to users."""
    entrypoint: str
    """Shell command of a run; see `Entrypoints`."""
    off_head: bool
    """Whether their number grows with the cluster, so that none may run on its head."""
    finalized: bool
    """Whether `Finalizer` stops processes of ended runs; if not, the watcher stops them before the end."""

    def live(self, session: Session) -> Sequence[V]:
        """Return the runs to watch, including runs of earlier dispatchers."""

    def create(
        self, session: Session, owner: str, token_hash: str, admitted: Queued | None
    ) -> Run | None:
        """Add the owner's next run, of an admitted job with its resources; return `None` if none is due."""

    def on_missing(self, run: V) -> Ending | MissingAction:
        """Return the ending of a run that Ray does not know, or the action to take instead."""

    def on_driver_ended(self, run: V, submission: Submission) -> Ending:
        """Return the ending of a run whose driver ended without a report."""

    def enforce(self, run: V) -> Ending | None:
        """Enforce stop requests; return the ending of a run that exceeds a limit."""

    def end(self, session: Session, run: RunView, ending: Ending) -> None:
        """End a run and update its owner, unless the run has already ended."""


class RunWatcher(Generic[V]):
    """Starts, watches and ends the runs of one kind."""

    def __init__(self, context: DispatcherContext, policy: RunPolicy[V]) -> None:
        self._context, self._policy = context, policy
        self.starting, self.watching = f"start this {policy.noun}", f"watch this {policy.noun}"
        """What `start` and `watch` do, for the log."""

    def start(self, owner: str, admitted: Queued | None = None) -> None:
        """Start the owner's next run; the one of a job must be admitted."""
        token, hashed = credentials.new_token()
        with self._context.write() as session:
            row = self._policy.create(session, owner, hashed, admitted)
        if row is None:
            return
        run = RunView.from_row(row)
        self._context.tokens[run.submission_id] = token
        self._submit(run)

    def watch(self, run: V) -> None:
        """Compare a run with what Ray knows of it: adopt, submit or end it, or enforce its limits."""
        submission = self._context.executor.status(run.submission_id)
        if submission is None:
            decision = self._policy.on_missing(run)
            if isinstance(decision, Ending):
                self._end(run, decision)
            elif decision == MissingAction.SUBMIT:
                self._submit(run)
        elif run.state == AttemptState.CREATED:
            self._mark_submitted(run)
        elif submission.state.ended:
            # If the driver reported a result, the run has already ended, and this has no effect.
            self._end(run, self._policy.on_driver_ended(run, submission))
        elif (ending := self._policy.enforce(run)) is not None:
            if self._policy.finalized:
                # The API refuses further requests of the run; `Finalizer` stops its processes.
                self._end(run, ending)
                self._context.stop(run.submission_id)
            else:
                self._context.executor.stop(run.submission_id)
                self._end(run, ending)

    def _submit(self, run: RunView) -> None:
        if run.submission_id not in self._context.tokens and not self._replace_token(run):
            return
        self._context.submitted.add(run.submission_id)
        command = self._policy.entrypoint.format(
            run=run.submission_id, owner=run.owner, attempt=run.number
        )
        try:
            avoid = self._context.without_drivers if self._policy.off_head else ()
            self._context.submit(run.submission_id, command, avoid)
        except SubmissionRefused as refusal:
            message = f"Ray refuses the {self._policy.noun}: {refusal}"
            error = {"type": "submission-refused", "message": message}
            self._end(run, Ending("failed", error, Retry.NEVER))
            return
        self._mark_submitted(run)

    def _replace_token(self, run: RunView) -> bool:
        """Replace the token of a live run, because this dispatcher only has the hash of the old one."""
        token, hashed = credentials.new_token()
        with self._context.write() as session:
            replaced = runs.replace_token(session, run.owner, run.number, hashed)
        if replaced:
            self._context.tokens[run.submission_id] = token
        return replaced

    def _mark_submitted(self, run: RunView) -> None:
        with self._context.write() as session:
            runs.mark_submitted(session, run.owner, run.number)

    def _end(self, run: RunView, ending: Ending) -> None:
        with self._context.write() as session:
            self._policy.end(session, run, ending)
