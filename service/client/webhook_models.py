"""Webhooks and their deliveries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

from pydantic import Field

from service.client.models import Record
from service.states import DeliveryState


class Webhook(Record):
    """A webhook. `secret` is only in the answers that create or rotate it."""

    id: str
    name: str = ""
    url: str = ""
    events: list[str] = Field(default_factory=list)
    tags: dict[str, str] = Field(default_factory=dict)
    format: str = "standard"
    token_id: str | None = None
    created_at: datetime | None = None
    last_success_at: datetime | None = None
    previous_secret_until: datetime | None = None
    disabled_at: datetime | None = None
    disabled_reason: str | None = None
    secret: str | None = None


class Delivery(Record):
    """A message for a webhook, and how its last attempt ended. `state` is pending, succeeded or failed."""

    id: str
    type: str = ""
    state: str = ""
    attempts: int = 0
    created_at: datetime | None = None
    attempted_at: datetime | None = None
    next_at: datetime | None = None
    finished_at: datetime | None = None
    response_status: int | None = None
    seconds: float | None = None
    error: str | None = None
    payload: dict[str, Any] = Field(default_factory=dict)

    @property
    def was_attempted(self) -> bool:
        """Whether an attempt has ended since it was added, or last requested again."""
        return self.state != DeliveryState.PENDING or self.error is not None


class WebhookChanges(TypedDict, total=False):
    """Changes of a webhook."""

    url: str
    name: str
    events: Sequence[str]
    tags: Mapping[str, str]
    format: str
    disabled: bool
