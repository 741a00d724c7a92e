"""Authentication of workers' requests, and their dispatch by kind of run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    FinishReport,
    IngestReport,
    ModelRunReport,
    PreparationReport,
    PreviewReport,
    SearchReport,
)
from service.runs import repository as runs
from service.worker_api import attempts
from service.worker_api.attempts import AttemptSession
from service.worker_api.ingests import IngestSession
from service.worker_api.models import ModelRunSession, SearchSession
from service.worker_api.tasks import PreparationSession, PreviewSession

_NOUNS: dict[type[Run], str] = {
    IngestRun: "an ingest",
    PreviewRun: "a preview",
    PreparationRun: "a preparation",
    ModelRunRun: "one of a finished model",
    SearchRun: "a search",
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

    def open(
        self,
    ) -> (
        AttemptSession
        | IngestSession
        | PreviewSession
        | PreparationSession
        | ModelRunSession
        | SearchSession
    ):
        """Return the handler of the run's requests.

        Raises:
            StaleAttempt: the run is over or was superseded.
        """
        if self.run.kind is Attempt:
            return self.attempt()
        if self.run.kind is IngestRun:
            return self.ingest()
        if self.run.kind is PreviewRun:
            return self.preview()
        if self.run.kind is ModelRunRun:
            return self.model_run()
        return self.search() if self.run.kind is SearchRun else self.preparation()

    def attempt(self) -> AttemptSession:
        """Return the handler of an attempt's requests.

        Raises:
            Problem: 409, the run is of another kind.
            StaleAttempt: the run is over or was superseded.
        """
        check_kind(self.run, Attempt)
        return AttemptSession(self.session, self.run.owner, self.run.number)

    def ingest(self) -> IngestSession:
        """Return the handler of an ingest run's requests.

        Raises:
            StaleAttempt: the run was superseded, or its data set was deleted.
        """
        return IngestSession(self.session, self.run.owner, self.run.number, self.token)

    def preview(self) -> PreviewSession:
        """Return the handler of a preview run's requests.

        Raises:
            StaleAttempt: the run was superseded, or the preview was deleted.
        """
        return PreviewSession(self.session, self.run.owner, self.run.number, self.token)

    def preparation(self) -> PreparationSession:
        """Return the handler of a preparation's requests.

        Raises:
            StaleAttempt: the run was superseded, or the preparation was deleted.
        """
        return PreparationSession(self.session, self.run.owner, self.run.number, self.token)

    def model_run(self) -> ModelRunSession:
        """Return the handler of a model run's requests.

        Raises:
            StaleAttempt: the run was superseded, or its row or checkpoint was deleted.
        """
        return ModelRunSession(self.session, self.run.owner, self.run.number, self.token)

    def search(self) -> SearchSession:
        """Return the handler of a search's requests.

        Raises:
            StaleAttempt: the run was superseded, or its embedding was deleted.
        """
        return SearchSession(self.session, self.run.owner, self.run.number, self.token)

    def finish(self, body: dict[str, Any], storage: Storage) -> None:
        """Record how the run ended. Idempotent, because a response may be lost.

        Raises:
            Problem: 422, the body is not a report of this kind of run.
            StaleAttempt: the run had ended with another outcome, or was superseded.
        """
        if self.run.kind is IngestRun:
            self.ingest().finish(validated(body, IngestReport), storage)
        elif self.run.kind is PreviewRun:
            self.preview().finish(validated(body, PreviewReport), storage)
        elif self.run.kind is PreparationRun:
            self.preparation().finish(validated(body, PreparationReport), storage)
        elif self.run.kind is ModelRunRun:
            self.model_run().finish(validated(body, ModelRunReport), storage)
        elif self.run.kind is SearchRun:
            self.search().finish(validated(body, SearchReport), storage)
        else:
            report = validated(body, FinishReport)
            attempts.finish(self.session, self.run.owner, self.run.number, report)


def check_kind(run: RunKey, kind: type[Run]) -> None:
    """Check that a request comes from a run of the right kind.

    Raises:
        Problem: 409.
    """
    if run.kind is not kind:
        sender, actual = _NOUNS.get(kind, "a training attempt"), _NOUNS.get(run.kind, "an attempt")
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
