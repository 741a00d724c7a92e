"""Removal of ended submissions from Ray, whose head otherwise keeps the records of all of them in memory.

A run that Ray does not know counts as lost, so only submissions of finalized runs, whose logs are no longer read, are
removed. The next dispatcher repeats a removal that was missed.
"""

import logging
from collections import deque
from datetime import datetime, timedelta

from service.dispatcher.context import DispatcherContext, passed
from service.dispatcher.executor import ExecutorUnavailable
from service.dispatcher.isolation import show_progress
from service.dispatcher.log_copier import KEEP_TRYING
from service.runs import repository as runs
from service.runs.repository import Position

logger = logging.getLogger(__name__)

KEEP = 2 * KEEP_TRYING
"""How long submissions are kept after the end of their run, for example for Ray's tools."""
# After a start, runs that ended earlier are not examined again: most of their submissions are already removed.
_BACK_TO = KEEP + timedelta(days=1)
_RUNS_EVERY = timedelta(minutes=10)
_DEMAND_EVERY = timedelta(minutes=1)
_BATCH_SIZE = 20
# A query sorts all runs, and a removal is a request to Ray's head.
_QUERY_SIZE = 5000


class SubmissionRemoval:
    """Removes the submissions of finalized runs and of requests to the autoscaler."""

    def __init__(self, context: DispatcherContext) -> None:
        self._context = context
        self._runs_at: datetime | None = None
        self._demand_at: datetime | None = None
        self._found_until: Position | None = None
        self._to_remove: deque[str] = deque()

    def round(self) -> None:
        """Remove a batch of each kind; if there are no more, or Ray fails, wait some minutes before the next ones."""
        now = self._context.clock()
        if not self._context.executor_answers:
            return
        if passed(self._demand_at, now, _DEMAND_EVERY):
            self._demand_at = now
            try:
                self._remove_demand_programs()
            except ExecutorUnavailable as error:
                logger.warning("Ended programs of demand stay in Ray for now: %s", error)
        if not passed(self._runs_at, now, _RUNS_EVERY):
            return
        try:
            if not self._to_remove:
                self._find_runs(now)
            for _ in range(min(_BATCH_SIZE, len(self._to_remove))):
                show_progress()
                # Drop it from the list even if its removal fails, so that it does not block the others.
                self._context.executor.delete(self._to_remove.popleft())
        except ExecutorUnavailable as error:
            logger.warning("Ended submissions stay in Ray for now: %s", error)
            self._runs_at = now
        if not self._to_remove:
            self._runs_at = now

    def _remove_demand_programs(self) -> None:
        for name in list(self._context.demand_programs)[:_BATCH_SIZE]:
            show_progress()
            if self._context.executor.delete(name):
                self._context.demand_programs.discard(name)

    def _find_runs(self, now: datetime) -> None:
        after = self._found_until or (now - _BACK_TO, "", 0)
        with self._context.database.read() as session:
            ended = runs.finalized(session, after=after, before=now - KEEP, limit=_QUERY_SIZE)
        self._to_remove.extend(submission_id for _, submission_id in ended)
        if ended:
            self._found_until = ended[-1][0]
