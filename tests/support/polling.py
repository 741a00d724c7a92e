"""Waiting for a condition, with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

# Attempts take half a minute on a machine of 2 cores, and several times that when it is busy.
PATIENCE_SECONDS = 600.0

T = TypeVar("T")


def until(
    poll: Callable[[], T | None],
    what: str,
    seconds: float = PATIENCE_SECONDS,
    *,
    pause: float = 0.2,
) -> T:
    """Call `poll` until it returns something other than None, and return that.

    The pause is long because frequent polls slow a service down.

    Raises:
        TimeoutError: it returned None for `seconds`.
    """
    deadline = time.monotonic() + seconds
    while (result := poll()) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(pause)
    return result


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """Poll `condition` frequently until it holds; for conditions within one process.

    Raises:
        TimeoutError: it did not hold for `seconds`.
    """
    until(lambda: condition() or None, "a condition", seconds, pause=0.005)
