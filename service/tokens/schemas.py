"""Requests about tokens."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, StringConstraints

from dasl_core.spec.base import StrictModel, problem
from dasl_core.spec.errors import LINE_PATTERN
from service.api.changes import Changes
from service.api.parameters import Moment
from service.api.problems import field_problem
from service.credentials import Scope
from service.tenants.schemas import Bytes, Quota

TokenName = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=LINE_PATTERN)]


def _in_future(at: datetime) -> datetime:
    if at <= datetime.now(UTC):
        raise problem(
            "is in the past", at.isoformat(), "a later time; revoke a token to end it now"
        )
    return at


class Quotas(StrictModel):
    """Limits on the concurrent jobs and data sets of a token; null: no limit."""

    max_queued_jobs: Quota = None
    max_running_jobs: Quota = None
    max_gpus: Quota = None
    max_pending_datasets: Quota = None
    max_uploaded_bytes: Bytes = None


class DefaultQuotas(Quotas):
    """Limits of a new token, so that a script in a loop cannot fill the queues."""

    max_queued_jobs: Quota = 1000
    max_pending_datasets: Quota = 100


class Expiry(BaseModel):
    """End of a token's validity, as a time (UTC, unless it has an offset) or in days from now."""

    expires_at: Annotated[Moment, AfterValidator(_in_future)] | None = None
    expires_in_days: Annotated[float | None, Field(gt=0, le=3650)] = None

    def expiry(self) -> datetime | None:
        """Return the end; `None`: the token does not expire.

        Raises:
            Problem: 422, it is set twice.
        """
        if self.expires_in_days is None:
            return self.expires_at
        if self.expires_at is not None:
            raise field_problem(
                "expires_in_days", "has no effect with expires_at; remove one of them"
            )
        return datetime.now(UTC) + timedelta(days=self.expires_in_days)


class TokenRequest(Expiry, DefaultQuotas):
    """A token to create; `user_id` is the user it belongs to: by default the caller's user, null: no user."""

    name: TokenName
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=4, fail_fast=True)] = [
        "read",
        "submit",
    ]
    user_id: str | None = None


class TokenChanges(Changes, Expiry, Quotas):
    """Changes of a token."""
