"""SQL of scheduling: queued jobs, jobs that hold resources, and the last snapshot of the cluster.

Nothing here commits; the caller's transaction does.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, NamedTuple, TypeGuard

from pydantic import ValidationError
from sqlalchemy import ColumnElement, Select, and_, func, null, or_, select, tuple_
from sqlalchemy.orm import Session

from dasl_core.spec import Resources, versions
from dasl_core.spec.versions import UnreadableSpec
from service.db.models import (
    Attempt,
    Checkpoint,
    ClusterSnapshot,
    Drain,
    Event,
    Job,
    Tenant,
    Token,
)
from service.protocol import PLACEMENT, PlacementData
from service.runs.repository import RunView
from service.scheduling.admission import Queued, Running
from service.scheduling.fair_share import Account, Waiting
from service.scheduling.nodes import Cluster, Node, with_drains
from service.scheduling.occupancy import Placement, placement_of
from service.scheduling.packing import Demand, Worker
from service.scheduling.preemption import Candidate, Rank
from service.scheduling.quota import Quota
from service.states import LIVE_ATTEMPT, AttemptState, Desired, JobStatus, StopReason

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AttemptView(RunView):
    """An attempt with the parts of its job that the dispatcher needs, read at one moment."""

    created_at: datetime
    heartbeat_at: datetime | None
    progress_reported_at: datetime | None
    progressed_at: datetime | None
    ran: timedelta
    """Confirmed runtime: a gap between heartbeats counts for at most `liveness.MAX_SILENCE`."""
    finished_at: datetime | None
    status: JobStatus
    desired: Desired
    """What a person requested."""
    stop_reason: StopReason | None
    """Why the service itself stops the attempt."""
    stop_requested_at: datetime | None
    job_started_at: datetime | None
    demand: Demand
    """Resources that the attempt holds."""
    limit: timedelta
    """Time limit of all attempts of the job together."""
    has_error: bool
    """The attempt ended with an error that has no log tail yet."""

    @property
    def job_id(self) -> str:
        """The owner of the attempt."""
        return self.owner

    @property
    def requested(self) -> Desired:
        """What the attempt is to do: what a person requested, or else the service."""
        return Desired.PAUSE if self.desired == Desired.RUN and self.stop_reason else self.desired

    @property
    def standstill(self) -> timedelta:
        """How long the attempt has reported without progress, as of its last report.

        Before the first report of progress, which rank 0 sends, the driver's heartbeats count as reports.
        """
        reported = self.progress_reported_at or self.heartbeat_at
        if reported is None or self.progressed_at is None:
            return timedelta()
        return reported - self.progressed_at


class Ended(NamedTuple):
    """Position of an attempt in the order of their ends."""

    at: datetime
    owner: str = ""
    number: int = 0

    @classmethod
    def of(cls, attempt: AttemptView) -> Ended:
        """Return the position of an ended attempt."""
        assert attempt.finished_at is not None
        return cls(attempt.finished_at, attempt.owner, attempt.number)


def live_attempts(session: Session) -> list[AttemptView]:
    """Return the attempts that have not ended, oldest first."""
    live = Attempt.state.in_(LIVE_ATTEMPT)
    return _attempts(session, _ATTEMPTS.where(live).order_by(Attempt.created_at))


def ended_attempts(session: Session) -> list[AttemptView]:
    """Return the attempts that have ended and are not finalized, oldest first."""
    ended = (~Attempt.settled, Attempt.finished_at.is_not(None))
    return _attempts(session, _ATTEMPTS.where(*ended).order_by(Attempt.finished_at))


def finalized_attempts(
    session: Session, *, after: Ended, before: datetime, limit: int
) -> list[AttemptView]:
    """Return finalized attempts that ended after a position and before a time, oldest first."""
    position = (Attempt.finished_at, Attempt.owner, Attempt.number)
    ended = (Attempt.settled, tuple_(*position) > after, Attempt.finished_at < before)
    return _attempts(session, _ATTEMPTS.where(*ended).order_by(*position).limit(limit))


def has_unfinalized_attempt(session: Session, job_id: str) -> bool:
    """Whether an attempt of the job may still run, or its checkpoints may not be adopted yet."""
    attempt = select(Attempt.number).where(Attempt.owner == job_id, ~Attempt.settled).limit(1)
    return session.scalar(attempt) is not None


class QueuePosition(NamedTuple):
    """A position in the order of rank and age."""

    preemptible: bool
    priority: int
    job_id: str

    @property
    def key(self) -> tuple[bool, int, str]:
        """The key by which positions are sorted, the front of the queue first."""
        return self.preemptible, -self.priority, self.job_id


class QueuePart(NamedTuple):
    """Consecutive jobs of the queue; `end` is the position of the last, `None` if the queue ends here."""

    jobs: list[Queued]
    end: QueuePosition | None


def queued(
    session: Session,
    limit: int,
    after: QueuePosition | None = None,
    without: Collection[str] = (),
) -> QueuePart:
    """Return queued jobs by rank, then oldest first.

    Jobs whose spec cannot be read are left out (`why_unreadable`).

    Args:
        limit: number of jobs to read.
        after: read the jobs behind this position.
        without: ids of jobs to leave out.
    """
    part = _positions(session, limit, after, without)
    jobs = load_queued(session, [position.job_id for position in part])
    return QueuePart(jobs, part[-1] if len(part) == limit else None)


def load_queued(session: Session, job_ids: Sequence[str]) -> list[Queued]:
    """Return queued jobs in the given order, without those that are not to run or cannot be read."""
    rows = session.execute(
        select(
            Job.id,
            Job.desired,
            Job.attempt,
            Job.token_id,
            Job.max_hours,
            Job.workers,
            Job.tenant,
            Job.priority,
            Job.preemptible,
            Token.max_running_jobs,
            Token.max_gpus,
            Tenant.max_running_jobs.label("tenant_jobs"),
            Tenant.max_gpus.label("tenant_gpus"),
        )
        .join(Token, Token.id == Job.token_id, isouter=True)
        .join(Tenant, Tenant.name == Job.tenant, isouter=True)
        .where(Job.id.in_(job_ids))
    ).all()
    place = {job_id: index for index, job_id in enumerate(job_ids)}
    rows = sorted(rows, key=lambda row: place[row.id])
    used = _time_used(session, [row.id for row in rows if row.attempt])
    resources = _resources(session, [row.id for row in rows])
    return [
        Queued(
            row.id,
            row.attempt,
            resources[row.id].of(row.workers),
            max_runtime=max(
                timedelta(), resources[row.id].limit(row.max_hours) - used.get(row.id, timedelta())
            ),
            token_id=row.token_id,
            quota=Quota(row.max_running_jobs, row.max_gpus),
            smaller=resources[row.id].smaller(row.workers) if row.attempt else (),
            tenant=row.tenant,
            tenant_quota=Quota(row.tenant_jobs, row.tenant_gpus),
            priority=row.priority,
            preemptible=row.preemptible,
        )
        for row in rows
        if row.desired == Desired.RUN and not resources[row.id].why_unreadable
    ]


def waiting(session: Session, limit: int) -> Iterator[dict[Account, Iterator[Waiting]]]:
    """Yield the queued jobs of each account, oldest first: of one rank after the other, highest first.

    Stops after the rank in which `limit` is reached. The number of queries does not grow with that of ranks or
    accounts.
    """
    counts, whole = _count_by_account(session), []
    for rank, accounts in counts.items():
        if (left := limit - sum(accounts.values())) < 0:
            break
        whole.append(rank)
        limit = left
    jobs = _jobs_of_ranks(session, whole)
    for rank in whole:
        yield {account: iter(queue) for account, queue in jobs[rank].items()}
    if limit and len(whole) < len(counts):
        rank = list(counts)[len(whole)]
        yield _queues(session, rank, counts[rank], limit)


def _count_by_account(session: Session) -> dict[Rank, Counter[Account]]:
    """Count the queued jobs of each account, by rank, highest first."""
    columns = Job.preemptible, Job.priority, Job.tenant, Job.token_id
    query = select(*columns, func.count()).where(Job.status == JobStatus.QUEUED)
    counts: defaultdict[Rank, Counter[Account]] = defaultdict(Counter)
    for preemptible, priority, tenant, token_id, count in session.execute(query.group_by(*columns)):
        counts[Rank(not preemptible, priority)][Account(tenant, token_id)] = count
    return {rank: counts[rank] for rank in sorted(counts, reverse=True)}


def _jobs_of_ranks(
    session: Session, ranks: Sequence[Rank]
) -> Mapping[Rank, Mapping[Account, list[Waiting]]]:
    """Return all queued jobs of some consecutive ranks by account, oldest first."""
    jobs: defaultdict[Rank, defaultdict[Account, list[Waiting]]]
    jobs = defaultdict(lambda: defaultdict(list))
    if not ranks:
        return jobs
    columns = Job.id, Job.workers, Job.preemptible, Job.priority, Job.tenant, Job.token_id
    rows = session.execute(select(*columns).where(_has_one_of(ranks)).order_by(Job.id)).all()
    resources = _resources(session, [row.id for row in rows])
    for id, workers, preemptible, priority, tenant, token_id in rows:
        queue = jobs[Rank(not preemptible, priority)][Account(tenant, token_id)]
        queue.append(Waiting(id, resources[id].of(workers)))
    return jobs


_FEW_ACCOUNTS, _FIRST_JOBS = 16, 16


def _queues(
    session: Session, rank: Rank, accounts: Mapping[Account, int], limit: int
) -> dict[Account, Iterator[Waiting]]:
    """Return the queued jobs of each account of a rank, oldest first, reading a few at a time."""
    if len(accounts) <= _FEW_ACCOUNTS:
        return {account: _waiting(session, rank, account) for account in accounts}
    # Those that an equal share of `limit` needs are read in one query.
    depth = 1 + math.ceil(limit / len(accounts))
    place = func.row_number().over(partition_by=(Job.tenant, Job.token_id), order_by=Job.id)
    columns = Job.tenant, Job.token_id, Job.id, Job.workers
    placed = select(*columns, place.label("place")).where(*_has_rank(rank)).subquery()
    first = select(placed).where(placed.c.place <= depth).order_by(placed.c.id)
    rows = session.execute(first).all()
    resources = _resources(session, [row.id for row in rows])
    queues: defaultdict[Account, list[Waiting]] = defaultdict(list)
    for tenant, token_id, id, workers, _ in rows:
        queues[Account(tenant, token_id)].append(Waiting(id, resources[id].of(workers)))
    return {
        account: chain(queue, _waiting(session, rank, account, queue[-1].job_id))
        if len(queue) == depth
        else iter(queue)
        for account, queue in queues.items()
    }


def _waiting(session: Session, rank: Rank, account: Account, last: str = "") -> Iterator[Waiting]:
    """Yield an account's queued jobs of a rank after the job `last`, reading a few at a time."""
    limit = _FIRST_JOBS
    own = Job.tenant == account.tenant, Job.token_id.is_not_distinct_from(account.token_id)
    while True:
        query = select(Job.id, Job.workers).where(*_has_rank(rank), *own, Job.id > last)
        rows = session.execute(query.order_by(Job.id).limit(limit)).all()
        resources = _resources(session, [row.id for row in rows])
        for last, workers in rows:
            yield Waiting(last, resources[last].of(workers))
        if len(rows) < limit:
            return
        limit *= 2


