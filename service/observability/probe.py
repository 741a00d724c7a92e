"""Calls that may never return, for example to a database on a hanging machine."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Probe(Generic[Result]):
    """Runs a function in its own thread, one call at a time.

    Callers that arrive during a call share its result, so that a hanging function blocks only a single thread, and no
    thread that serves requests.
    """

    def __init__(self, function: Callable[[], Result]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._call: Future[Result] | None = None

    async def result(self, timeout_seconds: float) -> Result:
        """Call the function, or join the call in progress, and return its result.

        Raises:
            TimeoutError: there was no result within this time.
            Exception: any error of the function.
        """
        with self._lock:
            if self._call is None or self._call.done():
                self._call = Future()
                threading.Thread(target=self._run, args=(self._call,), daemon=True).start()
            call = self._call
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(call)), timeout_seconds)

    def _run(self, call: Future[Result]) -> None:
        try:
            value = self._function()
        except Exception as error:  # noqa: BLE001  raised in `result`
            call.set_exception(error)
        else:
            call.set_result(value)
