"""Webhooks and their deliveries."""

from datetime import datetime
from typing import Any

from service.states import DeliveryState
from service.wire.base import Answer


class WebhookView(Answer):
    """A webhook without its secret."""

    id: str
    name: str
    url: str
    events: list[str]
    tags: dict[str, str]
    format: str
    token_id: str | None
    """The token that created it."""
    created_at: datetime
    last_success_at: datetime | None
    previous_secret_until: datetime | None
    """Until when messages are also signed with the previous secret."""
    disabled_at: datetime | None
    disabled_reason: str | None


class NewSecret(WebhookView):
    """A webhook with a new secret; no other answer contains it."""

    secret: str


class DeliveryView(Answer):
    """A message for a webhook, and how its last attempt ended."""

    id: str
    """Sent as `webhook-id`, the same in each attempt."""
    type: str
    state: str
    attempts: int
    """Number of attempts since it was added or last requested again."""
    created_at: datetime
    attempted_at: datetime | None
    next_at: datetime | None
    """Time of the next attempt; null once it has ended."""
    finished_at: datetime | None
    response_status: int | None
    """Status code of the last answer."""
    seconds: float | None
    """Duration of the last attempt."""
    error: str | None
    """Why the last attempt failed."""
    payload: dict[str, Any]

    @property
    def was_attempted(self) -> bool:
        """Whether an attempt has ended since it was added, or last requested again."""
        return self.state != DeliveryState.PENDING or self.error is not None
