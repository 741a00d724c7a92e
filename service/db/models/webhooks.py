"""Tables of webhooks and their deliveries."""

from datetime import datetime

from sqlalchemy import Double, Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from service.db.models.base import Base, Object

# As literal SQL: SQLite uses a partial index only for a condition without parameters.
PENDING_DELIVERY = "state = 'pending'"
"""Condition on deliveries of webhooks that have not ended."""


class Webhook(Base):
    """An address that is notified of a tenant's events."""

    __tablename__ = "webhooks"
    __table_args__ = (Index(None, "tenant", "id"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(100))
    name: Mapped[str] = mapped_column(String(200))
    url: Mapped[str] = mapped_column(Text)
    # Types of events, or "*" for all; and tags that the job must have.
    events: Mapped[list[str]]
    tags: Mapped[dict[str, str]]
    format: Mapped[str] = mapped_column(String(20))
    # Stored in plain text, because messages are signed with them; the previous one until some time after its rotation.
    secret: Mapped[str] = mapped_column(String(100))
    previous_secret: Mapped[str | None] = mapped_column(String(100))
    previous_secret_until: Mapped[datetime | None]
    # The token that created it.
    token_id: Mapped[str | None] = mapped_column(String(40))
    created_at: Mapped[datetime]
    last_success_at: Mapped[datetime | None]
    disabled_at: Mapped[datetime | None]
    disabled_reason: Mapped[str | None] = mapped_column(Text)


class WebhookDelivery(Base):
    """A message for a webhook: added in the transaction of its event, and sent until the receiver accepts it.

    It has no foreign key, because the deletion of a webhook must not make the transaction of an event fail. Deliveries
    of a deleted webhook are removed without being sent.
    """

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        Index(None, "webhook_id", "id"),
        Index(
            "ix_webhook_deliveries_due",
            "webhook_id",
            "next_at",
            sqlite_where=text(PENDING_DELIVERY),
            postgresql_where=text(PENDING_DELIVERY),
        ),
        Index(None, "finished_at"),
    )

    # Sent as `webhook-id`, the same in each attempt.
    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    webhook_id: Mapped[str] = mapped_column(String(40))
    tenant: Mapped[str] = mapped_column(String(100))
    type: Mapped[str] = mapped_column(String(50))
    # `timestamp` and `data` of the payload.
    message: Mapped[Object]
    state: Mapped[str] = mapped_column(String(20))
    # Counted before each attempt, so that an attempt counts even if the process is killed.
    attempts: Mapped[int]
    created_at: Mapped[datetime]
    # Start of the time for retries: its creation, or the last manual request.
    queued_at: Mapped[datetime]
    next_at: Mapped[datetime]
    # The last attempt: its start, its duration, the status of the answer, and the reason of its failure.
    attempted_at: Mapped[datetime | None]
    seconds: Mapped[float | None] = mapped_column(Double)
    response_status: Mapped[int | None]
    error: Mapped[str | None] = mapped_column(Text)
    finished_at: Mapped[datetime | None]
