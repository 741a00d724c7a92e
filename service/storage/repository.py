"""SQL of deleted jobs, of retention by age and size, and of the storage report.

Each call changes a bounded number of rows.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    Select,
    Table,
    TextClause,
    and_,
    bindparam,
    delete,
    exists,
    func,
    literal,
    or_,
    select,
    text,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.orm import Session, aliased

from service.checkpoints.repository import DAMAGED, DELETED, DELETING, REGISTERED
from service.db.locks import lock_job
from service.db.models import (
    HAS_FILES,
    OLD_ARTIFACTS,
    OLD_CHECKPOINTS,
    OLD_LOGS,
    OLD_METRICS,
    Artifact,
    Attempt,
    Base,
    Checkpoint,
    Dataset,
    DatasetVersion,
    Event,
    Expiry,
    IdempotencyKey,
    Job,
    JobTag,
    Metric,
    ModelRun,
    Preview,
    Run,
    Usage,
)
from service.db.rows import changed
from service.states import JobStatus, TaskState
from service.tasks.repository import Tasks, model_runs, previews
from service.wire.storage import LargeJob, MetricRows, StorageView, Store, StoredFiles, StoredLogs

_JOBS = Base.metadata.tables[Job.__tablename__]
# Tables that refer to a job; tables that others refer to come last.
_OWNED = [
    table
    for table in reversed(Base.metadata.sorted_tables)
    if any(key.column.table is _JOBS for key in table.foreign_keys)
]
_METRICS = [Base.metadata.tables[Metric.__tablename__]]

_Clone = aliased(Job)

_LARGEST = 10
# Bounded, because counting all rows of a large table takes minutes.
_MAX_ROWS_COUNTED = 1_000_000
_STORED = and_(text(HAS_FILES), Checkpoint.state.in_((REGISTERED, DAMAGED)))


def unfinished_clones(session: Session, job_id: str, limit: int = 5) -> Sequence[str]:
    """Return up to `limit` jobs that have not ended and start from a checkpoint of a job."""
    own = select(Checkpoint.id).where(Checkpoint.job_id == job_id)
    query = select(Job.id).where(Job.start_checkpoint_id.in_(own), Job.finished_at.is_(None))
    return session.scalars(query.order_by(Job.id).limit(limit)).all()


def hide(session: Session, job_id: str, now: datetime) -> None:
    """Mark a job as deleted: no endpoint shows it or its checkpoints."""
    session.execute(update(Job).where(Job.id == job_id).values(deleted_at=now))
    session.execute(delete(JobTag).where(JobTag.job_id == job_id))
    # A clone that waits for the lock of a checkpoint is refused.
    session.execute(
        update(Checkpoint)
        .where(Checkpoint.job_id == job_id, Checkpoint.state != DELETED)
        .values(state=DELETING)
    )


def _has_processes() -> ColumnElement[bool]:
    return exists().where(Run.owner == Job.id, ~Run.settled)


# Built once, because each round needs it and SQLAlchemy takes longer to build a statement than to run it.
_DELETED = (
    select(Job.id)
    .where(
        Job.deleted_at.is_not(None),
        ~_has_processes(),
        Job.id.not_in(bindparam("without", expanding=True)),
    )
    .order_by(Job.deleted_at)
    .limit(bindparam("limit"))
)


def deleted(session: Session, limit: int, without: Collection[str]) -> Sequence[str]:
    """Return deleted jobs without live processes, except the ids in `without`."""
    return session.scalars(_DELETED, {"limit": limit, "without": [*without]}).all()


def checkpoint_uris(session: Session, job_id: str) -> Sequence[str]:
    """Return the URIs of a job's checkpoints whose files may exist."""
    query = select(Checkpoint.uri).where(Checkpoint.job_id == job_id, Checkpoint.state != DELETED)
    return session.scalars(query).all()


def reads_checkpoint_of(job_id: str) -> ColumnElement[bool]:
    """Build the condition that a model run reads a checkpoint of a job."""
    own = select(Checkpoint.id).where(Checkpoint.job_id == job_id)
    return ModelRun.checkpoint_id.in_(own)