def _has_one_of(ranks: Sequence[Rank]) -> ColumnElement[bool]:
    """Return the condition on queued jobs with one of some consecutive ranks, highest first."""
    conditions = []
    for keeps_room in (True, False):
        priorities = [rank.priority for rank in ranks if rank.keeps_room is keeps_room]
        if priorities:
            bounds = Job.priority.between(priorities[-1], priorities[0])
            conditions.append(and_(Job.preemptible.is_(not keeps_room), bounds))
    return and_(Job.status == JobStatus.QUEUED, or_(*conditions))


def _has_rank(rank: Rank) -> tuple[Any, ...]:
    is_queued = Job.status == JobStatus.QUEUED
    return is_queued, Job.preemptible.is_(not rank.keeps_room), Job.priority == rank.priority


def weights(session: Session) -> dict[str, float]:
    """Return the weights of tenants that have a row."""
    return {row.name: row.weight for row in session.execute(select(Tenant.name, Tenant.weight))}


def demand_of(session: Session, job_id: str, workers: int | None) -> Demand:
    """Return the demand of a job; what its numbers state, if its spec cannot be read.

    Args:
        workers: their number, if not that of the spec.
    """
    return _resources(session, [job_id])[job_id].of(workers)


def candidates(session: Session, taken: Sequence[Running]) -> list[Candidate]:
    """Return the attempts that may be preempted: they train, and nobody has asked them to stop."""
    held = {each.job_id: each for each in taken if each.job_id is not None}
    saved = (
        select(func.max(Checkpoint.created_at))
        .where(Checkpoint.job_id == Attempt.job_id, Checkpoint.attempt == Attempt.number)
        .scalar_subquery()
    )
    columns = (Job.id, Attempt.number, Job.preemptible, Job.priority, Attempt.created_at)
    rows = session.execute(
        select(*columns, saved.label("saved"))
        .join(Attempt, Attempt.job_id == Job.id)
        .where(
            Attempt.state == AttemptState.RUNNING,
            Attempt.progress_reported_at.is_not(None),
            Attempt.stop_reason.is_(None),
            Job.desired == Desired.RUN,
        )
    )
    return [
        Candidate(
            row.id,
            row.number,
            Rank(not row.preemptible, row.priority),
            unsaved_since=row.saved or row.created_at,
            started_at=row.created_at,
            holds=held[row.id],
        )
        for row in rows
        if row.id in held
    ]


