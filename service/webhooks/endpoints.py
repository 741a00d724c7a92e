"""`/v1/webhooks`, for administrators, because webhooks send events to other machines and their URLs may be secret."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Response

from service.api.auth import Admin
from service.api.pagination import Page, Window, page, window
from service.api.transaction import ReadSession, Route, WithContext, WriteSession
from service.db.models import Webhook
from service.db.rows import newest, owned
from service.states import DeliveryState
from service.webhooks import repository, service
from service.webhooks.schemas import Rotation, WebhookChanges, WebhookRequest
from service.wire.webhooks import DeliveryView, NewSecret, WebhookView

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], route_class=Route)


@router.post("", status_code=201)
def create_webhook(
    request: WebhookRequest,
    response: Response,
    caller: Admin,
    context: WithContext,
    session: WriteSession,
) -> NewSecret:
    """Create a webhook; only this answer contains its secret."""
    webhook = service.create(session, caller, request, context.settings)
    response.headers["Location"] = f"/v1/webhooks/{webhook.id}"
    return NewSecret.model_validate(webhook)


@router.get("")
def list_webhooks(
    caller: Admin, session: ReadSession, window: Annotated[Window, window("whk")]
) -> Page[WebhookView]:
    """List webhooks, newest first, without their secrets."""
    rows = newest(session, owned(Webhook, caller.tenant), *window)
    return page(rows, window.limit, WebhookView.model_validate)


@router.get("/{webhook_id}")
def show_webhook(webhook_id: str, caller: Admin, session: ReadSession) -> WebhookView:
    """Show a webhook, without its secret."""
    return WebhookView.model_validate(service.get(session, caller.tenant, webhook_id))


@router.patch("/{webhook_id}")
def change_webhook(
    webhook_id: str,
    changes: WebhookChanges,
    caller: Admin,
    context: WithContext,
    session: WriteSession,
) -> WebhookView:
    """Change the given fields; `disabled` stops and resumes notifications."""
    webhook = service.change(session, caller.tenant, webhook_id, changes, context.settings)
    return WebhookView.model_validate(webhook)


@router.delete("/{webhook_id}", status_code=204, response_class=Response)
def delete_webhook(webhook_id: str, caller: Admin, session: WriteSession) -> None:
    """Delete a webhook with its deliveries; waiting messages are not sent."""
    service.delete(session, caller.tenant, webhook_id)


@router.post("/{webhook_id}/rotate")
def rotate_secret(
    webhook_id: str, rotation: Rotation, caller: Admin, session: WriteSession
) -> NewSecret:
    """Replace the secret; for `keep_hours`, messages are also signed with the previous one."""
    return NewSecret.model_validate(service.rotate(session, caller.tenant, webhook_id, rotation))


@router.post("/{webhook_id}/test", status_code=202)
def send_test(
    webhook_id: str, caller: Admin, context: WithContext, session: WriteSession
) -> DeliveryView:
    """Send a test message; 409 if the webhook is disabled."""
    row = service.send_test(session, caller.tenant, webhook_id)
    return service.view(row, context.settings)


@router.get("/{webhook_id}/deliveries")
def list_deliveries(
    webhook_id: str,
    caller: Admin,
    context: WithContext,
    session: ReadSession,
    window: Annotated[Window, window("msg")],
    state: DeliveryState | None = None,
) -> Page[DeliveryView]:
    """List the messages of a webhook, newest first, with the last attempt of each."""
    webhook = service.get(session, caller.tenant, webhook_id)
    rows = newest(session, repository.deliveries(webhook.id, state), *window)
    view = partial(service.view, settings=context.settings)
    return page(rows, window.limit, view)


@router.get("/{webhook_id}/deliveries/{delivery_id}")
def show_delivery(
    webhook_id: str, delivery_id: str, caller: Admin, context: WithContext, session: ReadSession
) -> DeliveryView:
    """Show a message and its last attempt."""
    webhook = service.get(session, caller.tenant, webhook_id)
    return service.view(service.delivery(session, webhook, delivery_id), context.settings)


@router.post("/{webhook_id}/deliveries/{delivery_id}/redeliver", status_code=202)
def redeliver(
    webhook_id: str, delivery_id: str, caller: Admin, context: WithContext, session: WriteSession
) -> DeliveryView:
    """Send a message again, with the same id; 409 if the webhook is disabled."""
    row = service.redeliver(session, caller.tenant, webhook_id, delivery_id)
    return service.view(row, context.settings)
