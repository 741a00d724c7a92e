"""SQL of uploads. Moves a data set out of the state `uploading` by guarded UPDATEs."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, bindparam, case, delete, func, or_, select, update
from sqlalchemy.orm import Session

from service.db.models import Dataset, Token, UploadChunk
from service.db.rows import changed
from service.outbox import repository as outbox
from service.states import DatasetState

# How long an abandoned upload stays marked before it is deleted.
_MARKED = timedelta(days=1)
_AHEAD = 10
_UPLOADING = (Dataset.state == DatasetState.UPLOADING, Dataset.deleted_at.is_(None))
_IS_COMPLETE = Dataset.upload_received == Dataset.upload_size

# Built once, because each round needs them and SQLAlchemy takes longer to build a statement than to run it.
_OTHERS = Dataset.id.not_in(bindparam("without", expanding=True))
_COMPLETE = (
    select(Dataset)
    .where(*_UPLOADING, _IS_COMPLETE, _OTHERS)
    .order_by(Dataset.upload_received_at)
    .limit(bindparam("limit"))
)
_JOINED = (
    select(Dataset)
    .where(
        Dataset.state != DatasetState.UPLOADING,
        Dataset.deleted_at.is_(None),
        _OTHERS,
        Dataset.id.in_(select(UploadChunk.dataset_id)),
    )
    .limit(bindparam("limit"))
)


def advance(
    session: Session, dataset_id: str, start: int, stop: int, chunk: str | None, now: datetime
) -> bool:
    """Record that the bytes from `start` to `stop` are stored, unless the upload is not at `start`.

    Args:
        chunk: name of the chunk's object; None: the bytes are in the file.
    """
    at_start = (Dataset.id == dataset_id, *_UPLOADING, Dataset.upload_received == start)
    moved = _change(
        session, *at_start, upload_received=stop, upload_received_at=now, upload_marked_at=None
    )
    if moved and chunk is not None:
        session.add(UploadChunk(dataset_id=dataset_id, start=start, stop=stop, name=chunk))
    return moved


def chunks(session: Session, dataset_id: str) -> Sequence[UploadChunk]:
    """Return the chunks of an upload that are separate objects, in order."""
    query = select(UploadChunk).where(UploadChunk.dataset_id == dataset_id)
    return session.scalars(query.order_by(UploadChunk.start)).all()


def outstanding_bytes(session: Session, since: datetime) -> int:
    """Return the missing bytes of unfinished uploads that got a chunk after a time.

    Of each at most `_AHEAD` times what it has received: a declared size costs nothing.
    """
    missing = Dataset.upload_size - Dataset.upload_received
    proven = _AHEAD * Dataset.upload_received
    reserved = func.sum(case((missing < proven, missing), else_=proven))
    active = (Dataset.upload_received > 0, Dataset.upload_received_at > since)
    return int(session.scalar(select(reserved).where(*_UPLOADING, *active)) or 0)


def of_tenant(tenant: str) -> ColumnElement[bool]:
    """Select the data sets of a tenant."""
    return Dataset.tenant == tenant


def of_account(token_id: str, user_id: str | None) -> ColumnElement[bool]:
    """Select the data sets that a token, or any token of its user, registered."""
    if user_id is None:
        return Dataset.token_id == token_id
    return Dataset.token_id.in_(select(Token.id).where(Token.user_id == user_id))


def uploaded_bytes(session: Session, selected: ColumnElement[bool]) -> int:
    """Return the declared bytes of the uploads among data sets, finished or not."""
    declared = select(func.sum(Dataset.upload_size)).where(selected, Dataset.deleted_at.is_(None))
    return int(session.scalar(declared) or 0)


def complete(session: Session, limit: int, without: Collection[str]) -> Sequence[Dataset]:
    """Return data sets whose last byte is stored and that must be finished, except the ids in `without`."""
    return session.scalars(_COMPLETE, {"limit": limit, "without": [*without]}).all()


def finish(session: Session, dataset_id: str) -> bool:
    """Move uploading -> pending; `False` if the data set was deleted or is finished."""
    is_complete = (Dataset.id == dataset_id, *_UPLOADING, _IS_COMPLETE)
    now = datetime.now(UTC)
    return _change(session, *is_complete, state=DatasetState.PENDING, ingest_requested_at=now)


def fail(session: Session, dataset_id: str, error: dict[str, str]) -> bool:
    """Move uploading -> failed, with nothing stored; `False` if the data set was deleted or is finished."""
    is_complete = (Dataset.id == dataset_id, *_UPLOADING, _IS_COMPLETE)
    failed = DatasetState.FAILED
    if not _change(session, *is_complete, state=failed, error=error, upload_received=0):
        return False
    dataset = session.get_one(Dataset, dataset_id)
    outbox.add_dataset_event(session, dataset, failed, error, datetime.now(UTC))
    return True


def delete_abandoned(session: Session, before: datetime, now: datetime) -> Sequence[str]:
    """Mark unfinished uploads that got their last chunk before a time; delete those that were marked a day ago.

    A clock that has jumped leaves a day to continue them.

    Args:
        now: by `service.storage.clock`.

    Returns:
        The ids of the deleted data sets.
    """
    old = (*_UPLOADING, ~_IS_COMPLETE, Dataset.upload_received_at < before)
    at = Dataset.upload_marked_at
    session.execute(
        update(Dataset).where(*old, or_(at.is_(None), at > now)).values(upload_marked_at=now)
    )
    deleted = update(Dataset).where(*old, at <= now - _MARKED).values(deleted_at=datetime.now(UTC))
    return session.scalars(deleted.returning(Dataset.id)).all()


def joined(session: Session, limit: int, without: Collection[str]) -> Sequence[Dataset]:
    """Return data sets that are no longer uploading and whose chunks are still stored."""
    return session.scalars(_JOINED, {"limit": limit, "without": [*without]}).all()


def forget_chunks(session: Session, dataset_id: str) -> None:
    """Remove the rows of removed chunks."""
    session.execute(delete(UploadChunk).where(UploadChunk.dataset_id == dataset_id))


def _change(session: Session, *conditions: ColumnElement[bool], **values: Any) -> bool:
    return changed(session, update(Dataset).where(*conditions).values(**values)) > 0
