"""Waiting for something to end, at a polite pace."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from service.client.errors import WaitTimeout

Seen = TypeVar("Seen")

OUTAGE_SECONDS = 300.0
"""How long a wait outlasts a server that is away: it may be restarting, while training goes on."""


def wait_until(
    look: Callable[[], Seen],
    done: Callable[[Seen], bool],
    *,
    timeout: float | None,
    poll: float,
    what: str,
) -> Seen:
    """Look every `poll` seconds until `done`. Raises WaitTimeout after `timeout` seconds."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        seen = look()
        if done(seen):
            return seen
        left = poll if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise WaitTimeout(f"{what} has not ended within {timeout:g} s; it goes on")
        time.sleep(min(poll, left))
