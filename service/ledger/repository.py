"""SQL of the ledger of use: GPU- and CPU-seconds of each job in each hour. The caller commits."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Insert, Row, SQLColumnExpression, delete, func, null, select, tuple_
from sqlalchemy.dialects.postgresql import Insert as PostgresqlInsert
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import Insert as SqliteInsert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.orm import Session

from service.db.models import Base, Job, Token, Usage, User
from service.db.rows import changed

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
    is_old = tuple_(Usage.job_id, Usage.hour).in_(old.limit(limit))
    return changed(session, delete(Usage).where(is_old))


def by_account(session: Session, since: datetime) -> Sequence[Row[*tuple[Any, ...]]]:
    """Return (tenant, account id, hour, gpu_seconds, cpu_seconds) of each account and hour."""
    sums = func.sum(Usage.gpu_seconds), func.sum(Usage.cpu_seconds)
    return session.execute(
        select(Usage.tenant, Usage.account_id, Usage.hour, *sums)
        .where(Usage.hour >= since)
        .group_by(Usage.hour, Usage.tenant, Usage.account_id)
    ).all()


def by_group(
    session: Session,
    tenant: str,
    account_id: str | None,
    start: datetime,
    end: datetime,
    limit: int,
    group: str,
    tag: str | None,
) -> Sequence[Row[*tuple[Any, ...]]]:
    """Return (value, its name, jobs, gpu_seconds, cpu_seconds) of each group of a tenant, most use first.

    The value is the id of a token, the id of a user, or the value of a tag, which has no name; `None` for the use of
    tokens without a user, or without the tag. A job's tags in an hour are its tags when it first used the cluster in
    that hour.

    Args:
        account_id: return only this user, or token without user; `None`: all.
        group: `user` or `token`; without effect if there is a `tag`.
        tag: key of the tag.
    """
    used = select(Usage.job_id, Usage.gpu_seconds, Usage.cpu_seconds).where(
        Usage.tenant == tenant, Usage.hour >= start, Usage.hour < end
    )
    if account_id is not None:
        used = used.where(Usage.account_id == account_id)
    value: SQLColumnExpression[Any]
    name: SQLColumnExpression[Any]
    if tag is not None:
        value, name = _tag_value(session, tag), null()
    elif group == "user":
        used = used.outerjoin(User, User.id == Usage.account_id)
        value, name = User.id, User.name
    else:
        used = used.outerjoin(Token, Token.id == Usage.token_id)
        value, name = Usage.token_id, Token.name
    rows = used.add_columns(value.label("value"), name.label("name")).subquery().c
    sums = func.sum(rows.gpu_seconds), func.sum(rows.cpu_seconds)
    return session.execute(
        select(rows.value, rows.name, func.count(rows.job_id.distinct()), *sums)
        .group_by(rows.value, rows.name)
        .order_by(sums[0].desc(), sums[1].desc(), rows.value)
        .limit(limit)
    ).all()


def _tag_value(session: Session, key: str) -> SQLColumnExpression[str | None]:
    if session.get_bind().dialect.name == "postgresql":
        return func.jsonb_extract_path_text(Usage.tags, key)
    # Do not use json_extract, whose path cannot name every key.
    entry = func.json_each(Usage.tags).table_valued("key", "value")
    return select(entry.c.value).where(entry.c.key == key).scalar_subquery()
