"""Request and response models of tokens."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from dasl_core.spec.errors import LINE_PATTERN
from service.credentials import Scope

TenantName = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=LINE_PATTERN)]
TokenName = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=LINE_PATTERN)]

Quota = Annotated[int | None, Field(ge=0, le=1_000_000)]


class Quotas(BaseModel):
    """Limits on the jobs submitted with a token, at any one time; null: no limit."""

    model_config = ConfigDict(extra="forbid")

    max_queued_jobs: Quota = None
    max_running_jobs: Quota = None
    max_gpus: Quota = None


DEFAULT_MAX_QUEUED_JOBS = 1000
"""Limit of a new token, so that a script in a loop cannot fill the queue."""


class TokenRequest(Quotas):
    """A token to create."""

    max_queued_jobs: Quota = DEFAULT_MAX_QUEUED_JOBS
    name: TokenName
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=3, fail_fast=True)] = [
        "read",
        "submit",
    ]


class TokenView(BaseModel):
    """A token without its text, which is not stored."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    name: str
    scopes: list[str]
    max_queued_jobs: int | None
    max_running_jobs: int | None
    max_gpus: int | None
    created_at: datetime
    revoked_at: datetime | None


class NewToken(TokenView):
    """A new token; no other answer contains its text."""

    token: str
