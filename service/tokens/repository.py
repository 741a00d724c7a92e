"""SQL of API tokens."""

from datetime import datetime

from sqlalchemy import delete, exists, func, select
from sqlalchemy.orm import Session

from service.db.models import Job, Token
from service.db.rows import changed
from service.states import TERMINAL, JobStatus


def count_queued(session: Session, account_id: str) -> int:
    """Count the queued jobs of a user, or of a token without user."""
    query = select(func.count()).where(Job.account_id == account_id, Job.status == JobStatus.QUEUED)
    return session.execute(query).scalar_one()


def remove_unused(session: Session, tenant: str, name: str) -> None:
    """Remove the tokens of a name that were never used."""
    unused = Token.tenant == tenant, Token.name == name, Token.last_used_at.is_(None)
    session.execute(delete(Token).where(*unused))


def remove_expired_logins(session: Session, before: datetime, limit: int) -> int:
    """Remove up to `limit` tokens of logins that expired before a time; return their number.

    Tokens with unfinished jobs stay, because their quotas apply to the jobs. Jobs, use and the audit log keep the ids
    of token and user.
    """
    unfinished = exists().where(Job.token_id == Token.id, Job.status.not_in(TERMINAL))
    expired = select(Token.id).where(Token.from_login, Token.expires_at < before, ~unfinished)
    is_expired = Token.id.in_(expired.limit(limit)), Token.expires_at < before
    return changed(session, delete(Token).where(*is_expired))
