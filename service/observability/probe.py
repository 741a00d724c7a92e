"""A question to something that may never answer, such as a database on a machine that hangs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class Probe(Generic[Answer]):
    """Asks in a thread of its own, and never twice at a time.

    Whoever asks while a question is under way shares its answer. So those who gave up waiting leave
    one thread behind, not one each, and none of the threads that serve requests.
    """

    def __init__(self, question: Callable[[], Answer]) -> None:
        self._question = question
        self._lock = threading.Lock()
        self._asked: Future[Answer] | None = None

    async def ask(self, seconds: float) -> Answer:
        """The answer.

        Raises:
            TimeoutError: there was none within this time.
            Exception: whatever the question raises.
        """
        with self._lock:
            if self._asked is None or self._asked.done():
                self._asked = Future()
                threading.Thread(target=self._run, args=(self._asked,), daemon=True).start()
            asked = self._asked
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(asked)), seconds)

    def _run(self, asked: Future[Answer]) -> None:
        try:
            answer = self._question()
        except Exception as error:  # noqa: BLE001  handed to whoever asks
            asked.set_exception(error)
        else:
            asked.set_result(answer)