def _positions(
    session: Session, limit: int, after: QueuePosition | None, without: Collection[str]
) -> list[QueuePosition]:
    """Return the positions of queued jobs in their order.

    Ranks with few jobs are read together, and one with many alone, of which an index has the order: a long
    queue is not sorted whole.
    """
    counts = _count_by_rank(session)
    positions: list[QueuePosition] = []
    if after is not None:
        started = Rank(not after.preemptible, after.priority)
        own = select(Job.id).where(*_has_rank(started), Job.id > after.job_id)
        ids = session.scalars(own.where(Job.id.not_in(without)).order_by(Job.id).limit(limit))
        positions += [after._replace(job_id=job_id) for job_id in ids]
        counts = {rank: count for rank, count in counts.items() if rank < started}
    for ranks in _spans(counts, limit + len(without)):
        if len(positions) == limit:
            break
        columns = Job.preemptible, Job.priority, Job.id
        query = select(*columns).where(_has_one_of(ranks), Job.id.not_in(without))
        if len(ranks) == 1:
            query = query.order_by(Job.id).limit(limit)
        found = [QueuePosition(*row) for row in session.execute(query)]
        found.sort(key=lambda position: position.key)
        positions += found[: limit - len(positions)]
    return positions


def _count_by_rank(session: Session) -> dict[Rank, int]:
    """Count the queued jobs of each rank, highest first."""
    columns = Job.preemptible, Job.priority
    query = select(*columns, func.count()).where(Job.status == JobStatus.QUEUED)
    rows = session.execute(query.group_by(*columns))
    counts = {Rank(not preemptible, priority): count for preemptible, priority, count in rows}
    return {rank: counts[rank] for rank in sorted(counts, reverse=True)}


