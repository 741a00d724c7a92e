"""SQL of the ledger of use: GPU- and CPU-seconds of each job in each hour. The caller commits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Insert, Row, delete, func, null, select, tuple_
from sqlalchemy.dialects.postgresql import Insert as PostgresqlInsert
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import Insert as SqliteInsert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.orm import Session

from service.db.models import Base, Job, Token, Usage, User

_TABLE = Base.metadata.tables[Usage.__tablename__]


def _upsert(insert: SqliteInsert | PostgresqlInsert) -> Insert:
    sums = {name: _TABLE.c[name] + insert.excluded[name] for name in ("gpu_seconds", "cpu_seconds")}
    return insert.on_conflict_do_update(index_elements=["job_id", "hour"], set_=sums)


_ADD = {
    "sqlite": _upsert(sqlite_insert(_TABLE)),
    "postgresql": _upsert(postgresql_insert(_TABLE)),
}


def add(session: Session, job: Job, now: datetime, gpu_seconds: float, cpu_seconds: float) -> None:
    """Charge a locked job with use that ended at `now`.

    Call it in the transaction that stores the run's confirmed runtime, so that nothing counts twice.
    """
    session.execute(
        _ADD[session.get_bind().dialect.name],
        {
            "job_id": job.id,
            "hour": now.replace(minute=0, second=0, microsecond=0),
            "tenant": job.tenant,
            "token_id": job.token_id,
            "account_id": job.account_id,
            "tags": dict(job.tags),
            "gpu_seconds": gpu_seconds,
            "cpu_seconds": cpu_seconds,
        },
    )


def remove_before(session: Session, before: datetime, limit: int) -> int:
    """Remove use of hours before a time; return the number of removed rows, `limit` at most."""
    old = select(Usage.job_id, Usage.hour).where(Usage.hour < before).order_by(Usage.hour)
    removed = session.execute(
        delete(Usage)
        .where(tuple_(Usage.job_id, Usage.hour).in_(old.limit(limit)))
        .returning(Usage.job_id)
    )
    return len(removed.all())


def by_account(session: Session, since: datetime) -> Sequence[Row[*tuple[Any, ...]]]:
    """Return (tenant, account id, hour, gpu_seconds, cpu_seconds) of each account and hour."""
    sums = func.sum(Usage.gpu_seconds), func.sum(Usage.cpu_seconds)
    return session.execute(
        select(Usage.tenant, Usage.account_id, Usage.hour, *sums)
        .where(Usage.hour >= since)
        .group_by(Usage.hour, Usage.tenant, Usage.account_id)
    ).all()


def by_token(
    session: Session,
    tenant: str,
    account_id: str | None,
    start: datetime,
    end: datetime,
    limit: int,
) -> Sequence[Row[*tuple[Any, ...]]]:
    """Return (token id, its name, jobs, gpu_seconds, cpu_seconds) of a tenant, most use first.

    Args:
        account_id: return only this user, or token without user; `None`: all.
    """
    query = select(Usage.token_id, Token.name, *_SUMS)
    query = query.join(Token, Token.id == Usage.token_id, isouter=True)
    query = query.group_by(Usage.token_id, Token.name)
    query = query.order_by(*_MOST_FIRST, Usage.token_id).limit(limit)
    return session.execute(query.where(*_between(tenant, account_id, start, end))).all()


def by_user(
    session: Session,
    tenant: str,
    account_id: str | None,
    start: datetime,
    end: datetime,
    limit: int,
) -> Sequence[Row[*tuple[Any, ...]]]:
    """Return the same as `by_token` for each user; `None` for the use of tokens without a user."""
    query = select(User.id, User.name, *_SUMS)
    query = query.join(User, User.id == Usage.account_id, isouter=True)
    query = query.group_by(User.id, User.name)
    query = query.order_by(*_MOST_FIRST, User.id).limit(limit)
    return session.execute(query.where(*_between(tenant, account_id, start, end))).all()


def by_tag(
    session: Session,
    tenant: str,
    account_id: str | None,
    start: datetime,
    end: datetime,
    limit: int,
    key: str,
) -> Sequence[Row[*tuple[Any, ...]]]:
    """Return the same as `by_token` for each value of a tag, without names; `None` for the use without the tag.

    A job's tags in an hour are its tags when it first used the cluster in that hour.
    """
    value: ColumnElement[str | None]
    if session.get_bind().dialect.name == "sqlite":
        # Do not use json_extract, whose path cannot name every key.
        entry = func.json_each(Usage.tags).table_valued("key", "value")
        value = select(entry.c.value).where(entry.c.key == key).scalar_subquery()
    else:
        value = func.jsonb_extract_path_text(Usage.tags, key)
    used = select(value.label("value"), Usage.job_id, Usage.gpu_seconds, Usage.cpu_seconds).where(
        *_between(tenant, account_id, start, end)
    )
    rows = used.subquery()
    sums = func.sum(rows.c.gpu_seconds), func.sum(rows.c.cpu_seconds)
    query = (
        select(rows.c.value, null(), func.count(rows.c.job_id.distinct()), *sums)
        .group_by(rows.c.value)
        .order_by(sums[0].desc(), sums[1].desc(), rows.c.value)
    )
    return session.execute(query.limit(limit)).all()


_SUMS = (
    func.count(Usage.job_id.distinct()),
    func.sum(Usage.gpu_seconds),
    func.sum(Usage.cpu_seconds),
)
_MOST_FIRST = (_SUMS[1].desc(), _SUMS[2].desc())


def _between(
    tenant: str, account_id: str | None, start: datetime, end: datetime
) -> list[ColumnElement[bool]]:
    conditions = [Usage.tenant == tenant, Usage.hour >= start, Usage.hour < end]
    return conditions if account_id is None else [*conditions, Usage.account_id == account_id]
