"""Tenants, users, tokens, logins and the audit log."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from service.wire.base import Answer


class TenantView(Answer):
    """A tenant with its share of the cluster and its limits."""

    name: str
    weight: float
    max_queued_jobs: int | None
    max_running_jobs: int | None
    max_gpus: int | None
    max_priority: int | None
    max_hours: float | None
    max_uploaded_bytes: int | None = None
    created_at: datetime
    disabled_at: datetime | None


class UserView(Answer):
    """A user of a tenant; `issuer` and `subject` are the identity at the login provider."""

    id: str
    name: str
    email: str | None
    role: str
    issuer: str | None
    subject: str | None
    created_at: datetime
    last_login_at: datetime | None
    disabled_at: datetime | None


class TokenView(Answer):
    """A token without its text, which is not stored."""

    id: str
    tenant: str
    name: str
    user_id: str | None
    scopes: list[str]
    max_queued_jobs: int | None
    max_running_jobs: int | None
    max_gpus: int | None
    max_pending_datasets: int | None
    max_uploaded_bytes: int | None = None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class NewToken(TokenView):
    """A new token; no other answer contains its text."""

    token: str


class SessionView(TokenView):
    """The token of a session with all scopes that it includes, lowest first, and the value of `X-CSRF-Token`."""

    csrf: str
    session_expires_at: datetime
    metrics: dict[str, str]
    """Titles of metrics by name, those of evaluations first and best known first."""
    image_extensions: list[str]
    """Of the files that are images, without the dot."""
    upload_endings: list[str]
    """Of the files that one upload can be: archives and tables of images."""


class NewLoginCode(Answer):
    """A login code; no other answer contains it."""

    code: str
    expires_at: datetime


class StartedLogin(Answer):
    """A started login: the page to open, and the secrets with which the client finishes it."""

    authorization_url: str
    state: Annotated[str, Field(repr=False)]
    secret: Annotated[str, Field(repr=False)]
    expires_at: datetime


class AuditView(Answer):
    """A request that changed something or was refused with 403."""

    id: str
    at: datetime
    token_id: str
    token_name: str | None
    """`None`: the token was removed."""
    user_id: str | None
    """The user of the token."""
    method: str
    path: str
    status: int
    address: str | None
