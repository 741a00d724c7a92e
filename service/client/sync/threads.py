"""What takes long, for the synchronous client; `service.client.aio.threads` has the same for the asynchronous one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def sleep(seconds: float) -> None:
    """Sleep."""
    time.sleep(seconds)


def in_thread(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """Call a function that blocks."""
    return function(*args, **kwargs)
