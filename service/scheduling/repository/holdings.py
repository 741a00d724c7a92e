"""SQL of the jobs that hold resources: what each holds, where, and until when at most."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from pydantic import ValidationError
from sqlalchemy import func, null, select
from sqlalchemy.orm import Session

from service.db.models import Attempt, Checkpoint, Event, Job
from service.protocol import PLACEMENT, PlacementData
from service.scheduling.admission import Running
from service.scheduling.occupancy import Placement, placement_of
from service.scheduling.packing import Demand
from service.scheduling.preemption import Candidate, Rank
from service.scheduling.repository.attempts import avoided_nodes, ended_attempts
from service.scheduling.repository.resources import MAX_CACHED, resources_of, time_used
from service.states import LIVE_ATTEMPT, AttemptState, Desired, JobStatus

logger = logging.getLogger(__name__)


# Each round of the dispatcher needs these. SQLAlchemy takes longer to build a statement than to run it.
_CANDIDATES = (
    select(
        Job.id,
        Attempt.number,
        Job.preemptible,
        Job.priority,
        Attempt.created_at,
        select(func.max(Checkpoint.created_at))
        .where(Checkpoint.job_id == Attempt.job_id, Checkpoint.attempt == Attempt.number)
        .scalar_subquery()
        .label("saved"),
    )
    .join(Attempt, Attempt.job_id == Job.id)
    .where(
        Attempt.state == AttemptState.RUNNING,
        Attempt.progress_reported_at.is_not(None),
        Attempt.stop_reason.is_(None),
        Job.desired == Desired.RUN,
    )
)
_OF_JOB = (Job.desired, Job.account_id, Job.tenant, Job.max_hours)
_WORKERS = func.coalesce(Attempt.workers, Job.workers)
_LIVE = (
    select(
        Job.id,
        Attempt.number,
        *_OF_JOB,
        _WORKERS,
        Attempt.stop_reason,
        Attempt.created_at,
        Attempt.state,
    )
    .join(Attempt, Attempt.job_id == Job.id)
    .where(Attempt.state.in_(LIVE_ATTEMPT))
)
# With as many workers as the last attempt had.
_BETWEEN_ATTEMPTS = (
    select(Job.id, null(), *_OF_JOB, _WORKERS, null(), Job.not_before, null())
    .join(Attempt, (Attempt.job_id == Job.id) & (Attempt.number == Job.attempt), isouter=True)
    .where(Job.status == JobStatus.RETRY_WAIT)
)


def candidates(session: Session, taken: Sequence[Running]) -> list[Candidate]:
    """Return the attempts that may be preempted: they train, and have no request to stop."""
    held = {each.job_id: each for each in taken if each.job_id is not None}
    return [
        Candidate(
            row.id,
            row.number,
            Rank(not row.preemptible, row.priority),
            unsaved_since=row.saved or row.created_at,
            started_at=row.created_at,
            holds=held[row.id],
        )
        for row in session.execute(_CANDIDATES)
        if row.id in held
    ]


def running(session: Session, now: datetime) -> list[Running]:
    """Return the resources that live attempts hold, and the latest time at which each ends.

    Attempts with a request to stop may end at any moment. Jobs that wait for a retry keep their
    resources: after a killed rank, a younger job that may run for a day must not go first.
    """
    rows = session.execute(_LIVE).all()
    between = session.execute(_BETWEEN_ATTEMPTS).all()
    resources = resources_of(session, [row.id for row in (*rows, *between)])
    used = time_used(session, [row.id for row in (*rows, *between)])
    # Only an attempt whose driver has reported can have ranks.
    placed = placements(
        session, [(row.id, row.number) for row in rows if row.state == AttemptState.RUNNING]
    )
    jobs = []
    for row in (*rows, *between):
        (
            job_id,
            number,
            desired,
            account_id,
            tenant,
            max_hours,
            workers,
            stop_reason,
            began_at,
            _,
        ) = row
        assert began_at is not None
        held = resources[job_id]
        ends_by = began_at + held.limit(max_hours) - used.get(job_id, timedelta())
        stops = desired != Desired.RUN or stop_reason is not None
        at = now if stops else max(now, ends_by)
        demand, placement = held.of(workers), None
        if number is not None:
            placement = placed.get((job_id, number))
            demand = demand.without(avoided_nodes(session, job_id, number))
        holding = _holding(demand, at, account_id, placement)
        jobs.append(replace(holding, tenant=tenant, job_id=job_id))
    return jobs


def attempts_on(session: Session, nodes: Collection[str]) -> set[tuple[str, int]]:
    """Return the running attempts with a rank on one of these nodes, which are given by id."""
    rows = session.execute(
        select(Attempt.job_id, Attempt.number).where(Attempt.state == AttemptState.RUNNING)
    )
    placed = placements(session, [(row.job_id, row.number) for row in rows])
    return {attempt for attempt, placement in placed.items() if placement.keys() & set(nodes)}


def _holding(
    demand: Demand, ends_by: datetime, account_id: str | None, placement: Placement | None
) -> Running:
    # A placement of other workers than the demand's would miscount the nodes.
    if placement is not None and sum(placement.values()) != demand.workers:
        placement = None
    return Running(demand, ends_by, account_id, placement)


def resources_in_use(session: Session, now: datetime) -> list[Running]:
    """Return all resources that admission counts as taken: of `running`, and of ended attempts.

    An ended attempt counts until its driver is gone, but no longer against a quota. A job that waits
    for a retry counts once.
    """
    ended = [each for each in ended_attempts(session) if each.status != JobStatus.RETRY_WAIT]
    placed = placements(session, [(each.job_id, each.number) for each in ended])
    return running(session, now) + [
        _holding(each.demand, now, None, placed.get((each.job_id, each.number))) for each in ended
    ]


# A cache: the ranks of an attempt stay where they are.
_placement_by_attempt: dict[tuple[str, int], Placement] = {}


def placements(
    session: Session, attempts: Collection[tuple[str, int]]
) -> dict[tuple[str, int], Placement]:
    """Return the nodes of the ranks of attempts, of those that have reported them."""
    missing = {
        job_id for job_id, number in attempts if (job_id, number) not in _placement_by_attempt
    }
    if missing:
        if len(_placement_by_attempt) > MAX_CACHED:
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
