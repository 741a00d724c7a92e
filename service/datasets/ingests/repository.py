"""SQL of the ingests of data sets: their order, their states and the quota of tokens.

Moves the state of a data set or of its refresh by guarded UPDATEs.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, func, or_, select, update
from sqlalchemy.orm import Session

from service.db.models import REMOVED, Dataset, IngestRun, Token
from service.db.rows import changed
from service.outbox import repository as outbox
from service.runs import repository as runs
from service.runs.repository import WatchedRun
from service.runs.turns import take_turns
from service.states import AttemptState, DatasetState


def _ingest_is(*states: DatasetState) -> ColumnElement[bool]:
    """Build the condition that a data set's first ingest or refresh is in one of these states."""
    return or_(Dataset.state.in_(states), Dataset.refresh_state.in_(states))


def count_pending(session: Session, token_id: str, user_id: str | None) -> int:
    """Count the unfinished uploads and ingests that a token, or any token of its user, requested."""
    of_user = select(Token.id).where(Token.user_id == user_id)
    asked_by = func.coalesce(Dataset.refresh_token_id, Dataset.token_id)
    query = select(func.count()).where(
        asked_by == token_id if user_id is None else asked_by.in_(of_user),
        _ingest_is(DatasetState.UPLOADING, DatasetState.PENDING, DatasetState.INGESTING),
        Dataset.deleted_at.is_(None),
    )
    return session.execute(query).scalar_one()


def _first_pending() -> Select[*tuple[str, str]]:
    """Select the first `most` data sets of each tenant."""
    order = (Dataset.ingest_requested_at, Dataset.id)
    position = func.row_number().over(partition_by=Dataset.tenant, order_by=order)
    pending = (
        select(
            Dataset.tenant,
            Dataset.id,
            position.label("position"),
            Dataset.ingest_requested_at.label("requested_at"),
        )
        .where(
            _ingest_is(DatasetState.PENDING),
            Dataset.deleted_at.is_(None),
            Dataset.id.not_in(bindparam("without", expanding=True)),
        )
        .subquery()
    )
    return (
        select(pending.c.tenant, pending.c.id)
        .where(pending.c.position <= bindparam("most"))
        .order_by(pending.c.requested_at, pending.c.id)
    )


# Built once, because each round needs them and SQLAlchemy takes longer to build a statement than to run it.
_FIRST_PENDING = _first_pending()
_TENANTS_INGESTING = select(Dataset.tenant).where(
    _ingest_is(DatasetState.INGESTING), Dataset.state != REMOVED
)
_LIVE_RUNS = (
    select(IngestRun)
    .join(Dataset, Dataset.id == IngestRun.owner)
    .where(
        IngestRun.finished_at.is_(None),
        _ingest_is(DatasetState.INGESTING),
        Dataset.deleted_at.is_(None),
    )
    .order_by(IngestRun.owner)
)
AWAITED = select(Dataset.id).where(
    _ingest_is(DatasetState.PENDING, DatasetState.INGESTING), Dataset.deleted_at.is_(None)
)
"""Data sets whose ingest runs or is due."""
_MOST_LOST = 1000
_LOST = (
    select(Dataset.id, Dataset.tenant, _ingest_is(DatasetState.INGESTING).label("runs"))
    .distinct()
    .join(IngestRun, IngestRun.owner == Dataset.id)
    .where(
        IngestRun.state == AttemptState.LOST,
        IngestRun.number > Dataset.ingest_after,
        _ingest_is(DatasetState.PENDING, DatasetState.INGESTING),
        Dataset.deleted_at.is_(None),
    )
    .order_by(Dataset.id)
    .limit(_MOST_LOST)
)


def awaiting_ingest(session: Session, most: int, without: Collection[str] = ()) -> Sequence[str]:
    """Return the ids of the data sets to ingest next: tenants take turns.

    A tenant's oldest request, a registration or a refresh, is next. After a loss of Ray, the data sets whose ingest was
    lost run one after the other, so that the one that causes it is found, and their tenants ingest nothing beside.

    Args:
        most: limit of running ingests (`take_turns`); ingests of deleted data sets count until they are stopped.
        without: ids of data sets that must wait.
    """
    running = Counter(session.scalars(_TENANTS_INGESTING))
    if running.total() >= most:
        return []
    lost = session.execute(_LOST).all()
    turn = next((each.id for each in lost if each.runs), lost[0].id if lost else None)
    held, later = {each.tenant for each in lost}, [each.id for each in lost if each.id != turn]
    rows = session.execute(_FIRST_PENDING, {"most": most, "without": [*without, *later]})
    waiting = [(tenant, id) for tenant, id in rows if tenant not in held or id == turn]
    tenants = {tenant for tenant, _ in waiting}
    began = _last_ingests(session, tenants) if len(tenants) > 1 else {}
    return take_turns(waiting, running, began, most)


