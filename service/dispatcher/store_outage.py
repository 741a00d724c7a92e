"""Outages of the artifact store, shared by the loops of a dispatcher, so that not every item waits for a timeout."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from service.db.session import AWAY
from service.dispatcher.context import Clock, LeaseLost, passed
from service.dispatcher.executor import ExecutorUnavailable

# A store that fails fast delays nothing, and may only refuse this file.
_LONG_SECONDS = 1.0
_PAUSE = timedelta(seconds=30)


class StoreOutage:
    """Whether the artifact store just failed after a long wait."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed_at: datetime | None = None

    @property
    def away(self) -> bool:
        """Whether the store failed within the last 30 s, so that another try would probably wait again."""
        return self._failed_at is not None and not passed(self._failed_at, self._clock(), _PAUSE)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Record whether the store fails in this block, and how long that takes."""
        began = time.monotonic()
        try:
            yield
        except (LeaseLost, ExecutorUnavailable, *AWAY):
            raise
        except Exception:
            if time.monotonic() - began >= _LONG_SECONDS:
                self._failed_at = self._clock()
            raise
        self._failed_at = None
