"""Reports of attempts and ingest runs; each is checked against the current attempt or run."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from dasl_core.spec import versions
from dasl_core.spec.headlines import in_a_line
from service import credentials, ids, lifecycle
from service.api import auth
from service.api.problems import field_problem
from service.artifacts.storage import Storage, is_below
from service.checkpoints import repository as checkpoints
from service.checkpoints import retention
from service.datasets import repository as datasets
from service.db.models import Artifact, Checkpoint, Dataset, Evaluation, IngestRun
from service.lifecycle import Ending, Retry
from service.protocol import (
    ArtifactReport,
    AttemptStart,
    CheckpointReport,
    DamageReport,
    ErrorReport,
    EvaluationReport,
    EventReport,
    FileEntry,
    FinishReport,
    IngestReport,
    IngestStart,
    MetricBatch,
    Resume,
    WorkerDataset,
)
from service.runs import repository as runs
from service.settings import Settings
from service.states import AttemptState, StaleAttempt
from service.worker_api import repository

_NUMBER = re.compile("[1-9][0-9]{0,9}")


class AttemptSession:
    """Handler of one attempt's requests. The token is verified, and the job's row is locked.

    Raises:
        StaleAttempt: the attempt is over or was replaced.
    """

    def __init__(self, session: Session, job_id: str, number: int) -> None:
        self.session = session
        self.job, self.attempt = lifecycle.lock_live_attempt(session, job_id, number)

    def start(self, storage: Storage, settings: Settings) -> AttemptStart:
        """Mark the attempt as running; return all that it needs."""
        job, attempt = self.job, self.attempt
        lifecycle.mark_running(self.session, job.id, attempt.number)
        dataset = datasets.by_id(self.session, job.dataset_id)
        evaluated = job.evaluate_dataset_id
        evaluate = datasets.by_id(self.session, evaluated) if evaluated else None
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
            spec=versions.upgrade(job.resolved, job.spec_version),
            dataset=WorkerDataset.model_validate(dataset),
            evaluate_dataset=evaluate and WorkerDataset.model_validate(evaluate),
            resume=resume,
            artifacts_uri=storage.attempt_uri(job.id, attempt.number),
            heartbeat_seconds=settings.heartbeat_seconds,
            dataset_roots=[str(root) for root in settings.dataset_roots],
        )

    def damaged(self, report: DamageReport, storage: Storage, settings: Settings) -> AttemptStart:
        """Record that the resume checkpoint is damaged; return the one to resume from instead."""
        lifecycle.resume_from_another(
            self.session, self.job, self.attempt, report.checkpoint_id, report.damage
        )
        return self.start(storage, settings)

    def heartbeat(self, progress: dict[str, object]) -> str:
        """Record a heartbeat; return what is desired of the job."""
        lifecycle.record_heartbeat(self.job, self.attempt, progress)
        return self.job.desired

    def metrics(self, batch: MetricBatch) -> None:
        """Store points of the job's series."""
        # A dict, because a point that occurs twice in one batch must not conflict with itself.
        points = {
            (name, point.step): (point.time, value)
            for point in batch.points
            for name, value in point.values.items()
        }
        if points:
            repository.add_metrics(self.session, self.job.id, self.attempt.number, points)

    def evaluation(self, report: EvaluationReport) -> None:
        """Store the metrics of an evaluation; a repeated subject and step is a repeated request."""
        job_id, number = self.job.id, self.attempt.number
        known = repository.evaluation(self.session, job_id, number, report.step, report.subject)
        if known is not None:
            known.epoch, known.metrics = report.epoch, report.metrics
            return
        evaluation = Evaluation(
            id=ids.new_id("eval"),
            job_id=job_id,
            attempt=number,
            created_at=datetime.now(UTC),
            **report.model_dump(),
        )
        repository.add_evaluation(self.session, evaluation)
        # The message may be shortened: the event's data holds all metrics.
        figures = in_a_line(report.metrics)
        message = f"Evaluated {report.subject} at step {report.step}"
        message += f": {figures}" if figures else ""
        lifecycle.append_event(
            self.session, job_id, "evaluation", message, report.model_dump(mode="json")
        )

    def event(self, report: EventReport) -> None:
        """Add an event, unless it equals the attempt's newest of its type: a repeated request."""
        job_id, message = self.job.id, report.message or report.type
        newest = repository.newest_event(self.session, job_id, report.type)
        if (
            newest is None
            or (newest.message, newest.data) != (message, report.data)
            or (newest.at < self.attempt.created_at)
        ):
            lifecycle.append_event(self.session, job_id, report.type, message, report.data)

    def checkpoint(self, report: CheckpointReport, storage: Storage) -> str:
        """Register a checkpoint; return its id. The same URI again is the same checkpoint."""
        job_id, number = self.job.id, self.attempt.number
        uri = report.uri.rstrip("/")
        _check_below(uri, storage.attempt_uri(job_id, number))
        if len({entry.name for entry in report.files}) < len(report.files):
            raise field_problem("files", "names a file twice")
        known = checkpoints.by_uri(self.session, uri)
        if known is not None:
            return known.id
        checkpoint = Checkpoint(
            id=ids.new_id("ckpt"),
            job_id=job_id,
            attempt=number,
            step=report.step,
            epoch=report.epoch,
            uri=uri,
            files=[entry.model_dump() for entry in report.files],
            metrics=report.metrics,
            state=checkpoints.REGISTERED,
            final=report.final,
            created_at=datetime.now(UTC),
        )
        checkpoints.add(self.session, checkpoint)
        kind = "Final checkpoint" if report.final else "Checkpoint"
        size = sum(entry.size for entry in report.files)
        data = {
            "id": checkpoint.id,
            "step": report.step,
            "epoch": report.epoch,
            "final": report.final,
            "size": size,
        }
        message = f"{kind} {checkpoint.id} at step {report.step}"
        lifecycle.append_event(self.session, job_id, "checkpoint", message, data)
        retention.retire(self.session, self.job)
        return checkpoint.id

    def artifact(self, report: ArtifactReport, storage: Storage) -> None:
        """Register a file; a file of the same name is replaced."""
        job_id, number = self.job.id, self.attempt.number
        _check_below(report.uri, storage.attempt_uri(job_id, number))
        known = checkpoints.artifact(self.session, job_id, report.name)
        artifact = Artifact(
            job_id=job_id, attempt=number, created_at=datetime.now(UTC), **report.model_dump()
        )
        checkpoints.save_artifact(self.session, artifact)
        if known is None or known.sha256 != report.sha256:
            data = {"name": report.name, "size": report.size}
            message = f"Artifact {report.name}"
            lifecycle.append_event(self.session, job_id, "artifact", message, data)


