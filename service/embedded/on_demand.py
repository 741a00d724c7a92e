"""The local Ray as an executor that runs only while it is needed: off, starting, running, stopping.

Only the dispatcher's main loop calls `keep` and submits work, so Ray never ends during a submission.
"""

import logging
import threading
from collections.abc import Collection, Mapping
from enum import Enum, auto
from time import monotonic

from service.dispatcher.executor import ExecutorUnavailable, LogPiece, Submission
from service.dispatcher.ray_executor import RayExecutor
from service.embedded.local_ray import LocalRay
from service.scheduling.dispatcher_report import RayReport
from service.scheduling.nodes import Cluster

logger = logging.getLogger("dasl.serve")

_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 1.0, 30.0
# A busy machine may take a minute.
_START_SECONDS = 300.0
_SHOW_EVERY_SECONDS = 60.0


class State(Enum):
    """State of the local Ray."""

    OFF = auto()
    STARTING = auto()
    RUNNING = auto()
    STOPPING = auto()


class RayOnDemand:
    """An `Executor` and `OnDemand`: starts Ray for work or a visit, and ends it when there was neither for a while.

    Args:
        idle_seconds: how long Ray runs without work; 0: it always runs.
        visited: set when a person visits the page, as work may follow.
    """

    def __init__(self, ray: LocalRay, idle_seconds: float, visited: threading.Event) -> None:
        self._ray, self._idle_seconds, self._visited = ray, idle_seconds, visited
        self._state = State.OFF
        self._executor: RayExecutor | None = None
        # Held for each change of the state, because the service may be stopped concurrently.
        self._lock, self._closed = threading.Lock(), False
        self._needed_at = self._shown_at = self._not_before = float("-inf")
        self._started_at, self._pause = 0.0, _FIRST_PAUSE_SECONDS
        self._problem: str | None = None
        self.first_cluster: Cluster | None = None
        """The cluster when Ray ran for the first time."""
        self.lost_work = threading.Event()
        """Set when a running Ray ended by itself; it is not started again until this is cleared."""

    @property
    def is_running(self) -> bool:
        """Whether Ray accepts work."""
        return self._state == State.RUNNING

    def keep(self, *, needed: bool) -> RayReport | None:
        now = monotonic()
        if needed or self._idle_seconds == 0 or self._visited.is_set():
            self._visited.clear()
            self._needed_at = now
            if now - self._shown_at >= _SHOW_EVERY_SECONDS:
                self._ray.show_need()
                self._shown_at = now
        is_needed = now == self._needed_at or now - self._needed_at < self._idle_seconds
        # Do not hold the lock: a starting Ray may take long to answer.
        cluster = self._answer() if self._state == State.STARTING else None
        with self._lock:
            if not self._closed:
                self._advance(now, is_needed, cluster)
            if self._state == State.RUNNING:
                return None
            starts = is_needed or self._state == State.STARTING
            # Without need it is not started again, so that a problem would stay for ever.
            return (
                RayReport(state="starting", problem=self._problem)
                if starts
                else RayReport(state="idle")
            )

    def _advance(self, now: float, is_needed: bool, cluster: Cluster | None) -> None:
        """Make the transition that is due; `cluster` is the answer of a starting Ray."""
        state, is_alive = self._state, self._ray.running
        if state == State.OFF:
            if is_needed and now >= self._not_before and not self.lost_work.is_set():
                self._start(now)
        elif state == State.STOPPING:
            if not is_alive:
                self._end()
        elif not is_alive:
            if state == State.RUNNING:
                self.lost_work.set()
            self._fail(now, "ended unexpectedly" if state == State.RUNNING else "did not start")
        elif state == State.STARTING:
            # A node is reported before its CPUs are.
            if cluster is not None and cluster.total_cpus:
                self._state, self._problem, self._pause = State.RUNNING, None, _FIRST_PAUSE_SECONDS
                self.first_cluster = self.first_cluster or cluster
            elif now - self._started_at >= _START_SECONDS:
                self._fail(now, f"does not answer for {_START_SECONDS:g} s")
        elif not is_needed:
            logger.info("Ray ends: no work for %g minutes", self._idle_seconds / 60)
            self._ray.begin_stop()
            self._state = State.STOPPING

    def _start(self, now: float) -> None:
        try:
            self._ray.start()
        except (OSError, ValueError) as error:
            self._fail(now, f"cannot be started: {error}")
            return
        self._executor = RayExecutor(self._ray.address, self._ray.token)
        self._state, self._started_at = State.STARTING, now

    def _fail(self, now: float, what: str) -> None:
        logger.error("Ray %s (see %s); restarting it", what, self._ray.log)
        # Without paths: `/readyz` needs no token.
        self._problem = f"Ray {what}, and is started again; see its log in the home of the service"
        self._not_before, self._pause = now + self._pause, min(2 * self._pause, _MAX_PAUSE_SECONDS)
        self._end()

    def _end(self) -> None:
        # Do not close the executor: another loop may be using it.
        self._state, self._executor = State.OFF, None
        self._ray.stop()

    def _answer(self) -> Cluster | None:
        try:
            return self._started().cluster()
        except ExecutorUnavailable:
            return None

    def close(self) -> None:
        """End Ray permanently."""
        with self._lock:
            self._closed = True
            self._end()

    def _started(self) -> RayExecutor:
        if (executor := self._executor) is None:
            raise ExecutorUnavailable("Ray does not run now")
        return executor

    def _running(self) -> RayExecutor | None:
        """Return the executor of the running Ray; `None` while Ray is off and has no submissions."""
        if self._state == State.OFF:
            return None
        if self._state != State.RUNNING:
            raise ExecutorUnavailable("Ray starts, or ends")
        return self._started()

    def submit(
        self,
        submission_id: str,
        entrypoint: str,
        env: Mapping[str, str],
        token: str,
        avoid: Collection[str] = (),
    ) -> None:
        self._started().submit(submission_id, entrypoint, env, token, avoid)

    def status(self, submission_id: str) -> Submission | None:
        ray = self._running()
        return None if ray is None else ray.status(submission_id)

    def logs(self, submission_id: str, start: int, count: int) -> LogPiece:
        ray = self._running()
        return LogPiece(b"", 0) if ray is None else ray.logs(submission_id, start, count)

    def stop(self, submission_id: str) -> None:
        if (ray := self._running()) is not None:
            ray.stop(submission_id)

    def delete(self, submission_id: str) -> bool:
        ray = self._running()
        return True if ray is None else ray.delete(submission_id)

    def cluster(self) -> Cluster:
        return self._started().cluster()
