"""SQL of webhooks and of the lists of their deliveries. The outbox adds and delivers messages."""

from datetime import datetime

from sqlalchemy import Select, delete, func, select
from sqlalchemy.orm import Session

from service.db.models import Tenant, Webhook, WebhookDelivery
from service.db.rows import changed
from service.states import DeliveryState


def lock_tenant_to_add(session: Session, tenant: str) -> bool:
    """Lock a tenant against concurrent additions of webhooks; `False` if the tenant was deleted."""
    query = select(Tenant.name).where(Tenant.name == tenant)
    # This lock does not block submissions, which hold `lock_tenant`.
    return session.scalar(query.with_for_update(key_share=True)) is not None


def count(session: Session, tenant: str) -> int:
    query = select(func.count()).where(Webhook.tenant == tenant)
    return session.execute(query).scalar_one()


def remove(session: Session, webhook: Webhook) -> None:
    """Remove a locked webhook with its deliveries."""
    changed(session, delete(WebhookDelivery).where(WebhookDelivery.webhook_id == webhook.id))
    session.delete(webhook)
    session.flush()


def deliveries(webhook_id: str, state: DeliveryState | None = None) -> Select[WebhookDelivery]:
    """Select the deliveries of a webhook, only those in a state if there is one."""
    query = select(WebhookDelivery).where(WebhookDelivery.webhook_id == webhook_id)
    return query if state is None else query.where(WebhookDelivery.state == state)


def send_again(session: Session, row: WebhookDelivery, now: datetime) -> None:
    """Queue a locked delivery now, with the full time for retries."""
    row.state, row.finished_at = DeliveryState.PENDING, None
    row.queued_at = row.next_at = now
    row.attempts, row.response_status, row.error, row.seconds = 0, None, None, None
    session.flush()
