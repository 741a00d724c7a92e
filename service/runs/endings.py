"""How a run ends, and whether another one follows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from service.states import AttemptOutcome

_FIRST_RETRY = timedelta(seconds=2)
LONGEST_RETRY = timedelta(minutes=2)


class Retry(StrEnum):
    """Whether another attempt follows one that failed or was lost."""

    NEVER = "never"
    """Another attempt would fail the same way."""
    LIMITED = "limited"
    """Retry as often as the spec's `resources.max_restarts` allows."""
    UNLESS_REPEATED = "unless-repeated"
    """As `LIMITED`, but not if the same error occurs twice in a row without a step in between. For errors
    that the training itself may cause."""
    FREE = "free"
    """Always retry, without using up a restart: the service was stopped while the attempt ran, or Ray had
    no room for its ranks."""


@dataclass(frozen=True)
class Ending:
    """How an attempt ended."""

    outcome: AttemptOutcome
    error: dict[str, Any] | None = None
    """`{type, message, ...}` of a failed or lost attempt."""
    retry: Retry = Retry.LIMITED
    forced: bool = False
    """Whether the attempt was killed because it saved no checkpoint after a request to pause."""


def retry_delay(restarts: int) -> timedelta:
    """Return the wait before the next attempt, which doubles with every earlier restart."""
    return min(LONGEST_RETRY, _FIRST_RETRY * (1 << min(restarts, 10)))
