"""Decisions on the first jobs of the queue, for the API."""

import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from service.db.models import ClusterSnapshot
from service.scheduling import repository
from service.scheduling.admission import Decision, Running, decide
from service.scheduling.dispatcher_report import DispatcherReport
from service.scheduling.foreign_use import ForeignUse
from service.scheduling.window import FairQueue

_LONG = 100
_SECONDS = 1.0

Decisions = Mapping[str, Decision]
"""Decisions by the id of the job."""


class DecisionCache:
    """Makes the dispatcher's decisions on the jobs that it considers in every round.

    They are recomputed at most once per second, for all requests of the process.
    """

    def __init__(self, half_life: timedelta) -> None:
        self._queue = FairQueue(half_life)
        self._lock = threading.Lock()
        self._decisions: Decisions = {}
        self._until = 0.0

    def decisions(
        self, session: Session, snapshot: ClusterSnapshot, taken: Sequence[Running], now: datetime
    ) -> Decisions:
        """Return the decisions, which may be a second old.

        Args:
            taken: the jobs that hold resources.
        """
        with self._lock:
            if time.monotonic() >= self._until:
                decisions = self._decide(session, snapshot, taken, now)
                self._decisions = {decision.job.job_id: decision for decision in decisions}
                is_long = len(decisions) >= _LONG
                self._until = time.monotonic() + _SECONDS if is_long else 0.0
            return self._decisions

    def _decide(
        self, session: Session, snapshot: ClusterSnapshot, taken: Sequence[Running], now: datetime
    ) -> list[Decision]:
        cluster = repository.known_cluster(session, snapshot)
        foreign = ForeignUse().by_node(cluster.nodes, taken)
        queue = repository.load_queued(session, self._queue.first(session, taken, now))
        report = DispatcherReport.from_snapshot(snapshot)
        return decide(
            cluster,
            taken,
            queue,
            now,
            foreign,
            is_writable=report is None or report.is_writable,
            api_answers=report is None or report.api_answers,
        )
