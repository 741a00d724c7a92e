"""SQL of the resources, time limit and used time of jobs, and of the quotas of GPUs."""

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from dasl_core.spec import versions
from dasl_core.spec.versions import UnreadableSpec
from service.db.models import Job, Run, Tenant, Token
from service.scheduling.automatic import NOTHING, Automatic
from service.scheduling.packing import Demand, Worker
from service.states import LIVE_ATTEMPT

logger = logging.getLogger(__name__)


def demands(session: Session, job_ids: Sequence[str]) -> dict[str, Demand]:
    """Return the demand of queued jobs, with the smallest numbers in place of "auto"."""
    changed = select(Job.id, Job.workers).where(Job.id.in_(job_ids), Job.workers.is_not(None))
    workers = {row.id: row.workers for row in session.execute(changed)} if job_ids else {}
    by_job = load_resources(session, job_ids)
    return {
        job_id: resources.with_workers(workers.get(job_id)) for job_id, resources in by_job.items()
    }


def job_demand(session: Session, job_id: str, workers: int | None) -> Demand:
    """Return the demand of a job; `workers` replaces the number of workers in the spec."""
    return load_resources(session, [job_id])[job_id].with_workers(workers)


def why_unreadable(session: Session, job_ids: Sequence[str]) -> dict[str, str]:
    """Return the jobs with an unreadable spec, and the reasons."""
    resources = load_resources(session, job_ids)
    return {
        job_id: each.why_unreadable for job_id, each in resources.items() if each.why_unreadable
    }


class _Resources(NamedTuple):
    """Resources and time limit of a job.

    An attempt with an unreadable spec has no time limit, and no demand until Ray reports its use.
    """

    demand: Demand
    spec_limit: timedelta
    why_unreadable: str = ""
    fewest: int | None = None
    """The fewest workers of an elastic job."""
    batch: tuple[int, int] = (0, 1)
    """Global batch and number of its micro-batches."""
    automatic: Automatic = NOTHING
    """Numbers of `demand` that are still "auto"."""

    def limit(self, max_hours: float | None) -> timedelta:
        """Return the time limit; the job's `max_hours` replaces the spec's."""
        return self.spec_limit if max_hours is None else timedelta(hours=max_hours)

    def with_workers(self, workers: int | None) -> Demand:
        """Return the demand; `workers` of the job or attempt replaces the number in the spec."""
        return self.demand if workers is None else self.demand._replace(workers=workers)

    def smaller(self, workers: int | None) -> tuple[Demand, ...]:
        """Return the smaller demands that an elastic job accepts, the largest first."""
        if self.fewest is None:
            return ()
        batch, parts = self.batch
        most = self.with_workers(workers).workers
        counts = range(most - 1, self.fewest - 1, -1)
        return tuple(self.with_workers(count) for count in counts if batch % (count * parts) == 0)


_NO_LIMIT = timedelta(days=36_500)


_NOTHING = Demand(0, Worker(1, 0))


# Can be cached, because decided resources never change. Reading a thousand specs would dominate a round's time.
_resources_by_job: dict[str, _Resources] = {}


MAX_CACHED, _BATCH = 100_000, 1000


def load_resources(session: Session, job_ids: Sequence[str]) -> dict[str, _Resources]:
    cached = {
        job_id: resources
        for job_id in job_ids
        if (resources := _resources_by_job.get(job_id)) is not None  # another thread may clear it
    }
    undecided = [id for id, resources in cached.items() if resources.automatic != NOTHING]
    missing = [job_id for job_id in job_ids if job_id not in cached]
    missing += _started(session, undecided)
    loaded: dict[str, _Resources] = {}
    for start in range(0, len(missing), _BATCH):
        batch = Job.id.in_(missing[start : start + _BATCH])
        for row in session.execute(select(Job.id, Job.resolved, Job.spec_version).where(batch)):
            loaded[row.id] = _read_resources(*row)
    if len(_resources_by_job) > MAX_CACHED:
        _resources_by_job.clear()
    _resources_by_job.update(loaded)
    return cached | loaded


# Built once, because each round needs it and SQLAlchemy takes longer to build a statement than to run it.
_STARTED = select(Job.id).where(Job.id.in_(bindparam("job_ids", expanding=True)), Job.attempt > 0)


def _started(session: Session, job_ids: Sequence[str]) -> list[str]:
    """Return the jobs that have had an attempt, whose start decided the "auto" numbers."""
    started: list[str] = []
    for start in range(0, len(job_ids), _BATCH):
        started += session.scalars(_STARTED, {"job_ids": job_ids[start : start + _BATCH]})
    return started


def _read_resources(job_id: str, resolved: object, version: int) -> _Resources:
    try:
        resources = versions.load_resources(resolved, version)
    except UnreadableSpec as error:
        logger.error("The spec of job %s cannot be used: %s", job_id, error)
        return _Resources(_NOTHING, _NO_LIMIT, str(error))
    read = _Resources(
        Demand.from_resources(resources),
        timedelta(hours=resources.max_hours),
        automatic=Automatic.from_resources(resources),
    )
    batch = _batch(resolved) if resources.min_workers else None
    return read if batch is None else read._replace(fewest=resources.min_workers, batch=batch)


def _batch(resolved: object) -> tuple[int, int] | None:
    """Return the batch size and the number of micro-batches of a stored spec; `None` if they cannot be read."""
    train = resolved.get("train") if isinstance(resolved, dict) else None
    if not isinstance(train, dict):
        return None
    size, parts = train.get("batch_size"), train.get("micro_batches")
    return (size, parts) if type(size) is int and type(parts) is int and parts > 0 else None


def time_used(session: Session, job_ids: Sequence[str]) -> dict[str, timedelta]:
    """Return the total run time of each job's ended attempts."""
    used: dict[str, timedelta] = {}
    for start in range(0, len(job_ids), _BATCH):
        # Select from `Run`: with the kind of `Attempt` in the query, SQLite would read all attempts.
        batch = Run.owner.in_(job_ids[start : start + _BATCH])
        rows = session.execute(
            select(Run.owner, func.sum(Run.ran_seconds))
            .where(batch, Run.state.not_in(LIVE_ATTEMPT))
            .group_by(Run.owner)
        )
        used |= {job_id: timedelta(seconds=seconds) for job_id, seconds in rows}
    return used


def max_gpus(session: Session, tenant: str, token_id: str | None) -> int | None:
    """Return the number of GPUs that the quotas of a token and its tenant allow; `None` if unlimited."""
    of_token = select(Token.max_gpus).where(Token.id == token_id)
    of_tenant = select(Tenant.max_gpus).where(Tenant.name == tenant)
    quotas = [session.scalar(quota) for quota in (of_token, of_tenant)]
    return min((quota for quota in quotas if quota is not None), default=None)