def _last_ingests(session: Session, tenants: Collection[str]) -> dict[str, datetime]:
    """Return when the last ingest of each tenant began; tenants without any are left out."""
    rows = session.execute(
        select(Dataset.tenant, func.max(IngestRun.created_at))
        .join(IngestRun, IngestRun.owner == Dataset.id)
        .where(Dataset.tenant.in_(tenants))
        .group_by(Dataset.tenant)
    )
    return {row[0]: row[1] for row in rows}


def ingesting(session: Session) -> list[WatchedRun]:
    """Return the ingest runs that have not reported their end."""
    return [WatchedRun.from_row(row) for row in session.scalars(_LIVE_RUNS)]


def begin_ingest(session: Session, dataset_id: str, token_hash: str) -> IngestRun | None:
    """Move pending -> ingesting; return the new ingest run, or `None` if too late."""
    pending, ingesting = DatasetState.PENDING, DatasetState.INGESTING
    if not _move_ingest(session, dataset_id, pending, ingesting, {}):
        return None
    return runs.add_next(session, IngestRun, dataset_id, token_hash)


def _move_ingest(
    session: Session,
    dataset_id: str,
    source: DatasetState,
    to: str,
    columns: Mapping[str, Any],
    *conditions: ColumnElement[bool],
    error: dict[str, Any] | None = None,
) -> bool:
    """Move the first ingest of a data set, or its refresh, to another state; return whether it was in `source`."""
    for state, prefix in ((Dataset.state, ""), (Dataset.refresh_state, "refresh_")):
        is_over = bool(prefix) and to == DatasetState.READY
        values = {f"{prefix}state": None if is_over else to, "progress": None, **columns}
        if to != DatasetState.INGESTING:
            values[f"{prefix}error"] = error
        is_in = Dataset.id == dataset_id, state == source, Dataset.deleted_at.is_(None)
        if changed(session, update(Dataset).where(*is_in, *conditions).values(values)):
            return True
    return False


def request_ingest(session: Session, dataset: Dataset, token_id: str) -> None:
    """Request another ingest of a locked data set: its first one if that failed, otherwise a refresh.

    Args:
        token_id: the token whose quota it uses.
    """
    run = runs.newest(session, IngestRun, dataset.id)
    dataset.ingest_after = run.number if run is not None else 0
    dataset.ingest_requested_at = datetime.now(UTC)
    dataset.refresh_token_id = token_id
    if dataset.state == DatasetState.FAILED:
        dataset.state, dataset.error = DatasetState.PENDING, None
    else:
        dataset.refresh_state, dataset.refresh_error = DatasetState.PENDING, None
    session.flush()


def ingest_after(session: Session, dataset_id: str) -> int:
    """Return the number of the last run before the newest ingest of a data set."""
    return session.get_one(Dataset, dataset_id).ingest_after


def end_ingest(
    session: Session,
    dataset_id: str,
    number: int,
    state: str,
    *,
    run_state: AttemptState | None = None,
    error: dict[str, Any] | None = None,
    **columns: Any,
) -> bool:
    """Move ingesting -> ready or failed, or back to pending for another run.

    Args:
        number: the run that ended; the end of an earlier run is discarded.
        run_state: the run's state; `None`: succeeded if the data set is ready, otherwise failed.
        columns: `facts`, `report`, `index_uri` and `version`, if they change.
    """
    assert state in (DatasetState.READY, DatasetState.FAILED, DatasetState.PENDING)
    dataset = session.get_one(Dataset, dataset_id)
    if error is not None and dataset.upload_file is not None:
        # The path of an upload is the server's own.
        error = {**error, "message": error["message"].replace(dataset.uri, "the upload")}
    run = select(IngestRun).where(
        IngestRun.owner == dataset_id,
        IngestRun.number == number,
        IngestRun.finished_at.is_(None),
    )
    ingesting = DatasetState.INGESTING
    if not _move_ingest(session, dataset_id, ingesting, state, columns, run.exists(), error=error):
        return False
    over = AttemptState.SUCCEEDED if state == DatasetState.READY else AttemptState.FAILED
    runs.move(session, IngestRun, dataset_id, number, run_state or over, error=error)
    runs.mark_finalized(session, IngestRun, dataset_id, number)
    if state != DatasetState.PENDING:
        outbox.add_dataset_event(session, dataset, state, error, datetime.now(UTC))
    return True
