"""SQL of tenants."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Select, delete, func, or_, select
from sqlalchemy.orm import Session

from service.db.models import (
    Dataset,
    Experiment,
    IdempotencyKey,
    Job,
    Tenant,
    Token,
    User,
    Webhook,
    WebhookDelivery,
)


def get(session: Session, name: str, *, lock: bool = False) -> Tenant | None:
    """Return a tenant.

    Args:
        lock: whether to lock it until the transaction ends.
    """
    return session.get(Tenant, name, with_for_update=lock or None, populate_existing=lock)


def by_name(
    session: Session, *, only: str | None, after: str | None, limit: int
) -> Sequence[Tenant]:
    """Return up to `limit` + 1 tenants, sorted by name.

    Args:
        only: the one tenant to return; `None`: all.
    """
    query = select(Tenant).order_by(Tenant.name)
    if only is not None:
        query = query.where(Tenant.name == only)
    if after is not None:
        query = query.where(Tenant.name > after)
    return session.scalars(query.limit(limit + 1)).all()


def contents(session: Session, name: str, now: datetime) -> dict[str, int]:
    """Count the objects that prevent the deletion of a tenant; deleted, revoked and disabled ones do not."""

    def count(query: Select[Any]) -> int:
        return session.scalar(query) or 0

    valid = or_(Token.expires_at.is_(None), Token.expires_at > now)
    rows = func.count()
    counts = {
        "jobs": count(select(rows).where(Job.tenant == name)),
        "datasets": count(select(rows).where(Dataset.tenant == name, Dataset.deleted_at.is_(None))),
        "tokens": count(
            select(rows).where(Token.tenant == name, Token.revoked_at.is_(None), valid)
        ),
        "users": count(select(rows).where(User.tenant == name, User.disabled_at.is_(None))),
    }
    return {kind: number for kind, number in counts.items() if number}


def remove(session: Session, name: str) -> None:
    """Delete an empty tenant, with its invalid tokens, disabled users, experiments, idempotency keys and webhooks."""
    for model in (Token, User, Experiment, IdempotencyKey, Webhook, WebhookDelivery):
        session.execute(delete(model).where(model.tenant == name))
    session.execute(delete(Tenant).where(Tenant.name == name))
