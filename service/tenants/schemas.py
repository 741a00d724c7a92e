"""Requests about tenants."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from dasl_core.spec.base import StrictModel, problem
from dasl_core.spec.errors import LINE_PATTERN
from service.api.changes import Changes
from service.wire.checkpoints import MAX_SIZE

# `dasl db admin-token` names a tenant with any line of text.
TenantName = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=LINE_PATTERN)]

Quota = Annotated[int | None, Field(ge=0, le=1_000_000)]
Bytes = Annotated[int | None, Field(ge=0, le=MAX_SIZE)]


def _plain(name: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name) is None:
        expected = "up to 100 letters, digits, '.', '_' and '-', with a letter or digit first"
        raise problem("cannot name a tenant", name, expected)
    return name


class Limits(StrictModel):
    """Share and limits of a tenant; null: no limit."""

    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    max_queued_jobs: Quota = None
    max_running_jobs: Quota = None
    max_gpus: Quota = None
    max_priority: Annotated[int | None, Field(ge=-1000, le=1000)] = None
    max_hours: Annotated[float | None, Field(gt=0, le=100_000)] = None
    max_uploaded_bytes: Bytes = None


class TenantRequest(Limits):
    """A tenant to create."""

    name: Annotated[str, AfterValidator(_plain)]


class TenantChanges(Changes, Limits):
    """Changes of a tenant."""

    disabled: bool = False
