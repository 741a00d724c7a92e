"""Reports of attempts; each is checked against the job's current attempt."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy.orm import Session

from dasl_core.headlines import headline
from service import ids, lifecycle, registration
from service.api.problems import field_problem
from service.artifacts.storage import Storage
from service.checkpoints import repository as checkpoints
from service.db.models import Artifact, Evaluation
from service.db.rows import add
from service.protocol import (
    NO_ROOM,
    NODE_DIED,
    PLACEMENT,
    STORE_UNAVAILABLE,
    ArtifactReport,
    AttemptStart,
    CheckpointReport,
    DamageReport,
    EvaluationReport,
    EventReport,
    FinishReport,
    MetricBatch,
    Resume,
    readable_fields,
)
from service.runs.endings import Ending, Retry
from service.scheduling import repository as scheduling
from service.settings import Settings
from service.states import StaleAttempt
from service.wire.checkpoints import FileEntry
from service.worker_api import datasets, repository
from service.worker_api.fencing import check_below

_RETRIES = {
    NO_ROOM: Retry.FREE,
    NODE_DIED: Retry.INFRASTRUCTURE,
    STORE_UNAVAILABLE: Retry.OUTAGE,
}
"""How attempts are retried, by the type of their error."""


class AttemptSession:
    """Handler of one attempt's requests. The token is verified, and the job's row is locked.

    Raises:
        StaleAttempt: the attempt has ended or was superseded.
    """

    def __init__(self, session: Session, job_id: str, number: int) -> None:
        self.session = session
        self.job, self.attempt = lifecycle.lock_live_attempt(session, job_id, number)

    def start(self, storage: Storage, settings: Settings) -> AttemptStart:
        """Mark the attempt as running and return its settings.

        Raises:
            UnreadableSpec: the driver could not read the spec.
        """
        job, attempt = self.job, self.attempt
        spec = job.resolved_spec.model_dump(mode="json")
        lifecycle.mark_running(self.session, job.id, attempt.number)
        evaluate_dataset = None
        if job.evaluate_dataset_id is not None:
            number = job.evaluate_dataset_version
            assert number is not None, "it is of a version"
            evaluate_dataset = datasets.worker_dataset(
                self.session, job.evaluate_dataset_id, number
            )
        resume = None
        if attempt.resume_checkpoint_id is not None:
            checkpoint = checkpoints.by_id(self.session, attempt.resume_checkpoint_id)
            resume = Resume(
                checkpoint_id=checkpoint.id,
                uri=checkpoint.uri,
                files=[FileEntry.model_validate(file) for file in checkpoint.files],
                step=checkpoint.step,
                branch=checkpoint.job_id != job.id,
            )
        return AttemptStart(
            spec=_with_workers(spec, attempt.workers),
            dataset=datasets.worker_dataset(self.session, job.dataset_id, job.dataset_version),
            evaluate_dataset=evaluate_dataset,
            resume=resume,
            artifacts_uri=storage.attempt_uri(job.id, attempt.number),
            heartbeat_seconds=settings.heartbeat_seconds,
            tracking_hosts=settings.allowed_tracking_hosts,
            excluded_nodes=scheduling.excluded_nodes(
                self.session,
                job.resources,
                scheduling.avoided_nodes(self.session, job.id, attempt.number),
            ),
            **readable_fields(settings.readable_folders(job.tenant)),
        )

    def damaged(self, report: DamageReport, storage: Storage, settings: Settings) -> AttemptStart:
        """Record that the resume checkpoint is damaged; return `start` with another one or without one."""
        lifecycle.resume_from_another(
            self.session, self.job, self.attempt, report.checkpoint_id, report.damage
        )
        return self.start(storage, settings)

    def heartbeat(self, progress: dict[str, object]) -> str:
        """Record a heartbeat and return the attempt's desired state."""
        lifecycle.record_heartbeat(self.session, self.job, self.attempt, progress)
        return lifecycle.desired_state(self.job, self.attempt)

    def metrics(self, batch: MetricBatch) -> None:
        """Store metric points of the job."""
        # Use a dict, so that a point that occurs twice in a batch does not conflict with itself.
        points = {
            (name, point.step): (point.time, value)
            for point in batch.points
            for name, value in point.values.items()
        }
        if points:
            repository.add_metrics(self.session, self.job.id, self.attempt.number, points)

    def evaluation(self, report: EvaluationReport) -> None:
        """Store the metrics of an evaluation, or replace them. A repeated request adds no event."""
        job_id, number = self.job.id, self.attempt.number
        stored = repository.evaluation(self.session, job_id, number, report.step, report.subject)
        if stored is None:
            evaluation = Evaluation(
                id=ids.new_id("eval"),
                job_id=job_id,
                attempt=number,
                created_at=datetime.now(UTC),
                **report.model_dump(),
            )
            add(self.session, evaluation)
        elif (stored.epoch, stored.metrics) == (report.epoch, report.metrics):
            return
        else:  # the final evaluation of a training that stopped early measures more
            stored.epoch, stored.metrics = report.epoch, report.metrics
        # The message may be shortened, because the event's data has all metrics.
        summary = headline(report.metrics)
        message = f"Evaluated {report.subject} at step {report.step}"
        message += f": {summary}" if summary else ""
        lifecycle.append_event(
            self.session, job_id, "evaluation", message, report.model_dump(mode="json")
        )

    def event(self, report: EventReport) -> None:
        """Add an event, unless it equals the attempt's newest event of its type, as for a repeated request."""
        if report.type == "verdict":
            self.job.verdict = report.data
        if report.type == PLACEMENT and report.data["attempt"] != self.attempt.number:
            expected = str(self.attempt.number)
            problem = "is not the number of this attempt"
            raise field_problem("data.attempt", problem, report.data["attempt"], expected)
        job_id, message = self.job.id, report.message or report.type
        newest = repository.newest_event(self.session, job_id, report.type)
        if (
            newest is None
            or (newest.message, newest.data) != (message, report.data)
            or (newest.at < self.attempt.created_at)
        ):
            lifecycle.append_event(self.session, job_id, report.type, message, report.data)

    def checkpoint(self, report: CheckpointReport, storage: Storage) -> str:
        """Register a checkpoint and return its id. Idempotent: a URI is registered once."""
        job_id, number = self.job.id, self.attempt.number
        uri = report.uri.rstrip("/")
        check_below(uri, storage.attempt_uri(job_id, number))
        if len({entry.name for entry in report.files}) < len(report.files):
            raise field_problem("files", "names a file twice")
        report = report.model_copy(update={"uri": uri})
        return registration.register(self.session, self.job, number, report)

    def artifact(self, report: ArtifactReport, storage: Storage) -> None:
        """Register a file. It replaces a file of the same name."""
        job_id, number = self.job.id, self.attempt.number
        check_below(report.uri, storage.attempt_uri(job_id, number))
        before = checkpoints.artifact(self.session, job_id, report.name)
        artifact = Artifact(
            job_id=job_id, attempt=number, created_at=datetime.now(UTC), **report.model_dump()
        )
        checkpoints.save_artifact(self.session, artifact)
        if before is None or before.sha256 != report.sha256:
            data = {"name": report.name, "size": report.size}
            message = f"Artifact {report.name}"
            lifecycle.append_event(self.session, job_id, "artifact", message, data)


