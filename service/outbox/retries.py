"""When a message is sent again, and when it is given up."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta

RETRY_PERIOD = timedelta(days=3)
"""A message is sent again for this long after its first attempt was due, or a person requested it again."""
MAX_ATTEMPTS = 18
"""Attempts in this time, at most."""
ATTEMPT_SECONDS = 10.0
"""Time limit of an attempt."""
GONE = 410
"""Status by which a receiver says that it wants no more messages."""

_FIRST_PAUSE, _FACTOR, _LONGEST_PAUSE = timedelta(seconds=5), 4, timedelta(hours=6)
_JITTER = 0.25
_LONGEST_RETRY_AFTER = timedelta(days=1)


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended.

    Attributes:
        status: of the answer; `None`: there was none.
        error: why the attempt failed; `None`: the receiver accepted the message.
        retry_after: how long the receiver asks to wait.
        seconds: how long the attempt took.
    """

    status: int | None
    error: str | None
    retry_after: timedelta | None = None
    seconds: float = 0.0


def pause_after(attempts: int, retry_after: timedelta | None = None) -> timedelta:
    """Return how long to wait after a number of attempts: 5 seconds, four times as long each time, 6 hours at most.

    It varies by a quarter at random, so that messages that failed together are not sent together again.
    """
    factor = int(_FACTOR ** min(attempts - 1, 20))
    pause = min(_FIRST_PAUSE * factor, _LONGEST_PAUSE)
    pause *= random.uniform(1 - _JITTER, 1 + _JITTER)
    return max(pause, min(retry_after or timedelta(), _LONGEST_RETRY_AFTER))


def next_attempt(
    attempts: int, outcome: Outcome, queued_at: datetime, now: datetime
) -> datetime | None:
    """Return when a message is sent again after a failed attempt; `None`: it is given up."""
    if attempts >= MAX_ATTEMPTS or outcome.status == GONE:
        return None
    at = now + pause_after(attempts, outcome.retry_after)
    return at if at <= queued_at + RETRY_PERIOD else None
