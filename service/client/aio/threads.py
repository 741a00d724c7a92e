"""What takes long, without blocking the event loop; `service.client.sync.threads` has the same for the synchronous client."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

import anyio
import anyio.to_thread

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


async def sleep(seconds: float) -> None:
    """Sleep."""
    await anyio.sleep(seconds)


async def in_thread(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """Call a function that blocks in a thread."""
    return await anyio.to_thread.run_sync(partial(function, *args, **kwargs))