def remove_rows(session: Session, job_id: str, limit: int) -> bool:
    """Remove up to `limit` rows of a deleted job; return whether the job's row is removed.

    Its runs stay, without their errors, because the counters of the metrics must not decrease.
    """
    if _remove_some(session, _OWNED, job_id, limit):
        return False
    session.execute(update(Run).where(Run.owner == job_id).values(error=None))
    session.execute(delete(Job).where(Job.id == job_id, Job.deleted_at.is_not(None)))
    return True


def remove_metrics(session: Session, job_id: str, limit: int) -> int:
    """Remove up to `limit` metric rows of a job and return their number."""
    return _remove_some(session, _METRICS, job_id, limit)


def _remove_some(session: Session, tables: Sequence[Table], job_id: str, limit: int) -> int:
    """Remove up to `limit` of a job's rows from the first table with any."""
    for table in tables:
        key = list(table.primary_key.columns)
        rows = select(*key).where(table.c.job_id == job_id).limit(limit)
        of_job = table.c.job_id == job_id, tuple_(*key).in_(rows)
        if number := changed(session, delete(table).where(*of_job)):
            return number
    return 0


def _has_pending_run() -> ColumnElement[bool]:
    """Build the condition that a queued or running model run reads one of the job's checkpoints."""
    return exists().where(
        Checkpoint.job_id == Job.id,
        ModelRun.checkpoint_id == Checkpoint.id,
        ModelRun.state.in_((TaskState.QUEUED, TaskState.RUNNING)),
        ModelRun.deleted_at.is_(None),
    )


def _has_live_clone() -> ColumnElement[bool]:
    return exists().where(
        Checkpoint.job_id == Job.id,
        _Clone.start_checkpoint_id == Checkpoint.id,
        _Clone.finished_at.is_(None),
    )


GRACE = timedelta(days=1)
"""How long what retention by age has marked stays: a wrong clock is corrected meanwhile, or a user takes it back."""
What = Literal["job", "checkpoints", "artifacts", "metrics", "logs"]
"""A part of a job that retention by age removes."""


@dataclass(frozen=True)
class Old:
    """Ended jobs without processes of which a part is stored.

    Attributes:
        what: the part.
        conditions: further ones; one must be that the job is not deleted.
    """

    what: What
    conditions: Sequence[ColumnElement[bool] | TextClause]

    def stored(
        self, session: Session, before: datetime, limit: int, without: Collection[str]
    ) -> Sequence[str]:
        """Return up to `limit` jobs that ended before a time, earliest first, except the ids in `without`."""
        return self._first(session, self._before(before), limit, without)

    def unmarked(
        self, session: Session, before: datetime, limit: int, without: Collection[str]
    ) -> Sequence[str]:
        """Return those that are not marked; arguments as for `stored`."""
        return self._first(session, (*self._before(before), ~self._marks.exists()), limit, without)

    def mark(self, session: Session, jobs: Collection[str], now: datetime) -> None:
        session.add_all(Expiry(job_id=job_id, what=self.what, marked_at=now) for job_id in jobs)

    def due(
        self,
        session: Session,
        before: datetime,
        marked_before: datetime,
        limit: int,
        without: Collection[str],
    ) -> Sequence[str]:
        """Return those that were marked before a time and still ended before `before`."""
        marked = self._marks.where(Expiry.marked_at <= marked_before).exists()
        return self._first(session, (*self._before(before), marked), limit, without)

    def begin(self, session: Session, job_id: str) -> bool:
        """Begin to remove the part of a job, which cannot be taken back from now on; False: it has been."""
        lock_job(session, job_id)
        mark = session.get(Expiry, (job_id, self.what), populate_existing=True)
        if mark is not None:
            mark.removing = True
        return mark is not None

    def unmark_done(
        self, session: Session, marked_before: datetime, without: Collection[str]
    ) -> None:
        """Remove the marks from before a time, except those of the ids in `without`."""
        session.execute(
            delete(Expiry).where(
                Expiry.what == self.what,
                Expiry.marked_at <= marked_before,
                Expiry.job_id.not_in(list(without)),
            )
        )

    def unmark_future(self, session: Session, now: datetime) -> None:
        """Remove the marks of a clock that was ahead: at its next jump they would be a day old at once."""
        late = Expiry.marked_at > now, ~Expiry.removing
        session.execute(delete(Expiry).where(Expiry.what == self.what, *late))

    @property
    def _marks(self) -> Select[*tuple[str]]:
        return select(Expiry.job_id).where(Expiry.job_id == Job.id, Expiry.what == self.what)

    def _before(self, before: datetime) -> tuple[ColumnElement[bool], ...]:
        kept = or_(Job.undeleted_at.is_(None), Job.undeleted_at < before)
        return (Job.finished_at < before, kept)

    def _first(
        self,
        session: Session,
        conditions: Sequence[ColumnElement[bool]],
        limit: int,
        without: Collection[str],
    ) -> Sequence[str]:
        others = Job.id.not_in(list(without))
        return session.scalars(
            select(Job.id)
            .where(*conditions, others, ~_has_processes(), *self.conditions)
            .order_by(Job.finished_at, Job.id)
            .limit(limit)
        ).all()


