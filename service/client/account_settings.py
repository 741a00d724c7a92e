"""Settings of tenants, users, tokens and webhooks, as keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict


class Quotas(TypedDict, total=False):
    """Limits of the jobs and data sets of a token; None means no limit."""

    max_queued_jobs: int | None
    max_running_jobs: int | None
    max_gpus: int | None
    max_pending_datasets: int | None


class TokenChanges(Quotas, total=False):
    """Quotas and expiry of a token; None means no limit, or no expiry."""

    expires_at: str | None
    expires_in_days: float | None


class TokenSettings(TokenChanges, total=False):
    """Settings of a new token."""

    user_id: str | None
    """The user it belongs to; None: no user."""


class TenantLimits(TypedDict, total=False):
    """Share and limits of a tenant; None means no limit."""

    weight: float
    max_queued_jobs: int | None
    max_running_jobs: int | None
    max_gpus: int | None
    max_priority: int | None
    max_hours: float | None


class UserChanges(TypedDict, total=False):
    """Changes of a user. `role` is the highest scope of its tokens."""

    name: str
    email: str | None
    role: str
    disabled: bool


class WebhookChanges(TypedDict, total=False):
    """Changes of a webhook."""

    url: str
    name: str
    events: Sequence[str]
    tags: Mapping[str, str]
    format: str
    disabled: bool
