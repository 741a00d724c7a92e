"""SQL of the ledger of use: GPU- and CPU-seconds of each job in each hour. Nothing here commits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Insert, Row, func, select
from sqlalchemy.dialects.postgresql import Insert as PostgresqlInsert
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import Insert as SqliteInsert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.orm import Session

from service.db.models import Base, Job, Token, Usage

_TABLE = Base.metadata.tables[Usage.__tablename__]


def _upsert(insert: SqliteInsert | PostgresqlInsert) -> Insert:
    sums = {name: _TABLE.c[name] + insert.excluded[name] for name in ("gpu_seconds", "cpu_seconds")}
    return insert.on_conflict_do_update(index_elements=["job_id", "hour"], set_=sums)


_ADD = {
    "sqlite": _upsert(sqlite_insert(_TABLE)),
    "postgresql": _upsert(postgresql_insert(_TABLE)),
}


def add(session: Session, job: Job, now: datetime, gpu_seconds: float, cpu_seconds: float) -> None:
    """Charge a job, whose row is locked, with use that ended at `now`.

    In the same transaction as the confirmed runtime of its run, so that nothing counts twice.
    """
    session.execute(
        _ADD[session.get_bind().dialect.name],
        {
            "job_id": job.id,
            "hour": now.replace(minute=0, second=0, microsecond=0),
            "tenant": job.tenant,
            "token_id": job.token_id,
            "tags": dict(job.tags),
            "gpu_seconds": gpu_seconds,
            "cpu_seconds": cpu_seconds,
        },
    )


def by_account(session: Session, since: datetime) -> Sequence[Row[*tuple[Any, ...]]]:
    """Return (tenant, token_id, hour, gpu_seconds, cpu_seconds) of each token and hour."""
    sums = func.sum(Usage.gpu_seconds), func.sum(Usage.cpu_seconds)
    return session.execute(
        select(Usage.tenant, Usage.token_id, Usage.hour, *sums)
        .where(Usage.hour >= since)
        .group_by(Usage.hour, Usage.tenant, Usage.token_id)
    ).all()


def by_token(
    session: Session, tenant: str, token_id: str | None, start: datetime, end: datetime
) -> Sequence[Row[*tuple[Any, ...]]]:
    """Return (token id, its name, jobs, gpu_seconds, cpu_seconds) of a tenant.

    Args:
        token_id: only this token; `None`: all.
    """
    sums = func.sum(Usage.gpu_seconds), func.sum(Usage.cpu_seconds)
    jobs = func.count(Usage.job_id.distinct())
    query = (
        select(Usage.token_id, Token.name, jobs, *sums)
        .join(Token, Token.id == Usage.token_id, isouter=True)
        .where(Usage.tenant == tenant, Usage.hour >= start, Usage.hour < end)
        .group_by(Usage.token_id, Token.name)
        .order_by(sums[0].desc(), sums[1].desc(), Usage.token_id)
    )
    if token_id is not None:
        query = query.where(Usage.token_id == token_id)
    return session.execute(query).all()