def newest_time(session: Session) -> datetime | None:
    """Return the time of the newest job, event or hour of use; None: there is none."""
    newest = (
        session.scalar(select(Event.at).order_by(Event.position.desc().nulls_last()).limit(1)),
        session.scalar(select(Job.created_at).order_by(Job.id.desc()).limit(1)),
        session.scalar(select(func.max(Usage.hour))),
    )
    return max((time for time in newest if time is not None), default=None)


def undelete(session: Session, job: Job, now: datetime) -> None:
    """Remove the marks of a job, and let retention by age wait as long again."""
    session.execute(delete(Expiry).where(Expiry.job_id == job.id, ~Expiry.removing))
    job.undeleted_at = now
    session.flush()


_UNUSED = (~_has_live_clone(), ~_has_pending_run())
expired_jobs = Old(
    "job",
    (
        Job.status.in_((JobStatus.FAILED, JobStatus.CANCELLED)),
        Job.deleted_at.is_(None),
        ~exists().where(Checkpoint.job_id == Job.id, Checkpoint.pinned),
        *_UNUSED,
    ),
)
"""Failed and cancelled jobs that may be deleted."""
with_old_logs = Old("logs", (text(OLD_LOGS),))
"""Jobs whose logs are stored."""
with_old_metrics = Old("metrics", (text(OLD_METRICS),))
"""Jobs whose metrics are stored."""
with_old_artifacts = Old("artifacts", (text(OLD_ARTIFACTS), *_UNUSED))
"""Jobs whose artifacts and older checkpoints are stored."""
with_old_checkpoints = Old("checkpoints", (text(OLD_CHECKPOINTS), *_UNUSED))
"""Jobs whose older checkpoints may be stored."""


def set_removed(session: Session, job_id: str, **columns: datetime | bool | None) -> None:
    """Record that retention removed the logs, metrics or artifacts of a job, or thinned its checkpoints."""
    session.execute(update(Job).where(Job.id == job_id).values(columns))


def attempt_numbers(session: Session, job_id: str) -> Sequence[int]:
    return session.scalars(select(Attempt.number).where(Attempt.job_id == job_id)).all()


def remove_artifact(session: Session, artifact: Artifact) -> None:
    """Remove the row of an artifact whose file is removed."""
    session.execute(
        delete(Artifact).where(
            Artifact.job_id == artifact.job_id,
            Artifact.name == artifact.name,
            Artifact.uri == artifact.uri,
        )
    )


def remove_answers(session: Session, before: datetime, limit: int) -> int:
    """Remove up to `limit` answers to Idempotency-Keys from before a time; return their number."""
    key = IdempotencyKey.tenant, IdempotencyKey.key
    old = select(*key).where(IdempotencyKey.created_at < before).order_by(IdempotencyKey.created_at)
    return changed(session, delete(IdempotencyKey).where(tuple_(*key).in_(old.limit(limit))))


