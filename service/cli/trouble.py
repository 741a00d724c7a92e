"""Messages about what is wrong with the service, for a user whose job stands still."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from service.client.errors import ApiError, ConnectionFailed
from service.states import READY

if TYPE_CHECKING:
    from service.client import Client


def trouble(client: Client) -> str | None:
    """Return why the service cannot run jobs at the moment; `None` if it can, or if that is unknown."""
    try:
        checks = client.readiness()
    except ConnectionFailed:
        return None
    failing = {name: state for name, state in checks.items() if state not in READY}
    if not failing:
        return None
    # A full disk is the cause of whatever else fails.
    if "storage" in failing and not failing["storage"].startswith("unknown"):
        return f"the service cannot store anything: {failing['storage']}"
    return "the service is not ready: " + "; ".join(f"{k}: {v}" for k, v in failing.items())


def started_at(client: Client) -> datetime | None:
    """Return when the API that answers was started, if it reports that."""
    try:
        return client.cluster().api_started_at
    except (ApiError, ConnectionFailed):
        return None
