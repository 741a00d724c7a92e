"""SQL of scheduling: queued jobs, jobs that hold resources, and the last snapshot of the cluster.

Nothing here commits; the caller's transaction does.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeGuard

from pydantic import ValidationError
from sqlalchemy import CTE, ColumnElement, Select, case, func, literal, null, select, tuple_
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
from service.scheduling.fair_share import Account
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


class Entry(NamedTuple):
    """A queued job, as far as its place in the queue depends on it."""

    rank: Rank
    account: Account
    job_id: str


def front(session: Session, preemptible: bool, limit: int, below: int | None = None) -> list[Entry]:
    """Return the jobs of a class that have the highest priorities; of the lowest of these, any.

    Args:
        limit: number of jobs to read.
        below: read the jobs of lower priority than this.
    """
    # The order of an index, which has no other order within a priority.
    order = [column.desc() for column in (Job.priority, Job.tenant, Job.token_id, Job.id)]
    query = (
        select(Job.priority, Job.tenant, Job.token_id, Job.id)
        .where(Job.status == JobStatus.QUEUED, Job.preemptible.is_(preemptible))
        .order_by(*order)
        .limit(limit)
    )
    if below is not None:
        query = query.where(Job.priority < below)
    return [
        Entry(Rank(not preemptible, priority), Account(tenant, token_id), job_id)
        for priority, tenant, token_id, job_id in session.execute(query)
    ]


def first_of_accounts(
    session: Session, rank: Rank, limit: int
) -> tuple[dict[Account, list[str]], int]:
    """Return about `limit` queued jobs of a rank, the oldest of each account, and the most of one.

    One statement, which reads few more rows of the index than it returns: it jumps from account to account,
    and then from job to job of each.
    """
    accounts = _accounts(rank)
    number_of_accounts = select(func.count()).select_from(accounts).scalar_subquery()
    first = select(
        accounts.c.tenant,
        accounts.c.token_id,
        _oldest(rank, accounts).label("id"),
        literal(1).label("number"),
    ).cte("account_jobs", recursive=True)
    jobs = first.union_all(
        select(
            first.c.tenant,
            first.c.token_id,
            _oldest(rank, first, Job.id > first.c.id),
            first.c.number + 1,
        ).where(first.c.id.is_not(None), first.c.number * number_of_accounts < limit)
    )
    found: dict[Account, list[str]] = {}
    most = 1
    query = select(jobs.c.tenant, jobs.c.token_id, jobs.c.id, number_of_accounts)
    for tenant, token_id, job_id, count in session.execute(query):
        most = max(1, -(-limit // count))
        if job_id is not None:
            found.setdefault(Account(tenant, token_id), []).append(job_id)
    return {account: sorted(ids) for account, ids in found.items()}, most


def _accounts(rank: Rank) -> CTE:
    """Return a table of the accounts with jobs of a rank, and one without token for each tenant."""
    has_rank = _has_rank(rank)
    least = select(func.min(Job.tenant).label("tenant")).where(*has_rank)
    first = least.cte("tenants", recursive=True)
    following = select(func.min(Job.tenant)).where(*has_rank, Job.tenant > first.c.tenant)
    tenants = first.union_all(
        select(following.scalar_subquery()).where(first.c.tenant.is_not(None))
    )
    tokens = select(func.min(Job.token_id)).where(*has_rank)
    first_token = tokens.where(Job.tenant == tenants.c.tenant).scalar_subquery()
    account = (
        select(tenants.c.tenant, first_token.label("token_id"))
        .where(tenants.c.tenant.is_not(None))
        .cte("accounts", recursive=True)
    )
    next_token = tokens.where(
        Job.tenant == account.c.tenant, Job.token_id > account.c.token_id
    ).scalar_subquery()
    # The last one of each tenant is null, which stands for its jobs without a token.
    return account.union_all(
        select(account.c.tenant, next_token).where(account.c.token_id.is_not(None))
    )


def _oldest(rank: Rank, account: CTE, *among: ColumnElement[bool]) -> ColumnElement[str | None]:
    """Return the oldest job of a rank and an account, a row of a table."""
    own = select(func.min(Job.id)).where(*_has_rank(rank), Job.tenant == account.c.tenant, *among)
    # Two branches, because PostgreSQL uses no index for IS NOT DISTINCT FROM.
    with_token = own.where(Job.token_id == account.c.token_id).scalar_subquery()
    without = own.where(Job.token_id.is_(None)).scalar_subquery()
    return case((account.c.token_id.is_(None), without), else_=with_token)


def next_of_account(
    session: Session, rank: Rank, account: Account, after: str, limit: int
) -> Sequence[str]:
    """Return the queued jobs of an account and rank behind one of them, oldest first."""
    own = Job.tenant == account.tenant, Job.token_id == account.token_id, Job.id > after
    query = select(Job.id).where(*_has_rank(rank), *own).order_by(Job.id).limit(limit)
    return session.scalars(query).all()


def demands(session: Session, job_ids: Sequence[str]) -> dict[str, Demand]:
    """Return the demand of jobs; what its numbers state, for one whose spec cannot be read."""
    changed = select(Job.id, Job.workers).where(Job.id.in_(job_ids), Job.workers.is_not(None))
    workers = {row.id: row.workers for row in session.execute(changed)} if job_ids else {}
    resources = _resources(session, job_ids)
    return {job_id: each.of(workers.get(job_id)) for job_id, each in resources.items()}


def demand_of(session: Session, job_id: str, workers: int | None) -> Demand:
    """Return the demand of a job; what its numbers state, if its spec cannot be read.

    Args:
        workers: their number, if not that of the spec.
    """
    return _resources(session, [job_id])[job_id].of(workers)


def _has_rank(rank: Rank) -> tuple[Any, ...]:
    is_queued = Job.status == JobStatus.QUEUED
    return is_queued, Job.preemptible.is_(not rank.keeps_room), Job.priority == rank.priority


def weights(session: Session) -> dict[str, float]:
    """Return the weights of tenants that have a row."""
    return {row.name: row.weight for row in session.execute(select(Tenant.name, Tenant.weight))}


def candidates(session: Session, taken: Sequence[Running]) -> list[Candidate]:
    """Return the attempts that may be preempted: they train, and have no request to stop."""
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
    """Return the positions of queued jobs in their order, with a few statements for any number of ranks."""
    positions: list[QueuePosition] = []
    for preemptible in (False, True):
        below = None
        if after is not None and after.preemptible > preemptible:
            continue
        if after is not None and after.preemptible == preemptible:
            below = after.priority
            rank = Rank(not preemptible, below)
            positions += _of_rank(session, rank, limit - len(positions), after.job_id, without)
        if len(positions) >= limit:
            break
        read = limit - len(positions) + len(without)
        entries = front(session, preemptible, read, below)
        # Only some jobs of the lowest rank were read, and perhaps not the oldest.
        cut = entries[-1].rank if len(entries) == read else None
        places = [
            QueuePosition(preemptible, each.rank.priority, each.job_id)
            for each in entries
            if each.rank != cut and each.job_id not in without
        ]
        positions += sorted(places, key=lambda place: (-place.priority, place.job_id))
        if cut is not None and len(positions) < limit:
            positions += _of_rank(session, cut, limit - len(positions), "", without)
    return positions[:limit]


def _of_rank(
    session: Session, rank: Rank, limit: int, after: str, without: Collection[str]
) -> list[QueuePosition]:
    """Return the positions of jobs of one rank, oldest first."""
    behind = Job.id > after, Job.id.not_in(without)
    ids = select(Job.id).where(*_has_rank(rank), *behind).order_by(Job.id).limit(limit)
    return [
        QueuePosition(not rank.keeps_room, rank.priority, each) for each in session.scalars(ids)
    ]


def is_queue_full(session: Session, count: int) -> bool:
    """Whether at least `count` jobs are queued."""
    return len(_positions(session, count, None, ())) == count


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
    demand, limit = Demand.of(resources), timedelta(hours=resources.max_hours)
    batch = _batch(resolved) if resources.min_workers else None
    if batch is None:
        return _Resources(demand, limit)
    return _Resources(demand, limit, fewest=resources.min_workers, batch=batch)


def _batch(resolved: object) -> tuple[int, int] | None:
    """Return the batch size and the number of micro-batches of a stored spec; `None` if they cannot be read."""
    train = resolved.get("train") if isinstance(resolved, dict) else None
    if not isinstance(train, dict):
        return None
    size, parts = train.get("batch_size"), train.get("micro_batches")
    return (size, parts) if type(size) is int and type(parts) is int and parts > 0 else None


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
