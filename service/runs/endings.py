"""Endings of runs, and whether another run follows."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from service.states import AttemptOutcome

_FIRST_RETRY = timedelta(seconds=2)
# Longer than the dispatcher needs to notice an outage of the artifact store (`StoreCheck`).
LONGEST_RETRY = timedelta(minutes=2)
MAX_INFRASTRUCTURE_FAILURES = 10
"""Most infrastructure failures in a row without progress. It is limited, because the job may have killed its processes
or Ray."""


class Retry(StrEnum):
    """Whether another attempt follows one that failed or was lost."""

    NEVER = "never"
    """Another attempt would fail the same way."""
    LIMITED = "limited"
    """Retry as often as the spec's `resources.max_restarts` allows."""
    UNLESS_REPEATED = "unless-repeated"
    """Like `LIMITED`, but not if the same error occurs twice in a row without a step in between. For errors
    that the training may cause."""
    INFRASTRUCTURE = "infrastructure"
    """Retry without using up a restart, `MAX_INFRASTRUCTURE_FAILURES` times in a row without progress: Ray or a
    node ended, or the driver was killed."""
    OUTAGE = "outage"
    """Like `INFRASTRUCTURE`, but after `LONGEST_RETRY`: the artifact store was unavailable. Admission starts nothing while
    the dispatcher cannot reach it, so even a long outage causes few failures."""
    FREE = "free"
    """Always retry, without using up a restart: the service was stopped while the attempt ran, or Ray had
    no room for its ranks."""
    FREE_LATER = "free-later"
    """Like `FREE`, but after `LONGEST_RETRY`: that happened three times in a row, so a retry at once would only keep Ray
    busy."""


@dataclass(frozen=True)
class Ending:
    """How an attempt ended."""

    outcome: AttemptOutcome
    error: dict[str, Any] | None = None
    """`{type, message, ...}` of a failed or lost attempt."""
    retry: Retry = Retry.LIMITED
    forced: bool = False
    """Whether the attempt was killed because it saved no checkpoint after a request to pause."""


@dataclass(frozen=True)
class Budget:
    """The remaining budgets of a job after an attempt failed."""

    restarts: int
    infrastructure_failures: int
    message: str = "It is retried without using up a restart"
    """The budget that the failure used, as the message of the event."""
    delay: timedelta = timedelta()
    """Wait before the next attempt."""
    used_up: str | None = None
    """The budget that is used up, as a part of a sentence; `None` if another attempt follows."""


def charge(
    retry: Retry, *, restarts: int, max_restarts: int | None, failures: int, progressed: bool
) -> Budget:
    """Charge an attempt's failure to one of the job's two budgets.

    Args:
        restarts: number of restarts that the job has used.
        max_restarts: the spec's limit; `None` if the spec is unreadable: unlimited.
        failures: number of infrastructure failures in a row.
        progressed: whether the attempt got further than earlier attempts.
    """
    if retry == Retry.NEVER:
        return Budget(restarts, failures, used_up="")
    if retry == Retry.FREE:
        return Budget(restarts, failures)
    if retry == Retry.FREE_LATER:
        wait = f"It is the third in a row; retried in {_seconds(LONGEST_RETRY)} without using up a restart"
        return Budget(restarts, failures, wait, LONGEST_RETRY)
    if retry in (Retry.INFRASTRUCTURE, Retry.OUTAGE):
        failures = 1 if progressed else failures + 1
        count = f"{failures} of {MAX_INFRASTRUCTURE_FAILURES}"
        delay = LONGEST_RETRY if retry == Retry.OUTAGE else _retry_delay(failures - 1)
        return Budget(
            restarts,
            failures,
            f"Infrastructure failure {count} in a row without progress; retried in {_seconds(delay)} without "
            "using up a restart",
            delay,
            f" (after {failures} infrastructure failures in a row without progress)"
            if failures > MAX_INFRASTRUCTURE_FAILURES
            else None,
        )
    delay = _retry_delay(restarts)
    message = f"Restart {restarts + 1} of {max_restarts} in {_seconds(delay)}"
    if max_restarts is None:
        message = f"Restart {restarts + 1} when a server can read the job's spec"
    elif restarts >= max_restarts:
        used_up = f" (after {restarts} restarts)" if max_restarts else ""
        return Budget(restarts, failures, used_up=used_up)
    return Budget(restarts + 1, failures, message, delay)


def _retry_delay(failures: int) -> timedelta:
    """Return the wait before the next attempt, which doubles with every earlier failure."""
    return min(LONGEST_RETRY, _FIRST_RETRY * (1 << min(failures, 10)))


def _seconds(delay: timedelta) -> str:
    return f"{delay.total_seconds():g} s"