def finish(session: Session, job_id: str, number: int, report: FinishReport) -> None:
    """Record how an attempt with a verified token ended. Idempotent: an answer may get lost.

    Raises:
        StaleAttempt: the attempt had ended with another outcome, or was replaced.
    """
    error = report.error.model_dump() if report.error is not None else None
    if error is None and report.outcome == "failed":
        error = {"type": "error", "message": "The worker gave no reason"}
    # `finish_attempt` takes the lock; the state is read again only if this report came too late.
    ending = Ending(report.outcome, error, _retry(report))
    moved = lifecycle.finish_attempt(session, job_id, number, ending)
    if moved is None:
        attempt = repository.current_attempt(session, job_id, number)
        if attempt.state != report.outcome:
            raise StaleAttempt(f"attempt {number} of {job_id} is over")


def _retry(report: FinishReport) -> Retry:
    if not report.retryable:
        return Retry.NEVER
    return Retry.UNLESS_REPEATED if report.repeatable else Retry.LIMITED


def check_attempt_token(session: Session, token: str, job_id: str, number: str) -> None:
    """Check that the token is the attempt's; `number` is the raw text from the path.

    Raises:
        Problem: 401.
    """
    known = ids.is_id("job", job_id) and _NUMBER.fullmatch(number) and int(number) < 2**31
    attempt = repository.attempt(session, job_id, int(number)) if known else None
    if attempt is None or not credentials.token_matches(token, attempt.token_hash):
        raise auth.unauthenticated("The token is not this attempt's")


def check_ingest_token(session: Session, token: str, dataset_id: str) -> None:
    """Check that the token is that of the data set's newest ingest run.

    Raises:
        Problem: 401.
    """
    run = runs.newest(session, IngestRun, dataset_id) if ids.is_id("ds", dataset_id) else None
    if run is None or not credentials.token_matches(token, run.token_hash):
        raise auth.unauthenticated("The token is not that of the data set's newest ingest run")


def start_ingest(
    session: Session, token: str, dataset_id: str, storage: Storage, settings: Settings
) -> IngestStart:
    """Mark an ingest run as running; return what it must read."""
    dataset, number = _ingest_run(session, token, dataset_id)
    if dataset.state != datasets.INGESTING:
        raise StaleAttempt(f"the ingest of {dataset_id} is over")
    runs.move(session, IngestRun, dataset_id, number, AttemptState.RUNNING)
    return IngestStart(
        uri=dataset.uri,
        artifacts_uri=storage.dataset_uri(dataset_id),
        dataset_roots=[str(root) for root in settings.dataset_roots],
    )


def finish_ingest(
    session: Session, token: str, dataset_id: str, report: IngestReport, storage: Storage
) -> None:
    """Record how an ingest run ended. Idempotent."""
    dataset, number = _ingest_run(session, token, dataset_id)
    if dataset.state == report.state:
        return
    if report.index_uri is not None:
        _check_below(report.index_uri, storage.dataset_uri(dataset_id), "index_uri")
    error = report.error
    if isinstance(error, str):
        error = ErrorReport(type="ingest-failed", message=error)
    moved = datasets.end_ingest(
        session,
        dataset_id,
        number,
        report.state,
        facts=report.facts and report.facts.model_dump(mode="json"),
        report=report.report,
        index_uri=report.index_uri,
        error=error and error.model_dump(),
    )
    if not moved:
        raise StaleAttempt(f"the ingest of {dataset_id} is over")


def _ingest_run(session: Session, token: str, dataset_id: str) -> tuple[Dataset, int]:
    # Check first: only the newest run may get the lock, or learn that the data set exists.
    check_ingest_token(session, token, dataset_id)
    dataset = datasets.lock(session, dataset_id)
    if dataset is None:
        raise StaleAttempt(f"the data set {dataset_id} was deleted")
    run = runs.newest(session, IngestRun, dataset_id)
    if run is None or not credentials.token_matches(token, run.token_hash):
        raise StaleAttempt(f"the ingest of {dataset_id} was started again")
    return dataset, run.number


def _check_below(uri: str, folder: str, field: str = "uri") -> None:
    if not is_below(uri, folder):
        raise field_problem(field, "is not inside the folder given at start", uri, f"{folder}/...")
