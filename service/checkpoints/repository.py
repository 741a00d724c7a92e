"""SQL of checkpoints and artifacts."""

from collections.abc import Collection, Sequence

from sqlalchemy import Select, bindparam, func, select, text, update
from sqlalchemy.orm import Session

from service.db.models import HAS_FILES, Artifact, Attempt, Checkpoint, Job, ModelRun
from service.states import TaskState

REGISTERED, DELETING, DELETED = "registered", "deleting", "deleted"
# State of a checkpoint whose files differ from the manifest, as an attempt that tried to resume reported.
DAMAGED = "damaged"


def get(
    session: Session, tenant: str, checkpoint_id: str, *, for_update: bool = False
) -> Checkpoint | None:
    """Return a tenant's checkpoint; `for_update`: refresh it and lock it until the transaction ends."""
    query = (
        select(Checkpoint)
        .join(Job, Checkpoint.job_id == Job.id)
        .where(Checkpoint.id == checkpoint_id, Job.tenant == tenant, Job.deleted_at.is_(None))
    )
    if for_update:
        query = query.with_for_update(of=Checkpoint).execution_options(populate_existing=True)
    return session.scalars(query).one_or_none()


def lock(session: Session, checkpoint: Checkpoint) -> None:
    """Refresh a checkpoint's row and lock it until the transaction ends."""
    session.refresh(checkpoint, with_for_update=True)


def by_id(session: Session, checkpoint_id: str) -> Checkpoint:
    """Return an existing checkpoint of any tenant."""
    return session.get_one(Checkpoint, checkpoint_id)


def get_job(session: Session, checkpoint_id: str) -> Job:
    """Return the job of an existing checkpoint."""
    query = select(Job).join(Checkpoint, Checkpoint.job_id == Job.id)
    return session.scalars(query.where(Checkpoint.id == checkpoint_id)).one()


def by_uri(session: Session, uri: str) -> Checkpoint | None:
    return session.scalars(select(Checkpoint).where(Checkpoint.uri == uri)).one_or_none()


def _newest_first(job_id: str) -> Select[Checkpoint]:
    """Select a job's available checkpoints."""
    query = select(Checkpoint).where(Checkpoint.job_id == job_id, Checkpoint.state == REGISTERED)
    return query.order_by(Checkpoint.step.desc(), Checkpoint.id.desc())


def available(session: Session, job_id: str) -> Sequence[Checkpoint]:
    """Return a job's available checkpoints, oldest first."""
    return session.scalars(_newest_first(job_id)).all()[::-1]


def newest(session: Session, job_id: str, *, for_update: bool = False) -> Checkpoint | None:
    """Return the checkpoint that a job's next attempt resumes from; see `get` for `for_update`."""
    query = _newest_first(job_id).limit(1)
    if for_update:
        query = query.with_for_update()
    return session.scalars(query).first()


def lock_all(session: Session, job_id: str) -> list[Checkpoint]:
    """Lock a job's checkpoints against use and deletion by other transactions; newest first."""
    query = _newest_first(job_id).with_for_update().execution_options(populate_existing=True)
    return list(session.scalars(query))


def in_use(session: Session, ids: Collection[str]) -> set[str]:
    """Return the checkpoints among `ids` that a live attempt or an unfinished clone resumes from.

    Lock the checkpoints first; otherwise a concurrent use may be missed.
    """
    if not ids:
        return set()
    # Fast, because few attempts are not finalized and the column is indexed.
    attempts = select(Attempt.resume_checkpoint_id).where(
        Attempt.resume_checkpoint_id.in_(ids), ~Attempt.settled, Attempt.finished_at.is_(None)
    )
    clones = select(Job.start_checkpoint_id).where(
        Job.start_checkpoint_id.in_(ids), Job.finished_at.is_(None)
    )
    return {id for query in (attempts, clones) for id in session.scalars(query) if id is not None}


