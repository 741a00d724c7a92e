# Written by tools.sync_client from aio/waiting.py; edit that file.
"""Polling until a job or ingest has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from service.client.errors import WaitTimeout
from service.client.threads import sleep

State = TypeVar("State")

OUTAGE_SECONDS = 300.0
"""Longest tolerated outage of a server, in seconds: training may continue while it restarts."""


def wait_until(
    fetch: Callable[[], State],
    done: Callable[[State], bool],
    *,
    timeout: float | None,
    poll: float,
    name: str,
) -> State:
    """Call `fetch` every `poll` seconds until `done` accepts its result, and return that.

    Args:
        name: of what is waited for, for the error.

    Raises:
        WaitTimeout: `timeout` seconds have passed.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        state = fetch()
        if done(state):
            return state
        remaining = poll if deadline is None else deadline - time.monotonic()
        if remaining <= 0:
            raise WaitTimeout(f"{name} has not ended within {timeout:g} s; it continues")
        sleep(min(poll, remaining))
