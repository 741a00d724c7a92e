"""Requests about users."""

from typing import Annotated

from pydantic import StringConstraints

from dasl_core.spec.base import StrictModel
from dasl_core.spec.errors import LINE_PATTERN
from service.api.changes import Changes
from service.credentials import Scope

UserName = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=LINE_PATTERN)]
Email = Annotated[str, StringConstraints(min_length=3, max_length=320, pattern=LINE_PATTERN)]


class UserRequest(StrictModel):
    """A user to create; `role` is the highest scope of its tokens."""

    name: UserName
    email: Email | None = None
    role: Scope = "submit"


class UserChanges(Changes):
    """Changes of a user."""

    name: UserName = "-"
    email: Email | None = None
    role: Scope = "submit"
    disabled: bool = False
