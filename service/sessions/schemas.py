"""Requests about sessions."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Secret = Annotated[str, Field(min_length=1, max_length=500)]


class SessionRequest(BaseModel):
    """A login of the page, by a token or a login code."""

    model_config = ConfigDict(extra="forbid")

    token: Secret | None = None
    code: Secret | None = None
