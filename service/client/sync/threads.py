"""Sleep and blocking calls for the synchronous client; the counterpart is `service.client.aio.threads`."""

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def in_thread(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    return function(*args, **kwargs)
