"""SQL of previews. Only this module moves a preview's state, by guarded UPDATEs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, delete, func, or_, select, update
from sqlalchemy.orm import Session

from service.db.models import Dataset, Preview, PreviewRun, Token
from service.runs import repository as runs
from service.runs.repository import RunView
from service.runs.turns import take_turns
from service.states import LIVE_ATTEMPT, AttemptState, PreviewState

_PENDING = (PreviewState.QUEUED, PreviewState.RUNNING)


def not_deleted() -> tuple[ColumnElement[bool], ...]:
    """Conditions on a preview that neither itself nor with its data set was deleted."""
    of_deleted = select(Dataset.id).where(
        Dataset.id == Preview.dataset_id, Dataset.deleted_at.is_not(None)
    )
    return Preview.deleted_at.is_(None), ~of_deleted.exists()


def add(session: Session, preview: Preview) -> None:
    """Add a preview."""
    session.add(preview)
    session.flush()


def get(session: Session, tenant: str, preview_id: str) -> Preview | None:
    """Return a tenant's preview."""
    query = select(Preview).where(
        Preview.id == preview_id, Preview.tenant == tenant, *not_deleted()
    )
    return session.scalars(query).one_or_none()


def newest(
    session: Session, dataset_id: str, *, after: str | None, limit: int
) -> Sequence[Preview]:
    """Return a data set's previews, newest first; up to one more than `limit`."""
    query = select(Preview).where(Preview.dataset_id == dataset_id, *not_deleted())
    if after is not None:
        query = query.where(Preview.id < after)
    return session.scalars(query.order_by(Preview.id.desc()).limit(limit + 1)).all()


def lock(session: Session, preview_id: str) -> Preview | None:
    """Lock a preview's row until the transaction ends, and refresh it; `None` if it is deleted."""
    query = select(Preview).where(Preview.id == preview_id, *not_deleted())
    locking = query.with_for_update(of=Preview).execution_options(populate_existing=True)
    return session.scalars(locking).one_or_none()


def count_pending(session: Session, token_id: str) -> int:
    """How many previews of a token are queued or running.

    The token's row stays locked until the transaction ends: concurrent requests are serialized, so two of them
    cannot both take the last place.
    """
    session.execute(select(Token.id).where(Token.id == token_id).with_for_update())
    query = select(func.count()).select_from(Preview)
    of_token = query.where(
        Preview.token_id == token_id, Preview.state.in_(_PENDING), *not_deleted()
    )
    return session.execute(of_token).scalar_one()


def awaiting(session: Session, most: int, without: Collection[str]) -> Sequence[str]:
    """Return the ids of the previews to draw next: tenants take turns.

    Args:
        most: limit of running previews; those of deleted ones count until they are stopped.
        without: ids of previews that must wait.
    """
    running = Counter(
        session.scalars(select(Preview.tenant).where(Preview.state == PreviewState.RUNNING))
    )
    free = most - running.total()
    if free <= 0:
        return []
    position = func.row_number().over(partition_by=Preview.tenant, order_by=Preview.id)
    queued = (
        select(Preview.tenant, Preview.id, position.label("position"))
        .where(Preview.state == PreviewState.QUEUED, Preview.id.not_in(without), *not_deleted())
        .subquery()
    )
    first = select(queued.c.tenant, queued.c.id).where(queued.c.position <= free)
    waiting = [(row[0], row[1]) for row in session.execute(first.order_by(queued.c.id))]
    tenants = {tenant for tenant, _ in waiting}
    last = (
        select(Preview.tenant, func.max(PreviewRun.created_at))
        .join(PreviewRun, PreviewRun.owner == Preview.id)
        .where(Preview.tenant.in_(tenants))
        .group_by(Preview.tenant)
    )
    began = {row[0]: row[1] for row in session.execute(last)} if len(tenants) > 1 else {}
    return take_turns(waiting, running, began, free)


