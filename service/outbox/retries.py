"""Schedule of retries of a message."""

import random
from dataclasses import dataclass
from datetime import datetime, timedelta

RETRY_PERIOD = timedelta(days=3)
"""How long a message is retried after its first attempt was due, or after a manual request."""
MAX_ATTEMPTS = 18
"""Most attempts in this time."""
ATTEMPT_SECONDS = 10.0
"""Time limit of an attempt."""
GONE = 410
"""Status code of a receiver that wants no more messages."""

_FIRST_PAUSE, _FACTOR, _LONGEST_PAUSE = timedelta(seconds=5), 4, timedelta(hours=6)
_JITTER = 0.25
_LONGEST_RETRY_AFTER = timedelta(days=1)


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended.

    Attributes:
        status: status code of the answer; `None`: no answer.
        error: why the attempt failed; `None`: the receiver accepted the message.
        retry_after: wait that the receiver requested.
        seconds: duration of the attempt.
    """

    status: int | None
    error: str | None
    retry_after: timedelta | None = None
    seconds: float = 0.0


def pause_after(attempts: int, retry_after: timedelta | None = None) -> timedelta:
    """Return the wait after a number of attempts: 5 seconds, then four times as long each time, at most 6 hours.

    It varies randomly by a quarter, so that messages that failed together are not sent together again.
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