def awaited(session: Session, ids: Collection[str]) -> set[str]:
    """Return the checkpoints among `ids` that a queued or running evaluation, embedding or export reads."""
    if not ids:
        return set()
    pending = ModelRun.state.in_((TaskState.QUEUED, TaskState.RUNNING))
    query = select(ModelRun.checkpoint_id).where(
        ModelRun.checkpoint_id.in_(ids), pending, ModelRun.deleted_at.is_(None)
    )
    return set(session.scalars(query))


def with_results(session: Session, ids: Collection[str]) -> set[str]:
    """Return the checkpoints among `ids` with evaluations, embeddings or exports."""
    if not ids:
        return set()
    query = select(ModelRun.checkpoint_id).where(
        ModelRun.checkpoint_id.in_(ids),
        ModelRun.state == TaskState.SUCCEEDED,
        ModelRun.deleted_at.is_(None),
    )
    return set(session.scalars(query))


# Built once, because each round needs it and SQLAlchemy takes longer to build a statement than to run it.
_TO_DELETE = (
    select(Checkpoint)
    .where(
        text(HAS_FILES),
        Checkpoint.state == DELETING,
        Checkpoint.id.not_in(bindparam("without", expanding=True)),
    )
    .order_by(Checkpoint.id)
    .limit(bindparam("limit"))
)


def to_delete(
    session: Session, limit: int, *, without: Collection[str] = ()
) -> Sequence[Checkpoint]:
    """Return checkpoints that are marked for deletion, except the ids in `without`."""
    return session.scalars(_TO_DELETE, {"limit": limit, "without": [*without]}).all()


def examine_again(session: Session, job_id: str) -> None:
    """Restart the retention of an ended job's artifacts and checkpoints."""
    for passed_over, again in (
        (Job.artifacts_removed_at.is_not(None), {"artifacts_removed_at": None}),
        (Job.checkpoints_thinned, {"checkpoints_thinned": False}),
    ):
        session.execute(update(Job).where(Job.id == job_id, passed_over).values(again))


def mark_damaged(session: Session, checkpoint_id: str) -> None:
    """Mark a checkpoint as damaged: no attempt resumes from it again."""
    session.execute(
        update(Checkpoint)
        .where(Checkpoint.id == checkpoint_id, Checkpoint.state == REGISTERED)
        .values(state=DAMAGED)
    )


def mark_deleted(session: Session, checkpoint_id: str) -> None:
    """Mark a checkpoint as deleted, once its files are removed. Its row stays, without the manifest.

    Attempts, clones and events refer to the row. The manifest is dropped because it takes a kilobyte, and most
    checkpoints of a long job are deleted.
    """
    session.execute(
        update(Checkpoint)
        .where(Checkpoint.id == checkpoint_id, Checkpoint.state == DELETING)
        .values(state=DELETED, files=[])
    )


def attempt_uris(session: Session, job_id: str, number: int) -> set[str]:
    """Return the URIs of all checkpoints of an attempt, including deleted ones."""
    return set(
        session.scalars(
            select(Checkpoint.uri).where(Checkpoint.job_id == job_id, Checkpoint.attempt == number)
        )
    )


def artifacts(session: Session, job_id: str) -> Sequence[Artifact]:
    """Return a job's artifacts, sorted by name."""
    return session.scalars(
        select(Artifact).where(Artifact.job_id == job_id).order_by(Artifact.name)
    ).all()


def artifact(session: Session, job_id: str, name: str) -> Artifact | None:
    return session.get(Artifact, (job_id, name))


def save_artifact(session: Session, artifact: Artifact) -> None:
    """Store an artifact, replacing one of the same job and name."""
    session.merge(artifact)


def stored_bytes(session: Session) -> tuple[int, int]:
    """Return the total size of all checkpoints whose files exist, and of all other files of jobs."""
    of_checkpoints = session.scalar(select(func.sum(Checkpoint.size)).where(text(HAS_FILES)))
    of_artifacts = session.scalar(select(func.sum(Artifact.size)))
    return int(of_checkpoints or 0), int(of_artifacts or 0)
