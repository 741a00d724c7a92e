"""Requests about webhooks."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from dasl_core.spec.base import StrictModel, problem
from dasl_core.spec.errors import LINE_PATTERN, closest
from dasl_core.spec.fields import Tag
from service.api.changes import Changes
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
Events = Annotated[
    list[EventType],
    Field(min_length=1, max_length=50, fail_fast=True),
    AfterValidator(lambda events: list(dict.fromkeys(events))),
]
Tags = Annotated[dict[Tag, Tag], Field(max_length=50)]


class WebhookRequest(StrictModel):
    """A webhook to create: the receiver's address and the events.

    `events` are types, or "*" for all; by default the types after which a job no longer runs. With `tags`, only events of
    jobs with all of these tags are sent.
    """

    url: Url
    name: Name | None = None
    events: Events = list(DEFAULT_TYPES)
    tags: Tags = {}
    format: Format = "standard"


class WebhookChanges(Changes):
    """Changes of a webhook."""

    url: Url = ""
    name: Name = ""
    events: Events = []
    tags: Tags = {}
    format: Format = "standard"
    disabled: bool = False

    @model_validator(mode="after")
    def _check_any(self) -> Self:
        if not self.model_fields_set:
            raise problem("is empty", "{}", "a field of the webhook")
        return self


class Rotation(StrictModel):
    """Rotation of a secret: how long messages are also signed with the previous one."""

    keep_hours: Annotated[float, Field(ge=0, le=168)] = 24.0
