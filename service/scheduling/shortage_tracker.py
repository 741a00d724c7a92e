"""How long queued jobs have lacked nodes; an elastic job may then start with fewer workers."""

from collections.abc import Iterable
from datetime import datetime

from service.scheduling.admission import SHRINK_AFTER, Decision

_MAX_JOBS = 100_000


class ShortageTracker:
    """Tracks since when each job has lacked nodes without a break.

    A restart of the process resets it, which only postpones a start with fewer workers.
    """

    def __init__(self) -> None:
        self._since: dict[str, datetime] = {}

    def update(self, decisions: Iterable[Decision], now: datetime) -> None:
        """Record the decisions of a round; jobs that it did not consider keep their time."""
        if len(self._since) > _MAX_JOBS:
            self._since.clear()
        for decision in decisions:
            if decision.lacks_machines and not decision.starts:
                self._since.setdefault(decision.job.job_id, now)
            elif decision.waits_for not in ("store", "api", "head"):  # these do not depend on nodes
                self._since.pop(decision.job.job_id, None)

    def reset(self) -> None:
        """Forget all jobs, because Ray does not run or has no node: after a restart, nodes join one by one."""
        self._since.clear()

    def persistent(self, now: datetime) -> set[str]:
        """Return the ids of the jobs that have lacked nodes for `SHRINK_AFTER`."""
        return {job_id for job_id, since in self._since.items() if now - since >= SHRINK_AFTER}