def _spans(counts: Mapping[Rank, int], most: int) -> Iterator[list[Rank]]:
    """Divide ranks into spans with at most so many jobs, or of one rank."""
    span: list[Rank] = []
    left = most
    for rank, count in counts.items():
        if span and count > left:
            yield span
            span, left = [], most
        span.append(rank)
        left -= count
    if span:
        yield span


def is_queue_full(session: Session, count: int) -> bool:
    """Whether at least `count` jobs are queued."""
    some = select(Job.id).where(Job.status == JobStatus.QUEUED).limit(count)
    return session.scalar(select(func.count()).select_from(some.subquery())) == count


def why_unreadable(session: Session, job_ids: Sequence[str]) -> dict[str, str]:
    """Return, for each of these jobs whose spec cannot be read, why."""
    resources = _resources(session, job_ids)
    return {
        job_id: each.why_unreadable for job_id, each in resources.items() if each.why_unreadable
    }


def running(session: Session, now: datetime) -> list[Running]:
    """Return the resources that live attempts hold, and the latest time at which each ends.

    Attempts with a request to stop may end at any moment. Jobs that wait for a retry keep their
    resources: after a killed rank, a younger job that may run for a day must not go first.
    """
    of_job = (Job.desired, Job.token_id, Job.tenant, Job.max_hours)
    columns = (Job.id, Attempt.number, *of_job, func.coalesce(Attempt.workers, Job.workers))
    rows = session.execute(
        select(*columns, Attempt.stop_reason, Attempt.created_at, Attempt.state)
        .join(Attempt, Attempt.job_id == Job.id)
        .where(Attempt.state.in_(LIVE_ATTEMPT))
    ).all()
    between = session.execute(
        select(
            Job.id,
            null(),
            *of_job,
            # As many as its last attempt had.
            func.coalesce(Attempt.workers, Job.workers),
            null(),
            Job.not_before,
            null(),
        )
        .join(Attempt, (Attempt.job_id == Job.id) & (Attempt.number == Job.attempt), isouter=True)
        .where(Job.status == JobStatus.RETRY_WAIT)
    ).all()
    resources = _resources(session, [row.id for row in (*rows, *between)])
    used = _time_used(session, [row.id for row in (*rows, *between)])
    # Only an attempt whose driver has reported can have ranks.
    placements = _placements(
        session, [(row.id, row.number) for row in rows if row.state == AttemptState.RUNNING]
    )
    jobs = []
    for row in (*rows, *between):
        job_id, number, desired, token_id, tenant, max_hours, workers, stop_reason, began_at, _ = (
            row
        )
        assert began_at is not None
        held = resources[job_id]
        ends_by = began_at + held.limit(max_hours) - used.get(job_id, timedelta())
        stops = desired != Desired.RUN or stop_reason is not None
        at = now if stops else max(now, ends_by)
        placement = None if number is None else placements.get((job_id, number))
        holding = _holding(held.of(workers), at, token_id, placement)
        jobs.append(replace(holding, tenant=tenant, job_id=job_id))
    return jobs


