"""Row locks that several packages take.

A transaction that takes several takes them in one order: tenant, token, user, job, checkpoint, data set, and then rows
that belong to one of these. Two that take them in different orders wait for each other, and the database ends one of
them (`tests/service/test_lock_order.py`).
"""

from sqlalchemy import select
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.db.models import Job, Tenant, Token, User


def lock_job(session: Session, job_id: str) -> Job | None:
    """Lock a job's row until the transaction ends, and refresh it; `None` if the job does not exist."""
    return session.get(Job, job_id, with_for_update=True, populate_existing=True)


def lock_tenant(session: Session, name: str) -> bool:
    """Lock a tenant against deletion until the transaction ends; `False` if it was deleted.

    Take it before other locks, as the deletion does. The lock is shared, and does not block changes of the limits.
    """
    query = select(Tenant.name).where(Tenant.name == name)
    return session.scalar(query.with_for_update(read=True, key_share=True)) is not None


def lock_tenant_bytes(session: Session, name: str) -> int | None:
    """Return a tenant's limit of uploaded bytes; `None`: unlimited. With a limit, its row stays locked."""
    limit = Tenant.max_uploaded_bytes
    query = select(limit).where(Tenant.name == name, limit.is_not(None))
    return session.scalar(query.with_for_update(key_share=True))


def lock_token(session: Session, token_id: str) -> None:
    """Lock a token until the transaction ends, so that two concurrent requests cannot both take the last place."""
    session.execute(select(Token.id).where(Token.id == token_id).with_for_update())


def lock_quota(
    session: Session,
    quota: InstrumentedAttribute[int | None],
    token_id: str,
    user_id: str | None,
) -> int | None:
    """Return a quota of a token; `None`: unlimited.

    If there is a limit, the rows of the token and its user stay locked until the transaction ends, so that two
    concurrent requests cannot both take the last place.
    """
    query = select(quota).where(Token.id == token_id, quota.is_not(None))
    limit = session.scalar(query.with_for_update())
    if limit is not None and user_id is not None:
        session.execute(select(User.id).where(User.id == user_id).with_for_update())
    return limit
