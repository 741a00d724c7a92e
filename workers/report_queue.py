"""Ordered background delivery of reports to the API, with retries during outages."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from service.client import ApiError, ConnectionFailed, StaleAttempt

logger = logging.getLogger(__name__)

# Retry time of one call before the queue checks whether the run has ended.
CALL_PATIENCE_SECONDS = 10.0
# Time that a run waits for an unavailable API after its last step. Then it ends, and the next attempt resumes
# from its checkpoint.
FLUSH_SECONDS = 600.0
# Time that a failed run waits: its failure must be reported soon, but checkpoints registered before save the next
# attempt some steps.
CLOSE_SECONDS = 60.0
METRIC_POINTS_PER_CALL = 1000
# Above this number, as in a long outage, every second metric point is dropped.
MAX_METRIC_POINTS = 100_000

Points = list[dict[str, Any]]
Send = Callable[[float], object]
"""Makes a call of the API, with retries for a number of seconds."""
Report = tuple[Send, bool]
"""A call, and whether the run fails if the API refuses it."""


class ReportsUndelivered(Exception):
    """The run has ended and saved its checkpoint, but its last reports were not delivered."""


class ReportQueue:
    """Reports and metric points, delivered in order by a thread.

    Args:
        send_points: function that sends metric points; its second argument is as for `Send`.
        retry_seconds: pause between attempts to deliver a report.
    """

    def __init__(
        self, send_points: Callable[[Points, float], object], retry_seconds: float
    ) -> None:
        self._send_points, self._retry_seconds = send_points, retry_seconds
        # Metric points are stored as data to batch and thin them.
        self._queue: deque[Report | Points] = deque()
        # Removed from the queue, but not delivered yet.
        self._sending: Report | Points | None = None
        self._points = 0  # number of metric points in `_queue` and `_sending`
        self._changed = threading.Condition()
        self._close_by: float | None = None
        self._stale: StaleAttempt | None = None
        self._failure: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._deliver_all, name="reports", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, send: Send, *, required: bool = False) -> None:
        """Append a report; `required`: the run fails if the API refuses it."""
        with self._changed:
            self._queue.append((send, required))
            self._changed.notify_all()

    def put_points(self, points: Points) -> None:
        """Append metric points, merged with points at the end of the queue."""
        with self._changed:
            if self._queue and isinstance(last := self._queue[-1], list):
                last += points
            else:
                self._queue.append(list(points))
            self._points += len(points)
            if self._points > MAX_METRIC_POINTS:
                self._thin()
            self._changed.notify_all()

    @property
    def stale(self) -> bool:
        """Whether the API answered that the attempt was superseded or its job has ended."""
        return self._stale is not None

    def raise_if_over(self) -> None:
        """Raise the error that ends the run, if any.

        Raises:
            StaleAttempt: the attempt was superseded, or its job has ended.
            ApiError: the API refused a required report.
            Exception: another error that prevented a report.
        """
        # A superseded attempt has no failure to report.
        if self._stale is not None:
            raise self._stale
        if self._failure is not None:
            raise self._failure

    def flush(self) -> None:
        """Wait until all reports are delivered.

        Raises:
            ReportsUndelivered: the API was unavailable for `FLUSH_SECONDS`.
            Exception: as `raise_if_over`.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_over() or not self._undelivered(), timeout=FLUSH_SECONDS
            )
            self.raise_if_over()
            if self._undelivered():
                raise ReportsUndelivered(f"reports did not arrive within {FLUSH_SECONDS:.0f} s")

    def close(self) -> None:
        """Deliver the remaining reports for up to `CLOSE_SECONDS`, then stop."""
        with self._changed:
            self._close_by = time.monotonic() + CLOSE_SECONDS
            self._changed.notify_all()
        # A hanging call must not keep the process alive, so the wait has a limit.
        self._thread.join(timeout=CLOSE_SECONDS + CALL_PATIENCE_SECONDS)
        self._stop.set()
        with self._changed:
            if self._undelivered() and self._stale is None:
                logger.error("the run has ended, and some of its reports did not arrive")

    def deliver(self, send: Send, *, required: bool = False) -> bool:
        """Send a report now; return `False` if it must be retried."""
        try:
            send(self._patience())
        except StaleAttempt as error:
            with self._changed:
                self._stale = error
                self._changed.notify_all()
            return False
        except ConnectionFailed as error:
            logger.warning("the API does not answer, training continues: %s", error)
            return False
        except ApiError as error:
            if error.status >= 500:
                logger.warning("the API has a problem, training continues: %s", error)
                return False
            logger.error("the API refused a report: %s", error)
            if required:
                self._fail(error)
        except Exception as error:
            logger.exception("a report cannot be created")
            self._fail(error)
        return True

    def _is_over(self) -> bool:
        return self._stale is not None or self._failure is not None

    def _undelivered(self) -> bool:
        return self._sending is not None or bool(self._queue)

    def _thin(self) -> None:
        """Drop every second metric point in the queue, counted across batches."""
        thinned: deque[Report | Points] = deque()
        total = retained = 0
        for entry in self._queue:
            if isinstance(entry, list):
                half = entry[(total + 1) % 2 :: 2]
                total += len(entry)
                retained += len(half)
                if half:
                    thinned.append(half)
            else:
                thinned.append(entry)
        self._queue = thinned
        self._points -= total - retained

    def _deliver_all(self) -> None:
        while (entry := self._next()) is not None:
            if isinstance(entry, tuple):
                send, required = entry
            else:
                send, required = partial(self._send_points, entry), False
            if self.deliver(send, required=required):
                with self._changed:
                    self._sending = None
                    self._points -= len(entry) if isinstance(entry, list) else 0
                    self._changed.notify_all()
            elif self._stale is None:
                self._stop.wait(min(self._retry_seconds, self._patience()))

    def _next(self) -> Report | Points | None:
        """Wait for the next item to send and return it; `None` at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._undelivered() or self._close_by is not None)
            late = self._close_by is not None and time.monotonic() >= self._close_by
            if self._stale is not None or late or not self._undelivered():
                return None
            if self._sending is None:
                first = self._queue.popleft()
                if isinstance(first, list) and len(first) > METRIC_POINTS_PER_CALL:
                    self._queue.appendleft(first[METRIC_POINTS_PER_CALL:])
                    first = first[:METRIC_POINTS_PER_CALL]
                self._sending = first
            return self._sending

    def _patience(self) -> float:
        """Return the seconds for which a call may be retried."""
        if self._close_by is None:
            return CALL_PATIENCE_SECONDS
        return min(CALL_PATIENCE_SECONDS, max(0.0, self._close_by - time.monotonic()))

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()
