"""SQL of the ledger of use: GPU- and CPU-seconds of each job in each hour. Nothing here commits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, func, select, update
from sqlalchemy.orm import Session

from service.db.models import Job, Token, Usage


def add(session: Session, job: Job, now: datetime, gpu_seconds: float, cpu_seconds: float) -> None:
    """Charge a job, whose row is locked, with use that ended at `now`.

    In the same transaction as the confirmed runtime of its run, so that nothing counts twice.
    """
    hour = now.replace(minute=0, second=0, microsecond=0)
    changed = session.execute(
        update(Usage)
        .where(Usage.job_id == job.id, Usage.hour == hour)
        .values(
            gpu_seconds=Usage.gpu_seconds + gpu_seconds,
            cpu_seconds=Usage.cpu_seconds + cpu_seconds,
        )
        .returning(Usage.job_id)
        .execution_options(synchronize_session=False)
    ).first()
    if changed is None:
        session.add(
            Usage(
                job_id=job.id,
                hour=hour,
                tenant=job.tenant,
                token_id=job.token_id,
                tags=dict(job.tags),
                gpu_seconds=gpu_seconds,
                cpu_seconds=cpu_seconds,
            )
        )
        session.flush()


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
