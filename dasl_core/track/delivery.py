"""Best-effort background delivery of points to a tracker."""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from itertools import islice

from dasl_core.text import cut
from dasl_core.track.tracker import Ending, Point, Tracker, TrackerUnusable
from dasl_core.train.reporter import Reporter

logger = logging.getLogger(__name__)

# Maximum number of waiting points; above it the oldest are dropped.
MAX_POINTS = 10_000
POINTS_PER_CALL = 500
RETRY_SECONDS = 10.0
# Retry interval while the end of a run waits.
LAST_RETRY_SECONDS = 1.0
# Time that the end of a run waits for all of its trackers.
CLOSE_SECONDS = 5.0
_LONGEST_REASON = 500


class Delivery:
    """A thread that passes points to a tracker, and reports its address or failure as events.

    A failed call is retried after `retry_seconds`, and more often while the end of the run waits; the first failure is
    reported.
    """

    def __init__(
        self, tracker: Tracker, reporter: Reporter, *, retry_seconds: float = RETRY_SECONDS
    ) -> None:
        self._tracker, self._reporter = tracker, reporter
        self._retry_seconds = retry_seconds
        self._changed = threading.Condition()
        self._waiting: deque[Point] = deque()
        self._sending: list[Point] = []
        self._dropped = 0
        self._publish = False
        self._ending: Ending | None = None
        self._started = self._done = self._abandoned = False
        self._failed = False  # and reported
        self._thread = threading.Thread(target=self._run, name=f"track-{tracker.key}", daemon=True)
        self._thread.start()

    def put(self, points: Iterable[Point]) -> None:
        """Append points. Never waits."""
        with self._changed:
            self._waiting.extend(points)
            # A stopped thread takes none.
            limit = MAX_POINTS if self._thread.is_alive() else 0
            while len(self._waiting) > limit:
                self._waiting.popleft()
                self._dropped += 1
            self._changed.notify()

    def publish(self) -> None:
        """Make the tracker store its points. Never waits."""
        with self._changed:
            self._publish = True
            self._changed.notify()

    def end(self, ending: Ending) -> None:
        """Make the tracker record the end after all points. Never waits."""
        with self._changed:
            self._ending = ending
            self._changed.notify()

    def wait(self, deadline: float) -> None:
        """Wait for the end until a `time.monotonic` deadline; then report lost points.

        The thread of a hanging call ends with the process.
        """
        self._thread.join(max(0.0, deadline - time.monotonic()))
        with self._changed:
            self._abandoned = True
            self._changed.notify()
            done = self._done
            lost = self._dropped + len(self._waiting) + len(self._sending)
        if not done and not self._failed:
            self._report_failure("it did not answer before the end of the run")
        if lost:
            message = f"{self._tracker.name} lacks {lost} points of this attempt"
            data = {"tracker": self._tracker.key, "points": lost}
            self._reporter.event("tracking_incomplete", message, data)

    def _run(self) -> None:
        try:
            while not self._done and not self._abandoned:
                with self._changed:
                    self._changed.wait_for(
                        lambda: not self._started or self._waiting or self._publish or self._ending
                    )
                try:
                    self._work()
                except OSError as error:
                    self._fail(error)
                    self._pause()
        except TrackerUnusable as error:
            self._fail(error)
        except Exception as error:  # a library's error must not fail the run
            logger.exception("%s failed", self._tracker.name)
            self._fail(error)
        finally:
            try:
                self._tracker.close()
            except Exception:
                logger.exception("%s cannot be closed", self._tracker.name)

    def _work(self) -> None:
        """Do all due work; an OSError means that it must be retried."""
        if not self._started:
            address = self._tracker.start()
            self._started = True
            self._report("tracking", f"{self._tracker.name}: {address}", {"address": address})
        while points := self._next():
            self._tracker.log(points)
            with self._changed:
                self._sending = []
        if self._publish:
            self._publish = False
            try:
                self._tracker.publish()
            except OSError:
                self._publish = True
                raise
        if self._ending is not None:
            self._tracker.finish(self._ending)
            self._done = True

    def _next(self) -> list[Point]:
        """Take the points of the next call: those of a failed call, or the oldest ones."""
        with self._changed:
            if not self._sending:
                self._sending = list(islice(self._waiting, POINTS_PER_CALL))
                for _ in self._sending:
                    self._waiting.popleft()
            return self._sending

    def _pause(self) -> None:
        with self._changed:
            if self._ending is None:
                self._changed.wait_for(lambda: self._ending is not None, self._retry_seconds)
            else:
                seconds = min(self._retry_seconds, LAST_RETRY_SECONDS)
                self._changed.wait_for(lambda: self._abandoned, seconds)

    def _fail(self, error: Exception) -> None:
        if self._failed:
            logger.debug("%s: %s", self._tracker.name, error)  # an outage may last days
        elif not self._abandoned:
            self._report_failure(str(error) or type(error).__name__)

    def _report_failure(self, reason: str) -> None:
        self._failed = True
        reason = cut(reason, _LONGEST_REASON)
        message = f"{self._tracker.name} does not get the metrics now: {reason}"
        self._report("tracking_failed", message, {"reason": reason})

    def _report(self, type: str, message: str, data: dict[str, str]) -> None:
        self._reporter.event(type, message, {"tracker": self._tracker.key, **data})
