"""Steps in threads: a slow answer of Ray or of the store delays neither a round nor the other items."""

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any

from service.db.session import AWAY, is_locked
from service.dispatcher.isolation import run_isolated

# While a step waits for a lock, it holds the lease's row, for which all writers of the dispatcher wait.
_LOCKED_PAUSE_SECONDS = 5.0


@dataclass(frozen=True)
class Step:
    """What is to be done for an item.

    Attributes:
        key: a pool runs one step of a key at a time.
        action: what the step does, for the log: "watch this job".
    """

    key: str
    run: Callable[[Any], None]
    item: object
    action: str


class StepPool:
    """Runs steps, a few at a time.

    Args:
        patience: seconds that `run` waits for its steps; `None`: until all have ended.
    """

    def __init__(self, patience: float | None, threads: int) -> None:
        self._patience = patience
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="dispatcher-step")
        self._running: dict[str, Future[bool]] = {}
        self._begun_at: dict[str, float] = {}
        self._locked_at: dict[str, float] = {}

    def is_busy(self, key: str) -> bool:
        """Whether a step that an earlier call of `run` began still runs."""
        return key in self._running and not self._running[key].done()

    def run(self, steps: Iterable[Step]) -> bool:
        """Run all steps whose key is not busy; the failure of one must not block the others.

        Steps that outlast the patience go on. Those that were not begun by then are left to the next call, in which
        they are the first. A step that found its row locked by another session is left out for a while.

        Returns:
            Whether the executor answered all steps that have ended since the last call. Once it does not answer one,
            no other begins.

        Raises:
            LeaseLost: another dispatcher took over.
            OperationalError: the database is away (`is_away`). Other errors of `AWAY` are raised, too.
        """
        answered = self._collect()
        since = time.monotonic() - _LOCKED_PAUSE_SECONDS
        locked = {key for key, at in self._locked_at.copy().items() if at > since}
        busy = {*self._running, *locked}
        wanted = {step.key: step for step in steps if step.key not in busy}
        # Threads add keys meanwhile.
        for times in (self._begun_at, self._locked_at):
            for key in times.copy().keys() - wanted.keys() - busy:
                del times[key]
        silent = threading.Event()

        def begin(step: Step) -> bool:
            if silent.is_set():
                return True
            self._begun_at[step.key] = time.monotonic()
            if not run_isolated(partial(self._run, step), step.item, step.action):
                silent.set()
            return not silent.is_set()

        first = sorted(wanted, key=lambda key: self._begun_at.get(key, 0.0))
        begun = {key: self._threads.submit(begin, wanted[key]) for key in first}
        self._running |= begun
        wait(begun.values(), self._patience)
        for future in begun.values():
            future.cancel()
        return self._collect() and answered

    def _collect(self) -> bool:
        """Forget the steps that are over; return whether the executor answered all of them."""
        over = [key for key, future in self._running.items() if future.done()]
        ended = [self._running.pop(key) for key in over]
        answers = [future.result() for future in ended if not future.cancelled()]
        return all(answers)

    def _run(self, step: Step, item: object) -> None:
        try:
            step.run(item)
        except AWAY as error:
            if is_locked(error):
                self._locked_at[step.key] = time.monotonic()
            raise

    def close(self, *, wait: bool) -> None:
        """Begin no other steps; wait for those that run, if asked to."""
        self._threads.shutdown(wait, cancel_futures=True)
