"""Create, change, delete and test webhooks. Nothing here makes a request to a receiver."""

from datetime import UTC, datetime, timedelta

from sqlalchemy.orm import Session

from service import credentials, ids
from service.api import references
from service.api.auth import Caller
from service.api.problems import Problem, field_problem, not_found, quota_exceeded
from service.db.models import Webhook, WebhookDelivery
from service.db.rows import add, owned
from service.outbox import messages
from service.outbox import repository as outbox
from service.outbox.addresses import AddressGuard, Refused
from service.settings import Settings
from service.states import DeliveryState
from service.webhooks import repository
from service.webhooks.schemas import Rotation, WebhookChanges, WebhookRequest
from service.wire.webhooks import DeliveryView

MAX_WEBHOOKS = 20
"""Most webhooks of a tenant. Each change of a job's status is matched with all of them."""
_BY_PERSON = "A person disabled it"


def create(
    session: Session, caller: Caller, request: WebhookRequest, settings: Settings
) -> Webhook:
    """Add a webhook with a new secret.

    Raises:
        Problem: 404, the tenant was deleted; 422, the address may not be reached; 429, the tenant has too many webhooks.
    """
    _check_url(request.url, settings)
    if not repository.lock_tenant_to_add(session, caller.tenant):
        raise not_found("tenant", caller.tenant)
    used = repository.count(session, caller.tenant)
    if used >= MAX_WEBHOOKS:
        detail = f"The tenant has {used} webhooks, which is the limit; delete one, or let one be notified of more events"
        raise quota_exceeded("webhooks", MAX_WEBHOOKS, used, detail)
    webhook = Webhook(
        id=ids.new_id("whk"),
        tenant=caller.tenant,
        name=request.name or "",
        url=request.url,
        events=request.events,
        tags=request.tags,
        format=request.format,
        secret=credentials.new_webhook_secret(),
        token_id=caller.token_id,
        created_at=datetime.now(UTC),
    )
    add(session, webhook)
    return webhook


def get(session: Session, tenant: str, webhook_id: str, *, lock: bool = False) -> Webhook:
    """Return a tenant's webhook.

    Raises:
        Problem: 404.
    """
    return references.get(session, owned(Webhook, tenant), "whk", webhook_id, "webhook", lock=lock)


def change(
    session: Session, tenant: str, webhook_id: str, changes: WebhookChanges, settings: Settings
) -> Webhook:
    """Change the given fields. Disabling a webhook drops its waiting messages.

    Raises:
        Problem: 404; 422, the address may not be reached.
    """
    named = changes.model_fields_set
    if "url" in named:
        _check_url(changes.url, settings)
    webhook = get(session, tenant, webhook_id, lock=True)
    for field in named - {"disabled"}:
        setattr(webhook, field, getattr(changes, field))
    session.flush()
    if "disabled" in named and changes.disabled:
        outbox.disable(session, webhook.id, _BY_PERSON, datetime.now(UTC))
        session.expire(webhook)
    elif "disabled" in named:
        webhook.disabled_at = webhook.disabled_reason = None
    return webhook


def delete(session: Session, tenant: str, webhook_id: str) -> None:
    """Delete a webhook with its deliveries. Nothing more is sent, except a pending request.

    Raises:
        Problem: 404.
    """
    repository.remove(session, get(session, tenant, webhook_id, lock=True))


def rotate(session: Session, tenant: str, webhook_id: str, rotation: Rotation) -> Webhook:
    """Replace the secret of a webhook. Until a time, messages are signed with the previous one, too.

    Raises:
        Problem: 404.
    """
    webhook = get(session, tenant, webhook_id, lock=True)
    kept = timedelta(hours=rotation.keep_hours)
    webhook.previous_secret = webhook.secret if kept else None
    webhook.previous_secret_until = datetime.now(UTC) + kept if kept else None
    webhook.secret = credentials.new_webhook_secret()
    session.flush()
    return webhook


def send_test(session: Session, tenant: str, webhook_id: str) -> WebhookDelivery:
    """Add a test message, which the dispatcher sends.

    Raises:
        Problem: 404; 409, the webhook is disabled.
    """
    webhook = get(session, tenant, webhook_id, lock=True)
    _check_enabled(webhook)
    delivery_id = outbox.add_test(session, webhook, datetime.now(UTC))
    return delivery(session, webhook, delivery_id)


def delivery(
    session: Session, webhook: Webhook, delivery_id: str, *, lock: bool = False
) -> WebhookDelivery:
    """Return a delivery of a webhook.

    Raises:
        Problem: 404.
    """
    query = repository.deliveries(webhook.id)
    return references.get(session, query, "msg", delivery_id, "delivery", lock=lock)


def redeliver(session: Session, tenant: str, webhook_id: str, delivery_id: str) -> WebhookDelivery:
    """Send a message again, even if it was accepted. A pending one is sent immediately.

    Raises:
        Problem: 404; 409, the webhook is disabled.
    """
    webhook = get(session, tenant, webhook_id, lock=True)
    row = delivery(session, webhook, delivery_id, lock=True)
    _check_enabled(webhook)
    now = datetime.now(UTC)
    if row.state != DeliveryState.PENDING or row.next_at > now:
        repository.send_again(session, row, now)
    return row


def view(row: WebhookDelivery, settings: Settings) -> DeliveryView:
    """Return the API's view of a delivery."""
    names = DeliveryView.model_fields.keys() - {"payload", "next_at"}
    return DeliveryView(
        payload=messages.with_link(row.message, settings.public_url),
        next_at=row.next_at if row.finished_at is None else None,
        **{name: getattr(row, name) for name in names},
    )


def _check_enabled(webhook: Webhook) -> None:
    if webhook.disabled_at is not None:
        raise Problem(
            409,
            "webhook-disabled",
            f"The webhook is disabled: {webhook.disabled_reason}. Enable it first "
            f"(dasl webhooks enable {webhook.id})",
        )


def _check_url(url: str, settings: Settings) -> None:
    try:
        AddressGuard(settings.webhook_allowed_hosts).check_url(url)
    except Refused as refused:
        expected = "an https URL of a public address"
        # Do not repeat it in the answer: it may be a secret, like Slack's URLs.
        raise field_problem("url", str(refused), "", expected) from refused