def running(session: Session) -> list[RunView]:
    """Return the runs that have not reported their end."""
    rows = session.scalars(
        select(PreviewRun)
        .join(Preview, Preview.id == PreviewRun.owner)
        .where(
            PreviewRun.state.in_(LIVE_ATTEMPT),
            Preview.state == PreviewState.RUNNING,
            *not_deleted(),
        )
        .order_by(PreviewRun.owner)
    )
    return [RunView.of(row) for row in rows]


def begin(session: Session, preview_id: str, token_hash: str) -> PreviewRun | None:
    """Move queued -> running; return the new run, or `None` if too late."""
    moved = session.execute(
        update(Preview)
        .where(Preview.id == preview_id, Preview.state == PreviewState.QUEUED, *not_deleted())
        .values(state=PreviewState.RUNNING)
        .returning(Preview.id)
        .execution_options(synchronize_session=False)
    ).scalar()
    if moved is None:
        return None
    return runs.add_next(session, PreviewRun, preview_id, token_hash)


def end(
    session: Session,
    preview_id: str,
    number: int,
    state: PreviewState,
    *,
    run_state: AttemptState,
    **columns: Any,
) -> bool:
    """Move running -> succeeded or failed, or back to queued for another run.

    Args:
        number: the run that ended; the end of an earlier run is discarded.
        columns: `uri`, `files`, `size`, `error`.
    """
    run = select(PreviewRun).where(
        PreviewRun.owner == preview_id,
        PreviewRun.number == number,
        PreviewRun.state.in_(LIVE_ATTEMPT),
    )
    if state != PreviewState.QUEUED:
        columns["finished_at"] = datetime.now(UTC)
    moved = session.execute(
        update(Preview)
        .where(
            Preview.id == preview_id,
            Preview.state == PreviewState.RUNNING,
            run.exists(),
            *not_deleted(),
        )
        .values(state=state, **columns)
        .returning(Preview.id)
        .execution_options(synchronize_session=False)
    ).scalar()
    if moved is None:
        return False
    error = columns.get("error")
    runs.move(session, PreviewRun, preview_id, number, run_state, error=error)
    runs.mark_finalized(session, PreviewRun, preview_id, number)
    return True


def to_remove(
    session: Session, before: datetime, limit: int, without: Collection[str]
) -> Sequence[str]:
    """Return previews that were deleted, also with their data set, or that ended before a time."""
    deleted, with_dataset = not_deleted()
    return session.scalars(
        select(Preview.id)
        .where(
            or_(~deleted, ~with_dataset, Preview.finished_at < before),
            Preview.id.not_in(without),
        )
        .order_by(Preview.id)
        .limit(limit)
    ).all()


def delete_oldest(
    session: Session, needed: int, before: datetime, now: datetime, limit: int
) -> Sequence[Preview]:
    """Delete the previews that ended first, until enough bytes are freed; return them.

    Args:
        needed: bytes to free.
        before: only those that ended before this time.
        limit: of their number.
    """
    oldest = session.scalars(
        select(Preview)
        .where(Preview.size > 0, Preview.finished_at < before, *not_deleted())
        .order_by(Preview.finished_at, Preview.id)
        .limit(limit)
        .with_for_update(of=Preview, skip_locked=True)
    )
    deleted: list[Preview] = []
    for row in oldest:
        if needed <= 0:
            break
        row.deleted_at = now
        needed -= row.size or 0
        deleted.append(row)
    session.flush()
    return deleted


def remove(session: Session, preview_id: str) -> None:
    """Remove the row of a preview whose files are gone, and end its run.

    Its runs stay, without their errors, as those of deleted jobs do.
    """
    run = runs.newest(session, PreviewRun, preview_id)
    if run is not None:
        runs.move(session, PreviewRun, preview_id, run.number, AttemptState.CANCELLED)
        runs.mark_finalized(session, PreviewRun, preview_id, run.number)
    session.execute(
        update(PreviewRun)
        .where(PreviewRun.owner == preview_id)
        .values(error=None)
        .execution_options(synchronize_session=False)
    )
    session.execute(
        delete(Preview).where(Preview.id == preview_id).execution_options(synchronize_session=False)
    )
