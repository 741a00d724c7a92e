"""Authentication of workers' requests, and their dispatch by kind of run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel
from sqlalchemy.orm import Session

from service import credentials
from service.api import auth
from service.api.problems import Problem, validated
from service.artifacts.storage import Storage
from service.db.models import (
    Attempt,
    IngestRun,
    ModelRunRun,
    PreparationRun,
    PreviewRun,
    Run,
    SearchRun,
)
from service.protocol import (
    AttemptStart,
    FinishReport,
    IngestReport,
    IngestStart,
    ModelRunReport,
    ModelRunStart,
    PreparationReport,
    PreparationStart,
    PreviewReport,
    PreviewStart,
    SearchReport,
    SearchStart,
)
from service.runs import repository as runs
from service.settings import Settings
from service.worker_api import attempts
from service.worker_api.attempts import AttemptSession
from service.worker_api.ingests import IngestSession
from service.worker_api.searches import SearchSession
from service.worker_api.tasks import ModelRunSession, PreparationSession, PreviewSession

RunStart = (
    AttemptStart | IngestStart | PreviewStart | PreparationStart | ModelRunStart | SearchStart
)
"""The settings of a run, by its kind."""


class RunSession(Protocol):
    """Handler of the requests of one run, whose owner is locked until the transaction ends."""

    def start(self, storage: Storage, settings: Settings) -> RunStart: ...

    def heartbeat(self, progress: dict[str, object]) -> str: ...


class RerunSession(RunSession, Protocol):
    """Handler of the requests of a run that is no attempt."""

    def finish(self, report: Any, storage: Storage) -> None: ...


@dataclass(frozen=True)
class Kind:
    """A kind of run.

    Attributes:
        noun: its name in messages.
        owner: name of the id of a run's owner in the log.
        report: the body of `finish`.
        handler: builds the handler from a session, the owner, the number and the token; `None` for attempts, which
            also have requests that other runs must not send.
    """

    noun: str
    owner: str
    report: type[BaseModel]
    handler: Callable[[Session, str, int, str], RerunSession] | None = None


KINDS: dict[type[Run], Kind] = {
    Attempt: Kind("a training attempt", "job_id", FinishReport),
    IngestRun: Kind("an ingest", "dataset_id", IngestReport, IngestSession),
    PreviewRun: Kind("a preview", "preview_id", PreviewReport, PreviewSession),
    PreparationRun: Kind("a preparation", "preparation_id", PreparationReport, PreparationSession),
    ModelRunRun: Kind("one of a finished model", "model_run_id", ModelRunReport, ModelRunSession),
    SearchRun: Kind("a search", "search_id", SearchReport, SearchSession),
}


@dataclass(frozen=True)
class RunKey:
    """The run that a request's token belongs to."""

    kind: type[Run]
    owner: str
    number: int


@dataclass(frozen=True)
class RunRequest:
    """An authenticated request of a run. Its methods lock the run's owner until the transaction ends."""

    session: Session
    run: RunKey
    token: str

    def open(self) -> RunSession:
        """Return the handler of the run's requests.

        Raises:
            StaleAttempt: the run is over or was superseded, or its owner was deleted.
        """
        handler = KINDS[self.run.kind].handler
        if handler is None:
            return self.attempt()
        return handler(self.session, self.run.owner, self.run.number, self.token)

    def attempt(self) -> AttemptSession:
        """Return the handler of an attempt's requests.

        Raises:
            Problem: 409, the run is of another kind.
            StaleAttempt: the run is over or was superseded.
        """
        check_kind(self.run, Attempt)
        return AttemptSession(self.session, self.run.owner, self.run.number)

    def finish(self, body: dict[str, Any], storage: Storage) -> None:
        """Record how the run ended. Idempotent, because a response may be lost.

        Raises:
            Problem: 422, the body is not a report of this kind of run.
            StaleAttempt: the run had ended with another outcome, or was superseded.
        """
        run, kind = self.run, KINDS[self.run.kind]
        if kind.handler is None:
            report = validated(body, FinishReport)
            attempts.finish(self.session, run.owner, run.number, report)
        else:
            handler = kind.handler(self.session, run.owner, run.number, self.token)
            handler.finish(validated(body, kind.report), storage)


def check_kind(run: RunKey, kind: type[Run]) -> None:
    """Check that a request comes from a run of the right kind.

    Raises:
        Problem: 409.
    """
    if run.kind is not kind:
        sender, actual = KINDS[kind].noun, KINDS[run.kind].noun
        raise Problem(
            409, "wrong-kind-of-run", f"This run is {actual}; only {sender} sends this request"
        )


def check_run_token(session: Session, token: str, run_id: str) -> RunKey:
    """Check that the token belongs to the run with this id.

    Raises:
        Problem: 401.
    """
    run = runs.by_submission_id(session, run_id)
    if run is None or not credentials.token_matches(token, run.token_hash):
        raise auth.unauthenticated("The token does not belong to this run")
    return RunKey(type(run), run.owner, run.number)
