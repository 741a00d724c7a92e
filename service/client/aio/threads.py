"""Sleep and blocking calls for the asynchronous client; the counterpart is `service.client.sync.threads`."""

from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

import anyio
import anyio.to_thread

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


async def sleep(seconds: float) -> None:
    await anyio.sleep(seconds)


async def in_thread(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """Call a blocking function in a thread."""
    return await anyio.to_thread.run_sync(partial(function, *args, **kwargs))
