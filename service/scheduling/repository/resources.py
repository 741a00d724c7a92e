"""SQL of what jobs need: their resources and time limit, and the time that they have used."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from functools import cache, partial
from typing import NamedTuple, TypeGuard

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from dasl_core.spec import versions
from dasl_core.spec.versions import UnreadableSpec
from service.db.models import Job, Run
from service.scheduling.automatic import NOTHING, Automatic, choose
from service.scheduling.packing import Demand, Worker
from service.scheduling.repository.cluster import nodes_of, snapshot
from service.states import LIVE_ATTEMPT

logger = logging.getLogger(__name__)


def demands(session: Session, job_ids: Sequence[str]) -> dict[str, Demand]:
    """Return the demand of queued jobs; what its numbers state, for one whose spec cannot be read.

    What a job leaves to admission is chosen as if all nodes were its own.
    """
    columns = (Job.workers, Job.cpus_per_worker, Job.gpus_per_worker)
    is_changed = or_(*(column.is_not(None) for column in columns))
    changed = select(Job.id, *columns).where(Job.id.in_(job_ids), is_changed)
    rows = {row[0]: row[1:] for row in session.execute(changed)} if job_ids else {}
    resources = resources_of(session, job_ids)
    found = (
        snapshot(session) if any(each.automatic != NOTHING for each in resources.values()) else None
    )
    nodes = nodes_of(found) if found is not None else ()
    chosen = cache(partial(choose, nodes=nodes))

    def demand(job_id: str, each: _Resources) -> Demand:
        workers, cpus, gpus = rows.get(job_id, (None, None, None))
        own, left = each.of(workers, cpus, gpus), each.left(cpus, gpus)
        return own if left == NOTHING or left.had_cpus else chosen(own, left)

    return {job_id: demand(job_id, each) for job_id, each in resources.items()}


def demand_of(
    session: Session,
    job_id: str,
    workers: int | None,
    *,
    cpus: int | None = None,
    gpus: int | None = None,
) -> Demand:
    """Return the demand of a job; what its numbers state, if its spec cannot be read.

    Args:
        workers: their number, if not that of the spec.
        cpus: what each has in place of "auto".
        gpus: likewise.
    """
    return resources_of(session, [job_id])[job_id].of(workers, cpus, gpus)


def numbers_for(session: Session, job: Job, worker: Worker | None) -> dict[str, int]:
    """Return what the next attempt of a job has in place of "auto", by the name of the setting.

    Args:
        worker: as it was admitted.
    """
    resources = resources_of(session, [job.id])[job.id]
    worker, left = worker or resources.demand.worker, resources.automatic
    chosen = {"cpus_per_worker": worker.cpus} if left.cpus else {}
    return chosen | ({"gpus_per_worker": worker.gpus} if left.gpus else {})


def why_unreadable(session: Session, job_ids: Sequence[str]) -> dict[str, str]:
    """Return, for each of these jobs whose spec cannot be read, why."""
    resources = resources_of(session, job_ids)
    return {
        job_id: each.why_unreadable for job_id, each in resources.items() if each.why_unreadable
    }


class _Resources(NamedTuple):
    """Resources and time limit of a job.

    An attempt whose spec cannot be read has no time limit and holds what `_plain_demand` says.
    """

    demand: Demand
    limit_of_spec: timedelta
    why_unreadable: str = ""
    fewest: int | None = None
    """The fewest workers of an elastic job."""
    batch: tuple[int, int] = (0, 1)
    """Global batch and number of its micro-batches."""
    automatic: Automatic = NOTHING
    """What of `demand` is only the least, because the spec leaves it to the service."""

    def limit(self, max_hours: float | None) -> timedelta:
        """Return the time limit; `max_hours` of the job replaces that of its spec."""
        return self.limit_of_spec if max_hours is None else timedelta(hours=max_hours)

    def of(self, workers: int | None, cpus: int | None = None, gpus: int | None = None) -> Demand:
        """Return the demand.

        Args:
            workers: of the job or attempt, in place of that of the spec.
            cpus: of each worker of the newest attempt, if the spec leaves it to the service.
            gpus: likewise.
        """
        demand = self.demand if workers is None else self.demand._replace(workers=workers)
        if self.automatic == NOTHING:
            return demand
        worker = demand.worker
        if self.automatic.cpus and cpus is not None:
            worker = worker._replace(cpus=cpus)
        if self.automatic.gpus and gpus is not None:
            worker = worker._replace(gpus=gpus)
        return demand._replace(worker=worker)

    def left(self, cpus: int | None, gpus: int | None) -> Automatic:
        """Return what the nodes decide at the next start, given what earlier attempts had."""
        open_cpus, open_gpus, _ = self.automatic
        return Automatic(open_cpus, open_gpus and gpus is None, open_cpus and cpus is not None)

    def smaller(self, workers: int | None) -> tuple[Demand, ...]:
        """Return what an elastic job accepts if the nodes are too few, the most first."""
        if self.fewest is None:
            return ()
        batch, parts = self.batch
        most = self.of(workers).workers
        counts = range(most - 1, self.fewest - 1, -1)
        return tuple(self.of(count) for count in counts if batch % (count * parts) == 0)


_NO_LIMIT = timedelta(days=36_500)


_NOTHING = Demand(0, Worker(1, 0))


# A cache: what a job's spec states never changes, and reading those of a thousand jobs from their specs would be
# most of a round's time.
_resources_by_job: dict[str, _Resources] = {}


MAX_CACHED, _BATCH = 100_000, 1000


def resources_of(session: Session, job_ids: Sequence[str]) -> dict[str, _Resources]:
    cached = {job_id: _resources_by_job.get(job_id) for job_id in job_ids}
    missing = [job_id for job_id, resources in cached.items() if resources is None]
    loaded: dict[str, _Resources] = {}
    for start in range(0, len(missing), _BATCH):
        batch = Job.id.in_(missing[start : start + _BATCH])
        for row in session.execute(select(Job.id, Job.resolved, Job.spec_version).where(batch)):
            loaded[row.id] = _read_resources(*row)
    if len(_resources_by_job) > MAX_CACHED:
        _resources_by_job.clear()
    _resources_by_job.update(loaded)
    return {job_id: cached[job_id] or loaded[job_id] for job_id in cached}


def _read_resources(job_id: str, resolved: object, version: int) -> _Resources:
    try:
        resources = versions.load_resources(resolved, version)
    except UnreadableSpec as error:
        logger.error("The spec of job %s cannot be used: %s", job_id, error)
        demand, automatic = _plain_demand(resolved)
        return _Resources(demand, _NO_LIMIT, str(error), automatic=automatic)
    read = _Resources(
        Demand.of(resources),
        timedelta(hours=resources.max_hours),
        automatic=Automatic.of(resources),
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


def _plain_demand(resolved: object) -> tuple[Demand, Automatic]:
    """Return the demand that the numbers of an unreadable spec state, the least for "auto"; zero if they are not plausible."""
    resources = resolved.get("resources") if isinstance(resolved, dict) else None
    if not isinstance(resources, dict):
        return _NOTHING, NOTHING
    workers, cpus, gpus = (
        resources.get(name) for name in ("workers", "cpus_per_worker", "gpus_per_worker")
    )
    automatic = Automatic(cpus == "auto", gpus == "auto")
    cpus, gpus = 1 if automatic.cpus else cpus, 0 if automatic.gpus else gpus
    if not (_is_count(workers) and _is_count(cpus) and _is_count(gpus)):
        return _NOTHING, NOTHING
    return Demand(workers, Worker(cpus, gpus)), automatic


def _is_count(value: object) -> TypeGuard[int]:
    """Whether a value is an integer in the range of `workers`, the widest one."""
    return type(value) is int and 0 <= value <= 4096


def time_used(session: Session, job_ids: Sequence[str]) -> dict[str, timedelta]:
    """Return the total run time of each job's ended attempts."""
    used: dict[str, timedelta] = {}
    for start in range(0, len(job_ids), _BATCH):
        # Not of `Attempt`: with its kind in the query, SQLite reads all attempts that there are.
        batch = Run.owner.in_(job_ids[start : start + _BATCH])
        rows = session.execute(
            select(Run.owner, func.sum(Run.ran_seconds))
            .where(batch, Run.state.not_in(LIVE_ATTEMPT))
            .group_by(Run.owner)
        )
        used |= {job_id: timedelta(seconds=seconds) for job_id, seconds in rows}
    return used
