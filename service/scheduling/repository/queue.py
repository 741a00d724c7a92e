"""SQL of the queue: queued jobs in their order, with the input of admission."""

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import CTE, ColumnElement, bindparam, func, literal, select
from sqlalchemy.orm import Session

from service.db.models import Job, Tenant, Token
from service.scheduling.admission import Queued
from service.scheduling.fair_share import Account
from service.scheduling.preemption import Rank
from service.scheduling.quota import Quota
from service.scheduling.repository.failures import nodes_to_avoid
from service.scheduling.repository.resources import load_resources, time_used
from service.states import Desired, JobStatus


class QueuePosition(NamedTuple):
    """A position in the order of rank and age."""

    preemptible: bool
    priority: int
    job_id: str


def queued(
    session: Session,
    limit: int,
    after: QueuePosition | None = None,
    without: Collection[str] = (),
) -> tuple[list[Queued], QueuePosition | None]:
    """Return queued jobs by rank, then oldest first, and the position of the last; `None` if the queue ends here.

    Jobs with an unreadable spec are left out (`why_unreadable`).

    Args:
        limit: number of jobs to read.
        after: read the jobs behind this position.
        without: ids of jobs to leave out.
    """
    part = _positions(session, limit, after, without)
    jobs = load_queued(session, [position.job_id for position in part])
    return jobs, part[-1] if len(part) == limit else None


