"""Client of the worker API, by which a run reports to the service.

Every call is retried for `patience` seconds, because an unreachable control plane must not end a training.
`StaleAttempt` means that the process must exit: the attempt was superseded, its job has ended, or its token is invalid,
for example after the database was restored from a backup.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from dasl_core.spec.errors import field_problems
from dasl_core.vocabulary import Desired, Outcome, Subject
from service.client.config import resolve_connection
from service.client.errors import UNAUTHENTICATED, ApiError, StaleAttempt
from service.client.sync.transport import Transport
from service.protocol import (
    ArtifactReport,
    AttemptStart,
    CheckpointReport,
    DamageReport,
    EvaluationReport,
    EventReport,
    FinishReport,
    Heartbeat,
    IngestOutcome,
    IngestReport,
    IngestStart,
    MetricBatch,
    ModelRunReport,
    ModelRunStart,
    PreparationReport,
    PreparationResult,
    PreparationStart,
    PreviewReport,
    PreviewStart,
    Queries,
    QueryAnswer,
    QueryAnswers,
    SearchReport,
    SearchStart,
    WorkerRequest,
)
from service.wire.checkpoints import FileEntry

M = TypeVar("M", bound=WorkerRequest)


class WorkerClient:
    """Reports of one run. Thread-safe.

    Args:
        run: id of the run.
    """

    def __init__(self, url: str, token: str, run: str, *, patience: float = 60.0) -> None:
        connection = resolve_connection(url, token)
        self._transport = Transport(connection, patience=patience, awaits_server=True)
        self._path = f"/worker/v1/runs/{run}"
        self._reported_not_finite: set[str] = set()

    def start(self, *, patience: float | None = None) -> AttemptStart:
        """Report that the attempt has started, and fetch its settings. Idempotent."""
        return AttemptStart.model_validate(self._post("start", None, patience))

    def damaged(
        self, checkpoint_id: str, damage: str, *, patience: float | None = None
    ) -> AttemptStart:
        """Report that the checkpoint to resume from is damaged, and fetch its replacement."""
        report = _report(DamageReport, checkpoint_id=checkpoint_id, damage=damage)
        return AttemptStart.model_validate(self._post("damaged-checkpoint", report, patience))

    def heartbeat(
        self, progress: Mapping[str, Any] | None = None, *, patience: float | None = None
    ) -> Desired:
        """Report liveness and progress; return the desired state of the job."""
        report = _report(Heartbeat, progress=finite(progress or {}))
        desired: Desired = self._post("heartbeat", report, patience)["desired"]
        return desired

    def metrics(
        self, points: Sequence[Mapping[str, Any]], *, patience: float | None = None
    ) -> None:
        """Report points `{"step": int, "time": float, "values": {name: float}}`.

        NaN and infinite values are removed; the first one of each name becomes an event of type `nan`.
        """
        for point in points:
            for name, value in point["values"].items():
                if not math.isfinite(value) and name not in self._reported_not_finite:
                    message = f"{name} is {value} at step {point['step']}"
                    data = {"metric": name, "step": point["step"]}
                    self.event("nan", message, data, patience=patience)
                    # Do this after the request: if it fails, the repeated call must send the event again.
                    self._reported_not_finite.add(name)
        cleaned = [{**point, "values": finite(point["values"])} for point in points]
        nonempty = [point for point in cleaned if point["values"]]
        if nonempty:
            self._post("metrics", _report(MetricBatch, points=nonempty), patience)

    def evaluation(
        self,
        *,
        step: int,
        epoch: float,
        subject: Subject,
        metrics: Mapping[str, Any],
        patience: float | None = None,
    ) -> None:
        """Report metrics on held-out images. NaN and infinite values are removed."""
        report = _report(
            EvaluationReport, step=step, epoch=epoch, subject=subject, metrics=finite(metrics)
        )
        self._post("evaluations", report, patience)

    def event(
        self,
        type: str,
        message: str,
        data: Mapping[str, Any] | None = None,
        *,
        patience: float | None = None,
    ) -> None:
        """Add an event to the job."""
        report = _report(EventReport, type=type, message=message, data=dict(data or {}))
        self._post("events", report, patience)

    def checkpoint(
        self,
        *,
        step: int,
        epoch: float,
        uri: str,
        files: Sequence[FileEntry],
        metrics: Mapping[str, Any] | None = None,
        final: bool = False,
        patience: float | None = None,
    ) -> str:
        """Register a completely written checkpoint and return its id.

        Once registered, it can be downloaded, and the next attempt can resume from it.
        """
        report = _report(
            CheckpointReport,
            step=step,
            epoch=epoch,
            uri=uri,
            files=list(files),
            metrics=finite(metrics or {}),
            final=final,
        )
        return str(self._post("checkpoints", report, patience)["id"])

    def artifact(
        self,
        *,
        name: str,
        uri: str,
        size: int,
        sha256: str,
        content_type: str,
        patience: float | None = None,
    ) -> None:
        """Register a file for download. A file of the same name is replaced."""
        report = _report(
            ArtifactReport, name=name, uri=uri, size=size, sha256=sha256, content_type=content_type
        )
        self._post("artifacts", report, patience)

    def finish(
        self,
        outcome: Outcome,
        error: Mapping[str, Any] | None = None,
        *,
        retryable: bool = True,
        repeatable: bool = False,
        patience: float | None = None,
    ) -> None:
        """Report how the attempt ended.

        Args:
            retryable: False fails the job immediately.
            repeatable: True fails the job if the next attempt ends with the same error without another step.
        """
        report = _report(
            FinishReport,
            outcome=outcome,
            error=None if error is None else dict(error),
            retryable=retryable,
            repeatable=repeatable,
        )
        self._post("finish", report, patience)

    def dataset_start(self, *, patience: float | None = None) -> IngestStart:
        """Report that the ingest run has started, and fetch the location of the images."""
        return IngestStart.model_validate(self._post("start", None, patience))

    def dataset_finish(
        self,
        *,
        state: IngestOutcome,
        facts: Mapping[str, Any] | None = None,
        report: Mapping[str, Any] | None = None,
        index_uri: str | None = None,
        error: str | None = None,
        patience: float | None = None,
    ) -> None:
        """Report the result of the ingest run, or its error."""
        result = _report(
            IngestReport,
            state=state,
            facts=None if facts is None else dict(facts),
            report=None if report is None else dict(report),
            index_uri=index_uri,
            error=error,
        )
        self._post("finish", result, patience)

    def preview_start(self) -> PreviewStart:
        """Report that the preview run has started, and fetch its settings."""
        return PreviewStart.model_validate(self._post("start", None, None))

    def preview_succeeded(self, uri: str, files: Sequence[FileEntry]) -> None:
        """Report the written files of the preview run."""
        self._post(
            "finish",
            _report(PreviewReport, state="succeeded", uri=uri, files=list(files)),
            None,
        )

    def preview_failed(self, type: str, message: str) -> None:
        """Report why the preview cannot be drawn."""
        error = {"type": type, "message": message}
        self._post("finish", _report(PreviewReport, state="failed", error=error), None)

    def preparation_start(self) -> PreparationStart:
        """Report that the preparation has started, and fetch its settings."""
        return PreparationStart.model_validate(self._post("start", None, None))

    def preparation_succeeded(self, result: PreparationResult) -> None:
        """Report the result of the preparation."""
        report = _report(PreparationReport, state="succeeded", result=result)
        self._post("finish", report, None)

    def preparation_failed(self, type: str, message: str) -> None:
        """Report why the images cannot be decoded or cached."""
        error = {"type": type, "message": message}
        self._post("finish", _report(PreparationReport, state="failed", error=error), None)

    def model_run_start(self) -> ModelRunStart:
        """Report that the model run has started, and fetch its settings."""
        return ModelRunStart.model_validate(self._post("start", None, None))

    def model_run_succeeded(
        self, result: Mapping[str, Any], uri: str | None, files: Sequence[FileEntry]
    ) -> None:
        """Report the result and the written files of the model run."""
        report = _report(
            ModelRunReport, state="succeeded", result=dict(result), uri=uri, files=list(files)
        )
        self._post("finish", report, None)

    def model_run_failed(self, type: str, message: str) -> None:
        """Report why the model run failed."""
        error = {"type": type, "message": message}
        self._post("finish", _report(ModelRunReport, state="failed", error=error), None)

    def search_start(self) -> SearchStart:
        """Report that the search has started, and fetch the location of its embedding."""
        return SearchStart.model_validate(self._post("start", None, None))

    def search_queries(self, answers: Sequence[QueryAnswer]) -> Queries:
        """Report answers, and fetch the next questions."""
        report = _report(QueryAnswers, answers=list(answers))
        return Queries.model_validate(self._post("queries", report, None))

    def search_ended(self) -> None:
        """Report that the search ends, because no more questions arrive."""
        self._post("finish", _report(SearchReport, state="succeeded"), None)

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def _post(self, action: str, report: WorkerRequest | None, patience: float | None) -> Any:
        body = {} if report is None else report.model_dump()
        path = f"{self._path}/{action}"
        # All requests are idempotent: a report whose answer was lost can be sent again.
        try:
            return self._transport.json("POST", path, body=body, repeatable=True, patience=patience)
        except ApiError as error:
            # Without a type, a proxy answered, whose problem may be temporary.
            if (error.status, error.type) == (401, UNAUTHENTICATED):
                raise StaleAttempt(error.status, error.problem) from error
            raise


def _report(model: type[M], **fields: object) -> M:
    """Build a report; raise the error that the API would answer to an invalid one.

    Raises:
        ApiError: 422, a field is invalid.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        problems = field_problems(error, model, whole="body")
        detail = "; ".join(f"{problem.field}: {problem.message}" for problem in problems)
        errors = [problem.as_dict() for problem in problems]
        raise ApiError(422, {"type": "validation", "detail": detail, "errors": errors}) from error


def finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Remove NaN and infinite values, which JSON cannot represent."""
    return {
        key: value
        for key, value in values.items()
        if not isinstance(value, float) or math.isfinite(value)
    }
