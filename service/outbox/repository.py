"""SQL of the outbox: messages are added in the transaction of their event, then delivered by the dispatcher.

A delivery is claimed, which counts the attempt, before anything is sent. If the process is killed, the message is sent
again, but not more than `retries.MAX_ATTEMPTS` times.
"""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import and_, bindparam, delete, exists, insert, select, update
from sqlalchemy import text as sql
from sqlalchemy.orm import Session

from service import ids
from service.db.models import PENDING_DELIVERY, Base, Dataset, Job, Task, Webhook, WebhookDelivery
from service.db.rows import changed
from service.outbox import messages
from service.outbox.retries import ATTEMPT_SECONDS, GONE, Outcome, next_attempt, pause_after
from service.states import DeliveryState

# Built once, because each change of a job's status needs it and SQLAlchemy takes longer to build a statement than to run it.
_LISTENING = select(Webhook.id, Webhook.events, Webhook.tags).where(
    Webhook.tenant == bindparam("tenant"), Webhook.disabled_at.is_(None)
)
_ADD = insert(Base.metadata.tables[WebhookDelivery.__tablename__])
# As literal SQL: SQLite uses a partial index only for a condition without parameters.
_IS_PENDING = sql(f"webhook_deliveries.{PENDING_DELIVERY}")
_ABANDONED = "Its webhook was disabled"


Due = tuple[WebhookDelivery, Webhook]
"""A message to send now, and its webhook. The message counts the earlier attempts."""


def add_job_event(session: Session, job: Job, event: str, message: str, at: datetime) -> None:
    """Add a message about an event of a job for each webhook that wants it."""
    kind = messages.job_type(job, event)
    if kind is not None:
        _notify(session, job.tenant, kind, at, messages.job_message(job, message), job.tags)


def add_dataset_event(
    session: Session, dataset: Dataset, state: str, error: dict[str, Any] | None, at: datetime
) -> None:
    """Add a message about the end of an ingest for each webhook that wants it."""
    data = messages.dataset_message(dataset, state, error)
    _notify(session, dataset.tenant, f"dataset.{state}", at, data)


def add_task_event(
    session: Session,
    task: Task,
    noun: str,
    state: str,
    error: dict[str, Any] | None,
    at: datetime,
) -> None:
    """Add a message about the end of a task for each webhook that wants it."""
    data = messages.task_message(task, noun, state, error)
    _notify(session, task.tenant, f"{noun}.{state}", at, data)


def add_test(session: Session, webhook: Webhook, at: datetime) -> str:
    """Add a test message for a webhook, ignoring its filter; return the id of the delivery."""
    data = messages.webhook_message(webhook.id, webhook.name, "This is a test of a webhook")
    return _add(session, webhook.tenant, [webhook.id], messages.TEST, at, data)[0]


def _notify(
    session: Session,
    tenant: str,
    kind: str,
    at: datetime,
    data: dict[str, Any],
    tags: dict[str, str] | None = None,
) -> None:
    """Add a message for each webhook of a tenant whose filter matches a type of event and a job's tags."""
    rows = session.execute(_LISTENING, {"tenant": tenant})
    listeners = [
        row.id
        for row in rows
        if (messages.ALL in row.events or kind in row.events)
        and row.tags.items() <= (tags or {}).items()
    ]
    if listeners:
        _add(session, tenant, listeners, kind, at, data)


def _add(
    session: Session,
    tenant: str,
    webhook_ids: Sequence[str],
    kind: str,
    at: datetime,
    data: dict[str, Any],
) -> list[str]:
    message = messages.stored(kind, at, data)
    rows = [
        {
            "id": ids.new_id("msg"),
            "webhook_id": webhook_id,
            "tenant": tenant,
            "type": kind,
            "message": message,
            "state": DeliveryState.PENDING,
            "attempts": 0,
            "created_at": at,
            "queued_at": at,
            "next_at": at,
        }
        for webhook_id in webhook_ids
    ]
    session.execute(_ADD, rows)
    return [str(row["id"]) for row in rows]


_FIRST_DUE = (
    select(WebhookDelivery.id)
    .where(
        WebhookDelivery.webhook_id == Webhook.id,
        _IS_PENDING,
        WebhookDelivery.next_at <= bindparam("now"),
    )
    .order_by(WebhookDelivery.next_at, WebhookDelivery.id)
    .limit(1)
    .correlate(Webhook)
    .scalar_subquery()
)
# The first due delivery of each webhook, the longest waiting first.
_DUE = (
    select(WebhookDelivery, Webhook)
    .join(Webhook, WebhookDelivery.id == _FIRST_DUE)
    .where(
        Webhook.disabled_at.is_(None),
        Webhook.id.not_in(bindparam("busy", expanding=True)),
    )
    .order_by(WebhookDelivery.next_at, WebhookDelivery.id)
)