def attempts_on(session: Session, nodes: Collection[str]) -> set[tuple[str, int]]:
    """Return the running attempts with a rank on one of these nodes, which are given by id."""
    rows = session.execute(
        select(Attempt.job_id, Attempt.number).where(Attempt.state == AttemptState.RUNNING)
    )
    placements = _placements(session, [(row.job_id, row.number) for row in rows])
    return {attempt for attempt, placement in placements.items() if placement.keys() & set(nodes)}


def drains(session: Session) -> list[Drain]:
    """Return the drained nodes, by name."""
    return list(session.scalars(select(Drain).order_by(Drain.node)))


def drained(session: Session) -> set[str]:
    """Return the ids, names or addresses of drained nodes."""
    return set(session.scalars(select(Drain.node)))


def excluded_nodes(session: Session, resources: Resources) -> list[str]:
    """Return the ids of the nodes that must get no rank of a job, as far as they are known."""
    found = snapshot(session)
    if found is None:
        return []
    cluster = with_drains(Cluster(nodes_of(found)), drained(session))
    return [
        node.id for node in cluster.nodes if node.drained or node.is_named(resources.exclude_nodes)
    ]


def _holding(
    demand: Demand, ends_by: datetime, token_id: str | None, placement: Placement | None
) -> Running:
    # A placement of other workers than the demand's would miscount the nodes.
    if placement is not None and sum(placement.values()) != demand.workers:
        placement = None
    return Running(demand, ends_by, token_id, placement)


