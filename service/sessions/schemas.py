"""Request and response models of sessions."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from service.tokens.schemas import TokenView

Secret = Annotated[str, Field(min_length=1, max_length=500)]


class SessionRequest(BaseModel):
    """A login of the page: by a token, or by a login code."""

    model_config = ConfigDict(extra="forbid")

    token: Secret | None = None
    code: Secret | None = None


class SessionView(TokenView):
    """The token of a session, and what the page must send in `X-CSRF-Token` to change something."""

    csrf: str
    session_expires_at: datetime


class NewLoginCode(BaseModel):
    """A login code; no other answer contains it."""

    code: str
    expires_at: datetime
