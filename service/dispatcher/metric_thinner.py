"""Thinning of old metric points in the background, in transactions of bounded length.

Points are removed before the progress of a job is recorded, so an interrupted thinning is repeated. The repetition
removes no other points, because the remaining ones have the same extremes.
"""

from collections.abc import Sequence
from dataclasses import replace

from service.dispatcher.context import DispatcherContext
from service.dispatcher.isolation import run_isolated, show_progress
from service.metrics import repository as metrics
from service.metrics.repository import Thinning
from service.metrics.thinning import Section, sections_due

# Number of steps of a series that one transaction thins.
STRIDE = 1024
# A round takes about a second, because a stopping dispatcher waits for it.
_STRIDES_PER_ROUND, _STRIDES_PER_JOB = 8, 4
_JOBS_PER_ROUND = 100
# Number of series in a transaction.
_SERIES = 16


class MetricThinner:
    """Thins the metrics of running jobs as they grow, and of ended jobs once."""

    def __init__(self, context: DispatcherContext) -> None:
        self._context = context
        self._after = ""
        """The last job of the previous round; empty: start at the first job."""
        self._jobs: dict[str, Thinning] = {}
        self._strides_left = 0

    def round(self) -> bool:
        """Thin some jobs; return `False` if this dispatcher is not in charge."""
        if not self._context.in_charge:
            return False
        with self._context.database.read() as session:
            jobs = metrics.unthinned(session, self._after, _JOBS_PER_ROUND)
        self._jobs = {job.job_id: job for job in jobs}
        self._strides_left = _STRIDES_PER_ROUND
        for job_id in self._jobs:
            run_isolated(self.thin, job_id, "thin the metrics of this job")
            self._after = job_id
            if self._strides_left <= 0:
                return True
        if len(jobs) < _JOBS_PER_ROUND:
            self._after = ""
        return True

    def thin(self, job_id: str) -> None:
        """Thin the metrics of a job of this round, until the time of the round is used up."""
        stored = job = self._jobs[job_id]
        with self._context.database.read() as session:
            newest = metrics.newest_step(session, job_id)
            if not job.ended and newest - job.step < STRIDE:
                return
            reported = metrics.reported(session, job_id)
            names = metrics.names(session, job_id)
        # A newer attempt stores all points of the steps that it repeats.
        repeated = [steps.first for number, steps in reported.items() if number > job.attempt]
        attempt = max(reported, default=job.attempt)
        last = reported[attempt].last if attempt in reported else 0
        job = replace(job, attempt=attempt, step=min([job.step, *repeated]))
        for _ in range(_STRIDES_PER_JOB):
            if job.step + STRIDE > last:
                break
            thinned = replace(job, step=job.step + self._stride(job, names))
            for section in sections_due(job.step, thinned.step):
                self._thin(thinned, section, names)
            job = thinned
            self._strides_left -= 1
        complete = job.ended and job.step + STRIDE > last
        if complete or job != stored:
            with self._context.write() as session:
                metrics.save_thinning(session, job, complete=complete)

    def _stride(self, job: Thinning, names: Sequence[str]) -> int:
        """Return how many steps to thin at once: more, the more steps before them have no point.

        Such steps cost nothing, and a job chooses its numbers: they may differ by 2^62.
        """
        with self._context.database.read() as session:
            gap = metrics.gap_around(session, job.job_id, names, job.step, least=STRIDE)
        return max(STRIDE, min(gap))

    def _thin(self, job: Thinning, section: Section, names: Sequence[str]) -> None:
        with self._context.database.read() as session:
            long = [*metrics.long_series(session, job.job_id, names).items()]
        for start in range(0, len(long), _SERIES):
            show_progress()
            # A transaction for some series, because other writers may wait for it.
            with self._context.write() as session:
                some = dict(long[start : start + _SERIES])
                metrics.thin(session, job.job_id, some, section, job.attempt)