_QUEUED = (
    select(
        Job.id,
        Job.desired,
        Job.attempt,
        Job.account_id,
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
    .where(Job.id.in_(bindparam("job_ids", expanding=True)))
)


def load_queued(session: Session, job_ids: Sequence[str]) -> list[Queued]:
    """Return queued jobs in the given order, without jobs that must not run or cannot be read."""
    rows = session.execute(_QUEUED, {"job_ids": job_ids}).all() if job_ids else []
    place = {job_id: index for index, job_id in enumerate(job_ids)}
    rows = sorted(rows, key=lambda row: place[row.id])
    used = time_used(session, [row.id for row in rows if row.attempt])
    resources = load_resources(session, [row.id for row in rows])
    avoided = nodes_to_avoid(session, {row.id: row.attempt for row in rows if row.attempt})
    return [
        Queued(
            row.id,
            row.attempt,
            resources[row.id].with_workers(row.workers),
            max_runtime=max(
                timedelta(), resources[row.id].limit(row.max_hours) - used.get(row.id, timedelta())
            ),
            account_id=row.account_id,
            quota=Quota(row.max_running_jobs, row.max_gpus),
            smaller=resources[row.id].smaller(row.workers) if row.attempt else (),
            tenant=row.tenant,
            tenant_quota=Quota(row.tenant_jobs, row.tenant_gpus),
            priority=row.priority,
            preemptible=row.preemptible,
            avoided=avoided[row.id].nodes if row.id in avoided else frozenset(),
            avoids_until=avoided[row.id].until if row.id in avoided else None,
            automatic=resources[row.id].automatic,
        )
        for row in rows
        if row.desired == Desired.RUN and not resources[row.id].why_unreadable
    ]


class Entry(NamedTuple):
    """A queued job, with what decides its place in the queue."""

    rank: Rank
    account: Account
    job_id: str


# Built once, because each round needs it and SQLAlchemy takes longer to build a statement than to run it.
_FRONT = {
    preemptible: select(Job.priority, Job.tenant, Job.account_id, Job.id)
    .where(Job.status == JobStatus.QUEUED, Job.preemptible.is_(preemptible))
    # The order of an index, which has no other order within a priority.
    .order_by(Job.priority.desc(), Job.tenant.desc(), Job.account_id.desc(), Job.id.desc())
    .limit(bindparam("limit"))
    for preemptible in (False, True)
}


def front(session: Session, preemptible: bool, limit: int, below: int | None = None) -> list[Entry]:
    """Return the jobs of a class with the highest priorities; among the lowest of these priorities, any jobs.

    Args:
        limit: number of jobs to read.
        below: read only jobs of a lower priority than this.
    """
    query = _FRONT[preemptible]
    if below is not None:
        query = query.where(Job.priority < below)
    return [
        Entry(Rank(not preemptible, priority), Account(tenant, account_id), job_id)
        for priority, tenant, account_id, job_id in session.execute(query, {"limit": limit})
    ]


def first_per_account(
    session: Session, rank: Rank, limit: int
) -> tuple[dict[Account, list[str]], int]:
    """Return about `limit` queued jobs of a rank, the oldest of each account, and the limit per account.

    A single statement reads few more index rows than it returns: it skips from account to account, and then
    from job to job within each.
    """
    accounts = _accounts(rank)
    number_of_accounts = select(func.count(accounts.c.account_id)).scalar_subquery()
    oldest = select(
        accounts.c.tenant,
        accounts.c.account_id,
        _oldest(rank, accounts).label("id"),
        literal(1).label("number"),
    ).where(accounts.c.account_id.is_not(None))
    first = oldest.cte("account_jobs", recursive=True)
    jobs = first.union_all(
        select(
            first.c.tenant,
            first.c.account_id,
            _oldest(rank, first, Job.id > first.c.id),
            first.c.number + 1,
        ).where(first.c.id.is_not(None), first.c.number * number_of_accounts < limit)
    )
    found: dict[Account, list[str]] = {}
    most = 1
    query = select(jobs.c.tenant, jobs.c.account_id, jobs.c.id, number_of_accounts)
    for tenant, account_id, job_id, count in session.execute(query):
        most = max(1, -(-limit // count))
        if job_id is not None:
            found.setdefault(Account(tenant, account_id), []).append(job_id)
    return {account: sorted(ids) for account, ids in found.items()}, most


def _accounts(rank: Rank) -> CTE:
    """Return a table of the accounts with jobs of a rank, and for each tenant a row without account."""
    has_rank = _has_rank(rank)
    least = select(func.min(Job.tenant).label("tenant")).where(*has_rank)
    first = least.cte("tenants", recursive=True)
    following = select(func.min(Job.tenant)).where(*has_rank, Job.tenant > first.c.tenant)
    tenants = first.union_all(
        select(following.scalar_subquery()).where(first.c.tenant.is_not(None))
    )
    ids = select(func.min(Job.account_id)).where(*has_rank)
    first_account = ids.where(Job.tenant == tenants.c.tenant).scalar_subquery()
    account = (
        select(tenants.c.tenant, first_account.label("account_id"))
        .where(tenants.c.tenant.is_not(None))
        .cte("accounts", recursive=True)
    )
    next_account = ids.where(
        Job.tenant == account.c.tenant, Job.account_id > account.c.account_id
    ).scalar_subquery()
    # The last row of each tenant is null.
    return account.union_all(
        select(account.c.tenant, next_account).where(account.c.account_id.is_not(None))
    )


def _oldest(rank: Rank, account: CTE, *among: ColumnElement[bool]) -> ColumnElement[str | None]:
    """Return the oldest job of a rank and of an account, which is a row of a table."""
    own = Job.tenant == account.c.tenant, Job.account_id == account.c.account_id
    return select(func.min(Job.id)).where(*_has_rank(rank), *own, *among).scalar_subquery()


def next_in_account(
    session: Session, rank: Rank, account: Account, after: str, limit: int
) -> Sequence[str]:
    """Return the queued jobs of an account and rank after the job `after`, oldest first."""
    own = Job.tenant == account.tenant, Job.account_id == account.id, Job.id > after
    query = select(Job.id).where(*_has_rank(rank), *own).order_by(Job.id).limit(limit)
    return session.scalars(query).all()


def _has_rank(rank: Rank) -> tuple[Any, ...]:
    is_queued = Job.status == JobStatus.QUEUED
    return is_queued, Job.preemptible.is_(not rank.keeps_room), Job.priority == rank.priority


def weights(session: Session) -> dict[str, float]:
    """Return the weights of tenants that have a row."""
    return {row.name: row.weight for row in session.execute(select(Tenant.name, Tenant.weight))}


def _positions(
    session: Session, limit: int, after: QueuePosition | None, without: Collection[str]
) -> list[QueuePosition]:
    """Return the positions of queued jobs in order, with few statements for any number of ranks."""
    positions: list[QueuePosition] = []
    for preemptible in (False, True):
        below = None
        if after is not None and after.preemptible > preemptible:
            continue
        if after is not None and after.preemptible == preemptible:
            below = after.priority
            rank = Rank(not preemptible, below)
            positions += _positions_in_rank(
                session, rank, limit - len(positions), after.job_id, without
            )
        if len(positions) >= limit:
            break
        read = limit - len(positions) + len(without)
        entries = front(session, preemptible, read, below)
        # Only some jobs of the lowest rank were read, perhaps without the oldest.
        cut = entries[-1].rank if len(entries) == read else None
        places = [
            QueuePosition(preemptible, each.rank.priority, each.job_id)
            for each in entries
            if each.rank != cut and each.job_id not in without
        ]
        positions += sorted(places, key=lambda place: (-place.priority, place.job_id))
        if cut is not None and len(positions) < limit:
            positions += _positions_in_rank(session, cut, limit - len(positions), "", without)
    return positions[:limit]


def _positions_in_rank(
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
