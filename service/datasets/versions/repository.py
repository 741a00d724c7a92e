"""SQL of the versions of data sets."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import Select, and_, or_, select, update
from sqlalchemy.orm import Session

from service.db.models import (
    Checkpoint,
    Dataset,
    DatasetVersion,
    Job,
    ModelRun,
    Preparation,
    Preview,
    Run,
)
from service.states import TERMINAL, TaskState

_ADOPTED_WITHIN = timedelta(days=2)
_AVAILABLE = "registered"
"""State of checkpoints from which clones may continue."""


def get(session: Session, dataset_id: str, number: int) -> DatasetVersion | None:
    """Return a version of a data set; `None` if it has no version with this number."""
    return session.get(DatasetVersion, (dataset_id, number))


def newest(
    session: Session, dataset: Dataset, *, before: int | None, limit: int
) -> Sequence[DatasetVersion]:
    """Return up to `limit` + 1 versions of a data set, newest first.

    Args:
        before: return only versions with a smaller number.
    """
    query = (
        select(DatasetVersion)
        .where(DatasetVersion.dataset_id == dataset.id)
        .order_by(DatasetVersion.number.desc())
    )
    if before is not None:
        return session.scalars(query.where(DatasetVersion.number < before).limit(limit + 1)).all()
    return session.scalars(query.limit(limit + 1)).all()


def unneeded(session: Session, limit: int, without: Collection[str]) -> Sequence[DatasetVersion]:
    """Return versions whose files can be removed: given up before, or needed by no job or task.

    Needed are the newest version of a data set, the versions of jobs that have not ended or have a checkpoint, and the
    versions of unfinished tasks, such as previews or embeddings.

    Args:
        without: ids of data sets to leave out.
    """
    query = _unneeded().where(Dataset.id.not_in(without))
    order = (DatasetVersion.dataset_id, DatasetVersion.number)
    return session.scalars(query.order_by(*order).limit(limit)).all()


def give_up(session: Session, dataset_id: str, number: int) -> bool:
    """Give up a version, unless it is needed now; return whether its files can be removed."""
    # Submissions lock the data set as well, so no job can choose the version meanwhile.
    session.get(Dataset, dataset_id, with_for_update=True)
    query = _unneeded().where(
        DatasetVersion.dataset_id == dataset_id, DatasetVersion.number == number
    )
    row = session.scalars(query.execution_options(populate_existing=True)).one_or_none()
    if row is None:
        return False
    row.removed_at = row.removed_at or datetime.now(UTC)
    session.flush()
    return True


def _unneeded() -> Select[DatasetVersion]:
    trains = and_(
        Job.dataset_id == DatasetVersion.dataset_id, Job.dataset_version == DatasetVersion.number
    )
    evaluates = and_(
        Job.evaluate_dataset_id == DatasetVersion.dataset_id,
        Job.evaluate_dataset_version == DatasetVersion.number,
    )
    # Separate queries, so that each uses an index.
    needed = []
    for uses in (trains, evaluates):
        jobs = select(Job.id).where(uses, Job.deleted_at.is_(None))
        checkpoints = jobs.join(Checkpoint, Checkpoint.job_id == Job.id)
        # Complete checkpoints that an attempt could not report are adopted up to a day after its end.
        just_ended = Job.finished_at > datetime.now(UTC) - _ADOPTED_WITHIN
        needed += [
            jobs.where(Job.status.not_in(TERMINAL)).exists(),
            checkpoints.where(Checkpoint.state == _AVAILABLE).exists(),
            jobs.join(Run, Run.owner == Job.id).where(just_ended).exists(),
        ]
    tasks: tuple[type[Preview | Preparation | ModelRun], ...] = (Preview, Preparation, ModelRun)
    needed += [
        select(task.id)
        .where(
            task.dataset_id == DatasetVersion.dataset_id,
            task.dataset_version == DatasetVersion.number,
            task.state.in_((TaskState.QUEUED, TaskState.RUNNING)),
            task.deleted_at.is_(None),
        )
        .exists()
        for task in tasks
    ]
    return (
        select(DatasetVersion)
        .join(Dataset, Dataset.id == DatasetVersion.dataset_id)
        .where(
            DatasetVersion.index_uri.is_not(None),
            DatasetVersion.number < Dataset.version,
            Dataset.deleted_at.is_(None),
            or_(DatasetVersion.removed_at.is_not(None), ~or_(*needed)),
        )
    )


def mark_removed(session: Session, dataset_id: str, number: int) -> None:
    """Record that the files of a given-up version are removed."""
    session.execute(
        update(DatasetVersion)
        .where(DatasetVersion.dataset_id == dataset_id, DatasetVersion.number == number)
        .values(index_uri=None)
    )