def resources_in_use(session: Session, now: datetime) -> list[Running]:
    """Return all resources that admission counts as taken: of `running`, and of ended attempts.

    An ended attempt counts until its driver is gone, but no longer against a quota. A job that waits
    for a retry counts once.
    """
    ended = [each for each in ended_attempts(session) if each.status != JobStatus.RETRY_WAIT]
    placements = _placements(session, [(each.job_id, each.number) for each in ended])
    return running(session, now) + [
        _holding(each.demand, now, None, placements.get((each.job_id, each.number)))
        for each in ended
    ]


# A cache: the ranks of an attempt stay where they are.
_placement_by_attempt: dict[tuple[str, int], Placement] = {}


def _placements(
    session: Session, attempts: Collection[tuple[str, int]]
) -> dict[tuple[str, int], Placement]:
    """Return the nodes of the ranks of attempts, of those that have reported them."""
    missing = {
        job_id for job_id, number in attempts if (job_id, number) not in _placement_by_attempt
    }
    if missing:
        if len(_placement_by_attempt) > _MAX_CACHED:
            _placement_by_attempt.clear()
        events = select(Event.job_id, Event.data).where(
            Event.job_id.in_(missing), Event.type == PLACEMENT
        )
        for job_id, stored in session.execute(events):
            try:
                data = PlacementData.model_validate(stored)
            except ValidationError as error:  # an API of another version took it
                logger.warning("The placement of job %s cannot be read: %s", job_id, error)
            else:
                _placement_by_attempt[job_id, data.attempt] = placement_of(data)
    return {
        attempt: _placement_by_attempt[attempt]
        for attempt in attempts
        if attempt in _placement_by_attempt
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

    def limit(self, max_hours: float | None) -> timedelta:
        """Return the time limit; `max_hours` of the job replaces that of its spec."""
        return self.limit_of_spec if max_hours is None else timedelta(hours=max_hours)

    def of(self, workers: int | None) -> Demand:
        """Return the demand; `workers` of the job or attempt replaces that of its spec."""
        return self.demand if workers is None else self.demand._replace(workers=workers)

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

_MAX_CACHED, _BATCH = 100_000, 1000


def _resources(session: Session, job_ids: Sequence[str]) -> dict[str, _Resources]:
    cached = {job_id: _resources_by_job.get(job_id) for job_id in job_ids}
    missing = [job_id for job_id, resources in cached.items() if resources is None]
    loaded: dict[str, _Resources] = {}
    for start in range(0, len(missing), _BATCH):
        batch = Job.id.in_(missing[start : start + _BATCH])
        for row in session.execute(select(Job.id, Job.resolved, Job.spec_version).where(batch)):
            loaded[row.id] = _read_resources(*row)
    if len(_resources_by_job) > _MAX_CACHED:
        _resources_by_job.clear()
    _resources_by_job.update(loaded)
    return {job_id: cached[job_id] or loaded[job_id] for job_id in cached}


def _read_resources(job_id: str, resolved: object, version: int) -> _Resources:
    try:
        resources = versions.load_resources(resolved, version)
    except UnreadableSpec as error:
        logger.error("The spec of job %s cannot be used: %s", job_id, error)
        return _Resources(_plain_demand(resolved), _NO_LIMIT, str(error))
    train = resolved["train"] if isinstance(resolved, dict) else {}
    return _Resources(
        Demand.of(resources),
        timedelta(hours=resources.max_hours),
        fewest=resources.min_workers,
        batch=(train["batch_size"], train["micro_batches"]) if resources.min_workers else (0, 1),
    )


def _plain_demand(resolved: object) -> Demand:
    """Return the demand that the numbers of an unreadable spec state; zero if they are not plausible."""
    resources = resolved.get("resources") if isinstance(resolved, dict) else None
    if not isinstance(resources, dict):
        return _NOTHING
    workers, cpus, gpus = (
        resources.get(name) for name in ("workers", "cpus_per_worker", "gpus_per_worker")
    )
    if not (_is_count(workers) and _is_count(cpus) and _is_count(gpus)):
        return _NOTHING
    return Demand(workers, Worker(cpus, gpus))


def _is_count(value: object) -> TypeGuard[int]:
    """Whether a value is an integer in the range of `workers`, the widest one."""
    return type(value) is int and 0 <= value <= 4096


def _time_used(session: Session, job_ids: Sequence[str]) -> dict[str, timedelta]:
    """Return the total run time of each job's ended attempts."""
    used: dict[str, timedelta] = {}
    for start in range(0, len(job_ids), _BATCH):
        batch = Attempt.job_id.in_(job_ids[start : start + _BATCH])
        rows = session.execute(
            select(Attempt.job_id, func.sum(Attempt.ran_seconds))
            .where(batch, Attempt.state.not_in(LIVE_ATTEMPT))
            .group_by(Attempt.job_id)
        )
        used |= {job_id: timedelta(seconds=seconds) for job_id, seconds in rows}
    return used


# Columns instead of rows: the specs of a job are large and not needed here.
_ATTEMPTS = select(
    Attempt.job_id,
    Attempt.number,
    Attempt.submission_id,
    Attempt.state,
    Attempt.created_at,
    Attempt.heartbeat_at,
    Attempt.progress_reported_at,
    Attempt.progressed_at,
    Attempt.ran_seconds,
    Attempt.finished_at,
    Attempt.error,
    Job.status,
    Job.desired,
    Job.started_at,
    Job.max_hours,
    func.coalesce(Attempt.workers, Job.workers).label("workers"),
    Attempt.stop_reason,
    Attempt.stop_requested_at,
).join(Job, Job.id == Attempt.job_id)


def _attempts(session: Session, query: Select[*tuple[Any, ...]]) -> list[AttemptView]:
    rows = session.execute(query).all()
    resources = _resources(session, [row.job_id for row in rows])
    return [
        AttemptView(
            owner=row.job_id,
            number=row.number,
            submission_id=row.submission_id,
            state=AttemptState(row.state),
            created_at=row.created_at,
            heartbeat_at=row.heartbeat_at,
            progress_reported_at=row.progress_reported_at,
            progressed_at=row.progressed_at,
            ran=timedelta(seconds=row.ran_seconds),
            finished_at=row.finished_at,
            status=JobStatus(row.status),
            desired=Desired(row.desired),
            stop_reason=row.stop_reason and StopReason(row.stop_reason),
            stop_requested_at=row.stop_requested_at,
            job_started_at=row.started_at,
            demand=resources[row.job_id].of(row.workers),
            limit=resources[row.job_id].limit(row.max_hours),
            has_error=row.error is not None and "log_tail" not in row.error,
        )
        for row in rows
    ]


_ROW = 1


def snapshot(session: Session) -> ClusterSnapshot | None:
    """Return the last snapshot of the cluster; `None` before the first."""
    return session.get(ClusterSnapshot, _ROW)


def save_snapshot(session: Session, snapshot: ClusterSnapshot) -> None:
    """Replace the snapshot; sets its id."""
    snapshot.id = _ROW
    session.merge(snapshot)


def nodes_of(snapshot: ClusterSnapshot) -> tuple[Node, ...]:
    """Return the nodes of a snapshot, with their details unless a dispatcher without them wrote it."""
    details, known = snapshot.node_details or {}, Node.__dataclass_fields__.keys()
    nodes = ({**node, **details.get(node["id"], {})} for node in snapshot.nodes)
    # A newer dispatcher may know more of a node.
    return tuple(Node(**{name: node[name] for name in node.keys() & known}) for node in nodes)


def split_node(node: Node) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parts of a node for `nodes` and `node_details` of a snapshot."""
    values = {name: value for name, value in vars(node).items() if name != "drained"}
    return {name: values.pop(name) for name in _PLAIN}, {**values, "labels": dict(node.labels)}


_PLAIN = ("id", "address", "total_cpus", "total_gpus", "used_cpus", "used_gpus")
