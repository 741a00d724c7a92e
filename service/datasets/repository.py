"""SQL of data sets. The modules of uploads and ingests move their states."""

from collections.abc import Collection, Sequence

from sqlalchemy import bindparam, delete, or_, select, text, update
from sqlalchemy.orm import Session

from service.db.models import REMOVED, UNREMOVED, Dataset, DatasetVersion, IngestRun, Job
from service.runs import repository as runs
from service.states import TERMINAL, AttemptState

# Built once, which halves the time of a query that each submission runs.
_FIND = select(Dataset).where(
    Dataset.tenant == bindparam("tenant"),
    Dataset.deleted_at.is_(None),
    or_(Dataset.id == bindparam("named"), Dataset.name == bindparam("named")),
)
_FIND_AND_LOCK = _FIND.with_for_update(read=True)


def by_id(session: Session, dataset_id: str) -> Dataset:
    """Return an existing data set of any tenant, deleted or not."""
    return session.get_one(Dataset, dataset_id)


def find(session: Session, tenant: str, id_or_name: str, *, lock: bool = False) -> Dataset | None:
    """Return a tenant's data set by id or name.

    Args:
        lock: block its deletion until the end of this transaction, which must be a writing one.
    """
    query = _FIND_AND_LOCK if lock else _FIND
    return session.scalars(query, {"tenant": tenant, "named": id_or_name}).one_or_none()


def names(session: Session, tenant: str, limit: int = 1000) -> Sequence[str]:
    """Return the names of a tenant's newest data sets."""
    query = select(Dataset.name).where(Dataset.tenant == tenant, Dataset.deleted_at.is_(None))
    return session.scalars(query.order_by(Dataset.id.desc()).limit(limit)).all()


def lock(session: Session, dataset_id: str) -> Dataset | None:
    """Lock a data set's row until the transaction ends, and refresh it; `None` if it is deleted."""
    row = session.get(Dataset, dataset_id, with_for_update=True, populate_existing=True)
    return row if row is not None and row.deleted_at is None else None


def unfinished_jobs(session: Session, dataset_id: str, limit: int = 5) -> Sequence[str]:
    """Return up to `limit` jobs that still need the data set."""
    return session.scalars(
        select(Job.id)
        .where(
            or_(Job.dataset_id == dataset_id, Job.evaluate_dataset_id == dataset_id),
            Job.status.not_in(TERMINAL),
        )
        .limit(limit)
    ).all()


# Built once, because each round needs it and SQLAlchemy takes longer to build a statement than to run it.
_DELETED = (
    select(Dataset)
    .where(
        text(UNREMOVED),
        Dataset.id.not_in(bindparam("without", expanding=True)),
    )
    .order_by(Dataset.deleted_at)
    .limit(bindparam("limit"))
)


def deleted(session: Session, limit: int, without: Collection[str]) -> Sequence[Dataset]:
    """Return deleted data sets that still have files or a run, except the ids in `without`."""
    return session.scalars(_DELETED, {"limit": limit, "without": [*without]}).all()


def mark_removed(session: Session, dataset_id: str) -> None:
    """Record that only the row of a deleted data set remains."""
    session.execute(
        update(Dataset)
        .where(Dataset.id == dataset_id, Dataset.deleted_at.is_not(None))
        .values(state=REMOVED, refresh_state=None)
    )
    session.execute(delete(DatasetVersion).where(DatasetVersion.dataset_id == dataset_id))
    run = runs.newest(session, IngestRun, dataset_id)
    if run is not None:
        runs.move(session, IngestRun, dataset_id, run.number, AttemptState.CANCELLED)
        runs.mark_finalized(session, IngestRun, dataset_id, run.number)


def skipped(session: Session, ids: Sequence[str]) -> dict[str, int]:
    """Return how many files each data set's newest version left out, without loading the reports."""
    # As text: a cast of what a worker reported could fail the whole query.
    number = Dataset.report["num_skipped"].as_string()
    rows = session.execute(select(Dataset.id, number).where(Dataset.id.in_(ids)))
    return {id: int(text) for id, text in rows if text is not None and text.isdecimal()}
