"""Request and response models of webhooks."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from dasl_core.spec.base import problem
from dasl_core.spec.errors import LINE_PATTERN, closest
from dasl_core.spec.fields import Tag
from service.db.models import Webhook, WebhookDelivery
from service.outbox.addresses import LONGEST_URL
from service.outbox.messages import ALL, DEFAULT_TYPES, TYPES, Format

Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=LINE_PATTERN)]
Url = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_URL)]


def _known(kind: str) -> str:
    if kind not in (*TYPES, ALL):
        expected = f"{ALL!r} for all, or of: {', '.join(TYPES)}"
        raise problem("is not a type of event" + closest(kind, TYPES), kind, expected)
    return kind


EventType = Annotated[str, StringConstraints(max_length=50), AfterValidator(_known)]
Events = Annotated[list[EventType], Field(min_length=1, max_length=50, fail_fast=True)]
Tags = Annotated[dict[Tag, Tag], Field(max_length=50)]


class WebhookRequest(BaseModel):
    """A webhook to create: where messages are sent, and about which events.

    `events` are types, or "*" for all; by default those after which a job does not run any more. With `tags`, only events
    of jobs that have all of these are sent.
    """

    model_config = ConfigDict(extra="forbid")

    url: Url
    name: Name = ""
    events: Events = list(DEFAULT_TYPES)
    tags: Tags = {}
    format: Format = "standard"


class WebhookChanges(BaseModel):
    """Changes of a webhook: what the request names."""

    model_config = ConfigDict(extra="forbid")

    url: Url = ""
    name: Name = ""
    events: Events = []
    tags: Tags = {}
    format: Format = "standard"
    disabled: bool = False

    @model_validator(mode="after")
    def _check_any(self) -> Self:
        if not self.model_fields_set:
            raise problem("names no change", "{}", "a field of the webhook")
        return self


class Rotation(BaseModel):
    """How a secret is replaced: for how long messages are also signed with the previous one."""

    model_config = ConfigDict(extra="forbid")

    keep_hours: Annotated[float, Field(ge=0, le=168)] = 24.0


class WebhookView(BaseModel):
    """A webhook without its secret."""

    model_config = ConfigDict(from_attributes=True)

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

    @classmethod
    def of(cls, webhook: Webhook) -> Self:
        """Build the view of a row."""
        return cls.model_validate(webhook)


class DeliveryView(BaseModel):
    """A message for a webhook, and how its last attempt ended."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    """Sent as `webhook-id`, the same in each attempt."""
    type: str
    state: str
    attempts: int
    """Since it was added, or last requested again."""
    created_at: datetime
    attempted_at: datetime | None
    next_at: datetime | None
    """When it is sent next; null once it is over."""
    finished_at: datetime | None
    response_status: int | None
    """Status code of the last answer."""
    seconds: float | None
    """How long the last attempt took."""
    error: str | None
    """Why the last attempt failed."""
    payload: dict[str, Any]

    @classmethod
    def of(cls, delivery: WebhookDelivery, payload: dict[str, Any]) -> Self:
        """Build the view of a row.

        Args:
            payload: with a link that names the server.
        """
        names = cls.model_fields.keys() - {"payload", "next_at"}
        fields = {name: getattr(delivery, name) for name in names}
        next_at = delivery.next_at if delivery.finished_at is None else None
        return cls(payload=payload, next_at=next_at, **fields)
