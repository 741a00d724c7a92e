"""SQL of webhooks and of the lists of their deliveries. The outbox adds and delivers messages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from service.db.models import Tenant, Webhook, WebhookDelivery
from service.states import DeliveryState


def lock_tenant_to_add(session: Session, tenant: str) -> bool:
    """Let one webhook of a tenant be added at a time, until the transaction ends; `False` if the tenant was deleted."""
    query = select(Tenant.name).where(Tenant.name == tenant)
    # Submissions, which hold `lock_tenant`, need not wait.
    return session.scalar(query.with_for_update(key_share=True)) is not None


def count(session: Session, tenant: str) -> int:
    """How many webhooks a tenant has."""
    query = select(func.count()).where(Webhook.tenant == tenant)
    return session.execute(query).scalar_one()


def add(session: Session, webhook: Webhook) -> None:
    """Store a new webhook."""
    session.add(webhook)
    session.flush()


def get(session: Session, tenant: str, webhook_id: str, *, lock: bool = False) -> Webhook | None:
    """Return a tenant's webhook.

    Args:
        lock: until the transaction ends.
    """
    query = select(Webhook).where(Webhook.id == webhook_id, Webhook.tenant == tenant)
    if lock:
        query = query.with_for_update().execution_options(populate_existing=True)
    return session.scalars(query).one_or_none()


def newest(session: Session, tenant: str, after: str | None, limit: int) -> Sequence[Webhook]:
    """Return a tenant's webhooks, newest first; one more than `limit`."""
    query = select(Webhook).where(Webhook.tenant == tenant).order_by(Webhook.id.desc())
    if after is not None:
        query = query.where(Webhook.id < after)
    return session.scalars(query.limit(limit + 1)).all()


def remove(session: Session, webhook: Webhook) -> None:
    """Remove a locked webhook with its deliveries."""
    session.execute(
        delete(WebhookDelivery)
        .where(WebhookDelivery.webhook_id == webhook.id)
        .execution_options(synchronize_session=False)
    )
    session.delete(webhook)
    session.flush()


def deliveries(
    session: Session,
    webhook_id: str,
    *,
    state: DeliveryState | None,
    after: str | None,
    limit: int,
) -> Sequence[WebhookDelivery]:
    """Return the deliveries of a webhook, newest first; one more than `limit`."""
    query = select(WebhookDelivery).where(WebhookDelivery.webhook_id == webhook_id)
    if state is not None:
        query = query.where(WebhookDelivery.state == state)
    if after is not None:
        query = query.where(WebhookDelivery.id < after)
    return session.scalars(query.order_by(WebhookDelivery.id.desc()).limit(limit + 1)).all()


def delivery(
    session: Session, webhook_id: str, delivery_id: str, *, lock: bool = False
) -> WebhookDelivery | None:
    """Return a delivery of a webhook.

    Args:
        lock: until the transaction ends.
    """
    query = select(WebhookDelivery).where(
        WebhookDelivery.id == delivery_id, WebhookDelivery.webhook_id == webhook_id
    )
    if lock:
        query = query.with_for_update().execution_options(populate_existing=True)
    return session.scalars(query).one_or_none()


def send_again(session: Session, row: WebhookDelivery, now: datetime) -> None:
    """Let a locked delivery be sent now, and again for the whole time if that fails."""
    row.state, row.finished_at = DeliveryState.PENDING, None
    row.queued_at = row.next_at = now
    row.attempts, row.response_status, row.error, row.seconds = 0, None, None, None
    session.flush()