def _with_workers(spec: dict[str, Any], workers: int | None) -> dict[str, Any]:
    """Return a spec with the number of workers of an attempt, if that differs from the spec's."""
    if workers is None or workers == spec["resources"]["workers"]:
        return spec
    return {**spec, "resources": {**spec["resources"], "workers": workers, "min_workers": None}}


def finish(session: Session, job_id: str, number: int, report: FinishReport) -> None:
    """Record how an attempt with a verified token ended. Idempotent, because a response may be lost.

    Raises:
        StaleAttempt: the attempt had ended with another outcome, or was superseded.
    """
    error = report.error.model_dump() if report.error is not None else None
    if error is None and report.outcome == "failed":
        error = {"type": "error", "message": "The worker gave no reason"}
    # `finish_attempt` takes the lock. Read the state again only if this report came too late.
    ending = Ending(report.outcome, error, _retry(report))
    moved = lifecycle.finish_attempt(session, job_id, number, ending)
    if moved is None:
        attempt = repository.current_attempt(session, job_id, number)
        if attempt.state != report.outcome:
            raise StaleAttempt(f"attempt {number} of {job_id} is over")


def _retry(report: FinishReport) -> Retry:
    if not report.retryable:
        return Retry.NEVER
    otherwise = Retry.UNLESS_REPEATED if report.repeatable else Retry.LIMITED
    return otherwise if report.error is None else _RETRIES.get(report.error.type, otherwise)
