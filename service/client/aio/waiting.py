"""Polling until a job or ingest has ended."""

import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypedDict, TypeVar

from service.client.aio.threads import sleep
from service.client.errors import WaitTimeout

State = TypeVar("State")


class Polling(TypedDict, Generic[State], total=False):
    """How to wait."""

    timeout: float | None
    """Longest time to wait, in seconds; by default no limit."""
    poll: float
    """Seconds between requests."""
    on_poll: Callable[[State], None]
    """Called with each fetched state, for example to show progress."""


OUTAGE_SECONDS = 300.0
"""Longest tolerated outage of a server, in seconds: training may continue while it restarts."""


async def wait_until(
    fetch: Callable[[], Awaitable[State]],
    done: Callable[[State], bool],
    name: str,
    *,
    timeout: float | None = None,
    poll: float = 0.5,
    on_poll: Callable[[State], None] = lambda _: None,
) -> State:
    """Call `fetch` every `poll` seconds until `done` accepts its result, and return that.

    Args:
        name: name of the job or ingest, for the error.
        timeout, poll, on_poll: see `Polling`.

    Raises:
        WaitTimeout: `timeout` seconds have passed.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        state = await fetch()
        on_poll(state)
        if done(state):
            return state
        remaining = poll if deadline is None else deadline - time.monotonic()
        if remaining <= 0:
            raise WaitTimeout(f"{name} has not ended within {timeout:g} s; it continues")
        await sleep(min(poll, remaining))
