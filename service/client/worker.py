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
    MetricBatch,
    Queries,
    QueryAnswer,
    QueryAnswers,
    TaskReport,
    WorkerAnswer,
    WorkerRequest,
)
from service.wire.checkpoints import FileEntry

Start = TypeVar("Start", bound=WorkerAnswer)


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
        return self.task_start(AttemptStart, patience=patience)

    def damaged(
        self, checkpoint_id: str, damage: str, *, patience: float | None = None
    ) -> AttemptStart:
        """Report that the checkpoint to resume from is damaged, and fetch its replacement."""
        answer = self._report(
            "damaged-checkpoint", DamageReport, patience, checkpoint_id=checkpoint_id, damage=damage
        )
        return AttemptStart.model_validate(answer)

    def heartbeat(
        self, progress: Mapping[str, Any] | None = None, *, patience: float | None = None
    ) -> Desired:
        """Report liveness and progress; return the desired state of the job."""
        answer = self._report("heartbeat", Heartbeat, patience, progress=finite(progress or {}))
        desired: Desired = answer["desired"]
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
            self._report("metrics", MetricBatch, patience, points=nonempty)

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
        fields = {"step": step, "epoch": epoch, "subject": subject, "metrics": finite(metrics)}
        self._report("evaluations", EvaluationReport, patience, **fields)

    def event(
        self,
        type: str,
        message: str,
        data: Mapping[str, Any] | None = None,
        *,
        patience: float | None = None,
    ) -> None:
        """Add an event to the job."""
        fields = {"type": type, "message": message, "data": dict(data or {})}
        self._report("events", EventReport, patience, **fields)

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
        answer = self._report(
            "checkpoints",
            CheckpointReport,
            patience,
            step=step,
            epoch=epoch,
            uri=uri,
            files=list(files),
            metrics=finite(metrics or {}),
            final=final,
        )
        return str(answer["id"])

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
        file = {"name": name, "uri": uri, "size": size, "sha256": sha256}
        self._report("artifacts", ArtifactReport, patience, **file, content_type=content_type)

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
        self._report(
            "finish",
            FinishReport,
            patience,
            outcome=outcome,
            error=None if error is None else dict(error),
            retryable=retryable,
            repeatable=repeatable,
        )

    def task_start(self, settings: type[Start], *, patience: float | None = None) -> Start:
        """Report that a run, such as an ingest or a preview, has started, and fetch its settings."""
        return settings.model_validate(self._post("start", {}, patience))

    def task_succeeded(self, report: type[TaskReport], /, **result: object) -> None:
        """Report the result of such a run: the other fields of the report."""
        self._report("finish", report, None, state="succeeded", **result)

    def task_failed(self, report: type[TaskReport], type: str, message: str) -> None:
        """Report why such a run failed, so that the user can fix it."""
        error = {"type": type, "message": message}
        self._report("finish", report, None, state="failed", error=error)

    def search_queries(self, answers: Sequence[QueryAnswer]) -> Queries:
        """Report answers, and fetch the next questions."""
        answer = self._report("queries", QueryAnswers, None, answers=list(answers))
        return Queries.model_validate(answer)

    def close(self) -> None:
        self._transport.close()

    def _report(
        self, action: str, model: type[WorkerRequest], patience: float | None, **fields: object
    ) -> Any:
        """Send a report, unless it is invalid: then raise the error that the API would answer.

        Raises:
            ApiError: 422, a field is invalid.
        """
        try:
            report = model.model_validate(fields)
        except ValidationError as error:
            problems = field_problems(error, model, whole="body")
            detail = "; ".join(f"{problem.field}: {problem.message}" for problem in problems)
            errors = [problem.as_dict() for problem in problems]
            raise ApiError(
                422, {"type": "validation", "detail": detail, "errors": errors}
            ) from error
        return self._post(action, report.model_dump(), patience)

    def _post(self, action: str, body: dict[str, Any], patience: float | None) -> Any:
        path = f"{self._path}/{action}"
        # All requests are idempotent: a report whose answer was lost can be sent again.
        try:
            return self._transport.json("POST", path, body=body, repeatable=True, patience=patience)
        except ApiError as error:
            # Without a type, a proxy answered, whose problem may be temporary.
            if (error.status, error.type) == (401, UNAUTHENTICATED):
                raise StaleAttempt(error.status, error.problem) from error
            raise


def finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Remove NaN and infinite values, which JSON cannot represent."""
    return {
        key: value
        for key, value in values.items()
        if not isinstance(value, float) or math.isfinite(value)
    }
