"""Build answers from the rows of jobs."""

from typing import Any

from service.db.models import Job
from service.storage.repository import GRACE
from service.wire.cluster import QueuedJob
from service.wire.jobs import DatasetReference, ExperimentPlace, JobSummary, JobView, as_object


def job_view(job: Job, dataset_name: str) -> JobView:
    built = ("dataset", "experiment", "expires_at")
    fields = {name: getattr(job, name) for name in JobView.model_fields if name not in built}
    fields["experiment"] = _membership(job)
    fields["expires_at"] = None if job.marked_at is None else job.marked_at + GRACE
    return JobView(dataset=DatasetReference(id=job.dataset_id, name=dataset_name), **fields)


def job_summary(
    job: Job, dataset_name: str, best: dict[str, float], queued: QueuedJob | None
) -> JobSummary:
    """Return the summary of a job.

    Args:
        queued: its entry in the queue.
    """
    stored = JobSummary.model_fields.keys() & set(Job.__table__.columns.keys())
    return JobSummary(
        **{name: getattr(job, name) for name in stored - {"error", "verdict"}},
        backbone=_backbone(job.resolved),
        dataset=DatasetReference(id=job.dataset_id, name=dataset_name),
        error=_only(job.error, "type", "message"),
        verdict=_only(job.verdict, "verdict", "message"),
        best=best,
        submitted_by=job.submitted_by,
        experiment=_membership(job),
        waits_for=queued and queued.waits_for,
        reason=queued.reason if queued else "",
    )


def _membership(job: Job) -> ExperimentPlace | None:
    if job.experiment_id is None or job.variant is None or job.seed is None:
        return None
    return ExperimentPlace(id=job.experiment_id, variant=job.variant, seed=job.seed)


def _backbone(resolved: object) -> str | None:
    backbone = as_object(as_object(resolved).get("backbone"))
    return str(backbone["name"]) if "name" in backbone else None


def _only(document: dict[str, Any] | None, *names: str) -> dict[str, Any] | None:
    return None if document is None else {name: document.get(name) for name in names}