def due(session: Session, now: datetime, busy: Collection[str]) -> list[Due]:
    """Return the first due message of each webhook.

    Args:
        busy: ids of webhooks with a pending request, which are left out.
    """
    rows = session.execute(_DUE, {"now": now, "busy": [*busy]})
    return [(delivery, webhook) for delivery, webhook in rows]


def valid_secrets(webhook: Webhook, now: datetime) -> list[str]:
    """Return the currently valid secrets for signing, the newest first."""
    until = webhook.previous_secret_until
    if webhook.previous_secret is None or until is None or until <= now:
        return [webhook.secret]
    return [webhook.secret, webhook.previous_secret]


def claim(session: Session, message: WebhookDelivery, now: datetime) -> bool:
    """Count an attempt that begins now; `False` if the message must no longer be sent.

    If its outcome is never recorded, because the process was killed, the message is due again after a pause.
    """
    attempts = message.attempts + 1
    enabled = exists().where(Webhook.id == message.webhook_id, Webhook.disabled_at.is_(None))
    again = now + timedelta(seconds=ATTEMPT_SECONDS) + pause_after(attempts)
    claim = (
        update(WebhookDelivery)
        .where(*_attempt(message.id, message.attempts), enabled)
        .values(attempts=attempts, attempted_at=now, next_at=again)
    )
    return changed(session, claim) > 0


def record(
    session: Session, delivery_id: str, attempts: int, outcome: Outcome, now: datetime
) -> str | None:
    """Record how the newest attempt ended; ignore older ones. Disable a webhook that has failed permanently.

    Args:
        attempts: number of the attempt.

    Returns:
        Why the webhook is disabled, if this attempt was the reason.
    """
    # Lock the webhook's row first, like changes by a person, to avoid deadlocks.
    webhook_id = select(WebhookDelivery.webhook_id).where(WebhookDelivery.id == delivery_id)
    webhook = select(Webhook.id).where(Webhook.id == webhook_id.scalar_subquery())
    session.execute(webhook.with_for_update())
    row = session.scalars(
        select(WebhookDelivery)
        .where(*_attempt(delivery_id, attempts))
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one_or_none()
    if row is None:
        return None
    row.response_status, row.error, row.seconds = outcome.status, outcome.error, outcome.seconds
    if outcome.error is None:
        row.state, row.finished_at = DeliveryState.SUCCEEDED, now
        session.flush()
        webhook_of_row = update(Webhook).where(Webhook.id == row.webhook_id)
        changed(session, webhook_of_row.values(last_success_at=now))
        return None
    again = next_attempt(attempts, outcome, row.queued_at, now)
    if again is not None:
        row.next_at = again
        session.flush()
        return None
    row.state, row.finished_at = DeliveryState.FAILED, now
    session.flush()
    reason = f"The receiver answered {GONE}" if outcome.status == GONE else None
    has_accepted = Webhook.id == row.webhook_id, Webhook.last_success_at > row.queued_at
    if reason is None and not session.scalar(select(exists().where(*has_accepted))):
        reason = f"The receiver accepted nothing since {row.queued_at:%Y-%m-%d %H:%M} UTC: {outcome.error}"
    return reason if reason is not None and disable(session, row.webhook_id, reason, now) else None


def disable(session: Session, webhook_id: str, reason: str, now: datetime) -> bool:
    """Disable a webhook and give up its messages; `False` if it was disabled or deleted before."""
    row = session.execute(
        update(Webhook)
        .where(Webhook.id == webhook_id, Webhook.disabled_at.is_(None))
        .values(disabled_at=now, disabled_reason=reason)
        .returning(Webhook.tenant, Webhook.name)
    ).one_or_none()
    if row is None:
        return False
    pending = update(WebhookDelivery).where(WebhookDelivery.webhook_id == webhook_id, _IS_PENDING)
    given_up = {"state": DeliveryState.FAILED, "finished_at": now, "error": _ABANDONED}
    changed(session, pending.values(given_up))
    data = messages.webhook_message(webhook_id, row.name, reason)
    _notify(session, row.tenant, messages.DISABLED, now, data)
    return True


def remove_old(session: Session, before: datetime, limit: int) -> int:
    """Remove deliveries that ended before a time or whose webhook was deleted; return their number."""
    # An event may have been committed just after the webhook was deleted.
    is_orphan = and_(_IS_PENDING, ~exists().where(Webhook.id == WebhookDelivery.webhook_id))
    removed = 0
    for which in (WebhookDelivery.finished_at < before, is_orphan):  # each uses its index
        old = select(WebhookDelivery.id).where(which).limit(limit - removed)
        removed += changed(session, delete(WebhookDelivery).where(WebhookDelivery.id.in_(old)))
    return removed


def _attempt(delivery_id: str, attempts: int) -> tuple[Any, ...]:
    """Build the conditions that a delivery is pending and its newest attempt has this number."""
    return WebhookDelivery.id == delivery_id, _IS_PENDING, WebhookDelivery.attempts == attempts
