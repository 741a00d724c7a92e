"""SQL of the jobs that hold resources: their demand, nodes and latest end."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

from service.db.models import Attempt, Checkpoint, Event, Job
from service.protocol import PLACEMENT, PlacementData
from service.scheduling.admission import Running
from service.scheduling.occupancy import Placement, read_placement
from service.scheduling.packing import Demand
from service.scheduling.preemption import Candidate, Rank
from service.scheduling.repository.attempts import avoided_nodes, ended_attempts
from service.scheduling.repository.resources import MAX_CACHED, load_resources, time_used
from service.states import LIVE_ATTEMPT, AttemptState, Desired, JobStatus

logger = logging.getLogger(__name__)


# Built once, because each round needs them and SQLAlchemy takes longer to build a statement than to run it.
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
_OF_JOB = (
    Job.id,
    Job.desired,
    Job.account_id,
    Job.tenant,
    Job.max_hours,
    func.coalesce(Attempt.workers, Job.workers).label("workers"),
)
_LIVE = (
    select(*_OF_JOB, Attempt.number, Attempt.stop_reason, Attempt.created_at.label("began_at"))
    .add_columns(Attempt.state)
    .join(Attempt, Attempt.job_id == Job.id)
    .where(Attempt.state.in_(LIVE_ATTEMPT))
)
# Jobs that wait for a retry, with the number of workers of their last attempt.
_BETWEEN_ATTEMPTS = (
    select(*_OF_JOB, Job.not_before.label("began_at"))
    .join(Attempt, (Attempt.job_id == Job.id) & (Attempt.number == Job.attempt), isouter=True)
    .where(Job.status == JobStatus.RETRY_WAIT)
)


def candidates(session: Session, taken: Sequence[Running]) -> list[Candidate]:
    """Return the attempts that may be preempted: they train and are not stopping."""
    held = {holding.job_id: holding for holding in taken if holding.job_id is not None}
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
    """Return the resources that live attempts hold, and the latest end of each.

    Attempts with a stop request may end at any moment. Jobs that wait for a retry keep their resources, so that
    a younger long job does not start before the retry.
    """
    live = session.execute(_LIVE).all()
    between = session.execute(_BETWEEN_ATTEMPTS).all()
    job_ids = [row.id for row in (*live, *between)]
    resources, used = load_resources(session, job_ids), time_used(session, job_ids)
    # An attempt has ranks only after its driver has reported.
    placed = placements(
        session, [(row.id, row.number) for row in live if row.state == AttemptState.RUNNING]
    )

    def holding(row: Row[*tuple[Any, ...]], stops: bool, placement: Placement | None) -> Running:
        limit = resources[row.id].limit(row.max_hours)
        ends_by = row.began_at + limit - used.get(row.id, timedelta())
        at = now if stops or row.desired != Desired.RUN else max(now, ends_by)
        demand = resources[row.id].with_workers(row.workers)
        if row.number is not None:
            demand = demand.without(avoided_nodes(session, row.id, row.number))
        placement = _of_all(demand, placement)
        return Running(demand, at, row.account_id, placement, row.tenant, row.id)

    return [
        *(
            holding(row, row.stop_reason is not None, placed.get((row.id, row.number)))
            for row in live
        ),
        *(holding(row, False, None) for row in between),
    ]


def attempts_on(session: Session, nodes: Collection[str]) -> set[tuple[str, int]]:
    """Return the running attempts with a rank on one of these nodes, given by id."""
    rows = session.execute(
        select(Attempt.job_id, Attempt.number).where(Attempt.state == AttemptState.RUNNING)
    )
    placed = placements(session, [(row.job_id, row.number) for row in rows])
    return {attempt for attempt, placement in placed.items() if placement.keys() & set(nodes)}


def _of_all(demand: Demand, placement: Placement | None) -> Placement | None:
    # Ignore a placement of a different number of workers, which would miscount the nodes.
    is_whole = placement is not None and sum(placement.values()) == demand.workers
    return placement if is_whole else None


def resources_in_use(session: Session, now: datetime) -> list[Running]:
    """Return all resources that admission counts as taken: by `running`, and by ended attempts.

    An ended attempt counts until its driver has ended, but not against a quota. A job that waits for a retry
    counts once.
    """
    ended = [item for item in ended_attempts(session) if item.status != JobStatus.RETRY_WAIT]
    placed = placements(session, [(item.job_id, item.number) for item in ended])
    return running(session, now) + [
        Running(
            item.demand,
            now,
            placement=_of_all(item.demand, placed.get((item.job_id, item.number))),
        )
        for item in ended
    ]


# Can be cached, because the ranks of an attempt never move.
_placement_by_attempt: dict[tuple[str, int], Placement] = {}


def placements(
    session: Session, attempts: Collection[tuple[str, int]]
) -> dict[tuple[str, int], Placement]:
    """Return the nodes of the ranks of the attempts that have reported them."""
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
            except ValidationError as error:  # stored by an API of another version
                logger.warning("The placement of job %s cannot be read: %s", job_id, error)
            else:
                _placement_by_attempt[job_id, data.attempt] = read_placement(data)
    return {
        attempt: _placement_by_attempt[attempt]
        for attempt in attempts
        if attempt in _placement_by_attempt
    }
