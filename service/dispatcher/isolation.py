"""Loops over many items, in which a failing item does not block the others."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from service import ids
from service.artifacts import free_space
from service.db.models import Checkpoint, Dataset, DatasetVersion
from service.db.session import AWAY, first_line, is_away, is_full
from service.dispatcher.context import DispatcherContext, LeaseLost, passed
from service.dispatcher.executor import ExecutorUnavailable
from service.log_records import log_fields
from service.runs.repository import RunView
from service.scheduling.admission import Queued
from service.scheduling.repository import AttemptView

logger = logging.getLogger(__name__)


def run_isolated(step: Callable[[Any], None], item: object, action: str) -> bool:
    """Run a step for one item and log its errors; return whether the executor answered.

    Args:
        action: what the step does, for the log: "remove this checkpoint".

    Raises:
        LeaseLost: another dispatcher took over.
        OperationalError: the database is away (`is_away`). Other errors of `AWAY` are raised, too.
    """
    with log_fields(**_log_fields(item)):
        try:
            show_progress()
            step(item)
        except LeaseLost:
            raise
        except ExecutorUnavailable as error:
            logger.warning("%s", error)
            return False
        except AWAY as error:
            if is_away(error):
                raise
            logger.error("The dispatcher could not %s: %s", action, first_line(error))
        except Exception:
            logger.exception("The dispatcher could not %s", action)
    return True


class Backoff:
    """Items whose last try failed. They are left out for a while, so that they do not block the others."""

    def __init__(self, context: DispatcherContext, pause: timedelta) -> None:
        self._context, self._pause = context, pause
        self._tried_at: dict[str, datetime] = {}

    def waiting(self) -> Collection[str]:
        """Return the items that failed recently."""
        now = self._context.clock()
        self._tried_at = {
            id: at for id, at in self._tried_at.items() if not passed(at, now, self._pause)
        }
        return self._tried_at.keys()

    @contextmanager
    def trying(self, item: str, problem: str) -> Iterator[None]:
        """Try an item, which waits unless the block succeeds; log an error of the store.

        Args:
            problem: what the error means, for the log: "The files of job_1 cannot be removed now".
        """
        self._tried_at[item] = self._context.clock()
        try:
            yield
        except (OSError, ValueError) as error:
            logger.warning("%s: %s", problem, error)
            return
        del self._tried_at[item]


class Outage:
    """Whether the database is unavailable; each outage is logged once for all loops."""

    def __init__(self) -> None:
        self._away = False

    def began(self, error: Exception) -> None:
        """Log that the database does not answer, or that its disk is full."""
        if not self._away and is_full(error):
            logger.error("Nothing can be stored: %s", free_space.full(free_space.DATABASE))
        elif not self._away:
            logger.warning("The database does not answer: %s", first_line(error))
        self._away = True

    def ended(self) -> None:
        """Log that the database answers again."""
        if self._away:
            logger.info("The database answers")
        self._away = False


LONGEST_PAUSE_SECONDS = 60.0
"""Pause of a loop whose rounds all fail; the alert DaslDispatcherRoundsFail depends on it."""
_current = threading.local()


def show_progress() -> None:
    """Record that the loop of this thread, if it runs one, is not stuck: a round may have many items."""
    loop: Loop | None = getattr(_current, "loop", None)
    if loop is not None:
        loop.progressed_at = time.monotonic()


class Loop:
    """Repeats a round, even after errors and outages of the database."""

    def __init__(
        self,
        round: Callable[[], bool | None],
        interval: float,
        outage: Outage,
        pace: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """Create a loop; `round` returns `False` if it did not use the database, `pace` multiplies the interval."""
        self._round, self._interval, self._outage, self._pace = round, interval, outage, pace
        self.failed_rounds = 0
        """Rounds that ended with an error, other than that the database was unavailable."""
        self.progressed_at: float | None = None
        """When this loop last completed a round or an item (monotonic); `None` unless it runs."""

    def run(self, stop: threading.Event) -> None:
        """Run rounds until `stop` is set. After unexpected errors, back off."""
        pause, _current.loop = self._interval, self
        while not stop.is_set():
            show_progress()
            try:
                self.run_once()
                pause = self._interval
            except Exception:
                self.failed_rounds += 1
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                logger.exception("A round of the dispatcher failed; the next is in %.1f s", pause)
            show_progress()
            stop.wait(pause * self._pace())
        self.progressed_at = _current.loop = None

    def run_once(self) -> None:
        """Run a round. A lost lease or an unavailable database ends the round, not the loop."""
        try:
            if self._round() is not False:
                self._outage.ended()
        except LeaseLost as lost:
            logger.warning("%s", lost)
        except AWAY as error:
            if not is_away(error):
                raise
            self._outage.began(error)


def _log_fields(item: object) -> dict[str, object]:
    """Return the fields of log records about an item."""
    if isinstance(item, Queued):
        return {"job": item.job_id}
    if isinstance(item, AttemptView):
        return {"job": item.job_id, "attempt": item.number}
    if isinstance(item, Checkpoint):
        return {"checkpoint": item.id}
    if isinstance(item, RunView):
        return {"dataset": item.owner}
    if isinstance(item, Dataset):
        return {"dataset": item.id}
    if isinstance(item, DatasetVersion):
        return {"dataset": item.dataset_id}
    assert isinstance(item, str), "an owner of runs"
    return {"dataset" if ids.is_id("ds", item) else "job": item}
