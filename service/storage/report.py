"""Sizes of what is stored, by SQL that reads a bounded number of metric rows."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, func, literal, select, union_all
from sqlalchemy.orm import Session

from service.checkpoints.repository import DAMAGED, REGISTERED
from service.db.models import Artifact, Attempt, Checkpoint, Dataset, Job, Metric
from service.storage.schemas import (
    LargeJob,
    MetricRows,
    StorageView,
    Store,
    StoredFiles,
    StoredLogs,
)

_LARGEST = 10
# Counting all rows of a large table takes minutes.
_MAX_ROWS_COUNTED = 1_000_000
_STORED = Checkpoint.state.in_((REGISTERED, DAMAGED))


def stored_bytes(session: Session) -> int:
    """Return the bytes of all checkpoints and artifacts that are not to be removed, of all tenants."""
    kept = select(func.sum(Checkpoint.size)).where(_STORED)
    files = select(func.sum(Artifact.size))
    return sum(int(session.scalar(query) or 0) for query in (kept, files))


def of_tenant(session: Session, tenant: str, store: Store, log_max_bytes: int) -> StorageView:
    """Return the storage report of a tenant."""
    of_jobs = (Job.tenant == tenant, Job.deleted_at.is_(None))

    def files(size: Any, query: Select[Any]) -> StoredFiles:
        count, total = session.execute(query.with_only_columns(func.count(), func.sum(size))).one()
        return StoredFiles(count=count, bytes=int(total or 0))

    checkpoints = select(Checkpoint).join(Job, Job.id == Checkpoint.job_id)
    artifacts = select(Artifact).join(Job, Job.id == Artifact.job_id)
    checkpoints, artifacts = checkpoints.where(*of_jobs, _STORED), artifacts.where(*of_jobs)
    logs = select(func.count()).select_from(Attempt).join(Job, Job.id == Attempt.owner)
    rows = select(literal(1)).select_from(Metric).join(Job, Job.id == Metric.job_id).where(*of_jobs)
    rows = rows.limit(_MAX_ROWS_COUNTED + 1)
    metrics = session.scalar(select(func.count()).select_from(rows.subquery())) or 0
    own, deleted = Job.tenant == tenant, Job.deleted_at.is_not(None)
    named = (Dataset.tenant == tenant, Dataset.deleted_at.is_(None))
    sizes = union_all(
        checkpoints.with_only_columns(Checkpoint.job_id, Checkpoint.size.label("size")),
        artifacts.with_only_columns(Artifact.job_id, Artifact.size.label("size")),
    ).subquery()
    total = func.sum(sizes.c.size)
    largest = (
        select(Job.id, Job.name, Job.status, Job.finished_at, total.label("bytes"))
        .join(sizes, sizes.c.job_id == Job.id)
        .group_by(Job.id, Job.name, Job.status, Job.finished_at)
        .having(total > 0)
        .order_by(total.desc(), Job.id)
        .limit(_LARGEST)
    )
    return StorageView(
        checkpoints=files(Checkpoint.size, checkpoints),
        artifacts=files(Artifact.size, artifacts),
        logs=StoredLogs(
            count=session.scalar(logs.where(*of_jobs, Job.logs_removed_at.is_(None))) or 0,
            max_bytes=log_max_bytes,
        ),
        metrics=MetricRows(count=min(metrics, _MAX_ROWS_COUNTED), more=metrics > _MAX_ROWS_COUNTED),
        datasets=session.scalar(select(func.count()).select_from(Dataset).where(*named)) or 0,
        deleted_jobs=session.scalar(select(func.count()).select_from(Job).where(own, deleted)) or 0,
        largest_jobs=[LargeJob(**row._mapping) for row in session.execute(largest)],
        store=store,
    )