def stored_by_tenant(session: Session, *, only: str | None) -> dict[str, int]:
    """Return the bytes that `stored_bytes` counts, by tenant; tenants without any are left out.

    Args:
        only: the one tenant to return; `None`: all.
    """
    of_jobs = (
        select(Job.tenant.label("tenant"), kind.size.label("size")).join(
            kind, kind.job_id == Job.id
        )
        for kind in (Checkpoint, Artifact)
    )
    checkpoints, artifacts = of_jobs
    drawn = select(Preview.tenant, Preview.size).where(*previews.not_deleted())
    made = select(ModelRun.tenant, ModelRun.size).where(*model_runs.not_deleted())
    sizes = union_all(checkpoints.where(_STORED), artifacts, drawn, made).subquery()
    return _by_tenant(session, select(sizes.c.tenant, func.sum(sizes.c.size)), only)


def uploaded_by_tenant(session: Session, *, only: str | None) -> dict[str, int]:
    """Return the bytes of the uploads of each tenant; see `stored_by_tenant` for arguments."""
    query = select(Dataset.tenant, func.sum(Dataset.upload_received))
    return _by_tenant(session, query.where(Dataset.deleted_at.is_(None)), only)


def _by_tenant(session: Session, query: Select[str, Any], only: str | None) -> dict[str, int]:
    """Return the second column of a query, a sum, by the first one, a tenant; without those that have nothing."""
    tenant, total = query.selected_columns
    query = query.group_by(tenant).having(total > 0).order_by(tenant)
    if only is not None:
        query = query.where(tenant == only)
    return {name: int(size) for name, size in session.execute(query)}


def stored_bytes(session: Session) -> int:
    """Return the total bytes of the files that are kept, without logs and uploads, of all tenants."""
    kept = select(func.sum(Checkpoint.size)).where(_STORED)
    files = select(func.sum(Artifact.size))
    drawn = select(func.sum(Preview.size)).where(*previews.not_deleted())
    made = select(func.sum(ModelRun.size)).where(*model_runs.not_deleted())
    return sum(int(session.scalar(query) or 0) for query in (kept, files, drawn, made))


def tenant_storage(session: Session, tenant: str, store: Store, log_max_bytes: int) -> StorageView:
    """Return the storage report of a tenant."""
    of_jobs = (Job.tenant == tenant, Job.deleted_at.is_(None))

    def files(size: Any, query: Select[Any]) -> StoredFiles:
        count, total = session.execute(query.with_only_columns(func.count(), func.sum(size))).one()
        return StoredFiles(count=count, bytes=int(total or 0))

    def of_tasks(tasks: Tasks[Any]) -> StoredFiles:
        row = tasks.row
        stored = (row.tenant == tenant, row.size > 0, *tasks.not_deleted())
        return files(row.size, select(row).where(*stored))

    checkpoints = select(Checkpoint).join(Job, Job.id == Checkpoint.job_id)
    artifacts = select(Artifact).join(Job, Job.id == Artifact.job_id)
    checkpoints, artifacts = checkpoints.where(*of_jobs, _STORED), artifacts.where(*of_jobs)
    logs = select(func.count()).select_from(Run).join(Job, Job.id == Run.owner)
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
        uploads=files(
            Dataset.upload_received, select(Dataset).where(*named, Dataset.upload_received > 0)
        ),
        previews=of_tasks(previews),
        model_runs=of_tasks(model_runs),
        deleted_jobs=session.scalar(select(func.count()).select_from(Job).where(own, deleted)) or 0,
        largest_jobs=[LargeJob(**row._mapping) for row in session.execute(largest)],
        store=store,
    )


def other_root(session: Session, root: str) -> str | None:
    """Return the artifact root of a stored file that is not below `root`; `None` if all are below it."""
    for uri in (Checkpoint.uri, Artifact.uri, Dataset.index_uri, DatasetVersion.index_uri):
        is_elsewhere = ~uri.startswith(f"{root}/", autoescape=True)
        if found := session.scalar(select(uri).where(is_elsewhere).limit(1)):
            return re.split(r"/(?:jobs/job|datasets/ds)_", found)[0]
    return None


def known_ids(
    session: Session,
    row: type[Job] | type[Dataset] | type[Preview] | type[ModelRun],
    ids: Collection[str],
) -> set[str]:
    """Return which of some ids are those of rows, deleted ones included."""
    return set(session.scalars(select(row.id).where(row.id.in_(ids))))
