"""SQL of accounts: who is charged for a job, and whose jobs share the quotas of a token."""

from __future__ import annotations

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from service.db.models import Job, Tenant, Token

ACCOUNT = func.coalesce(Job.account_id, Token.user_id, Job.token_id)
"""The account of a job, also of one that a version without accounts added; with its token joined."""


def add_accounts(session: Session, limit: int) -> int:
    """Store the accounts of jobs that a version without accounts added; return their number, `limit` at most."""
    without = select(Job.id).where(Job.account_id.is_(None), Job.token_id.is_not(None))
    # Whoever has locked a job changes it now; the next call finds it.
    ids = session.scalars(without.limit(limit).with_for_update(skip_locked=True)).all()
    user = select(Token.user_id).where(Token.id == Job.token_id).scalar_subquery()
    session.execute(
        update(Job)
        .where(Job.id.in_(ids))
        .values(account_id=func.coalesce(user, Job.token_id))
        .execution_options(synchronize_session=False)
    )
    return len(ids)


def max_gpus(session: Session, tenant: str, token_id: str | None) -> int | None:
    """Return how many GPUs the quotas of a token and its tenant allow; `None` if they do not limit them."""
    of_token = select(Token.max_gpus).where(Token.id == token_id)
    of_tenant = select(Tenant.max_gpus).where(Tenant.name == tenant)
    quotas = [session.scalar(quota) for quota in (of_token, of_tenant)]
    return min((quota for quota in quotas if quota is not None), default=None)
