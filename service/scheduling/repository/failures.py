"""SQL of the nodes on which attempts failed before their first step, which the next attempts avoid."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.models import Attempt, Event
from service.protocol import NODE_DIED
from service.runs import repository as runs
from service.scheduling.nodes import Cluster, with_drains
from service.scheduling.packing import most_places
from service.scheduling.repository.cluster import drained, nodes_of, snapshot
from service.scheduling.repository.holdings import placements
from service.scheduling.repository.resources import MAX_CACHED, demand_of
from service.states import AttemptState, JobStatus

AVOIDED = "avoided_nodes"
"""In the data of the event of an attempt's start: ids of the nodes that it avoids."""

# A cache: what an ended attempt did stays. The key is a job with the number of its newest attempt.
_avoided: dict[tuple[str, int], frozenset[str]] = {}


def nodes_to_avoid(session: Session, newest: Mapping[str, int]) -> dict[str, frozenset[str]]:
    """Return the ids of the nodes on which the last attempts of queued jobs failed before their first step.

    The last attempt is the last one whose ranks started. A node that died is gone by itself.

    Args:
        newest: the number of each job's newest attempt, which has ended.
    """
    missing = {
        job_id: number for job_id, number in newest.items() if (job_id, number) not in _avoided
    }
    if missing:
        if len(_avoided) > MAX_CACHED:
            _avoided.clear()
        _avoided.update({each: frozenset() for each in missing.items()})
        for job_id, nodes in _failed_nodes(session, missing).items():
            _avoided[job_id, missing[job_id]] = nodes
    found = {job_id: _avoided[job_id, number] for job_id, number in newest.items()}
    return {job_id: nodes for job_id, nodes in found.items() if nodes}


def _failed_nodes(session: Session, newest: Mapping[str, int]) -> dict[str, frozenset[str]]:
    numbers = select(Attempt.job_id, Attempt.number, Attempt.state, Attempt.error_type)
    of_jobs = numbers.where(Attempt.job_id.in_(newest)).order_by(Attempt.number)
    rows = session.execute(of_jobs).all()
    placed = placements(session, [(row.job_id, row.number) for row in rows])
    last = {row.job_id: row for row in rows if (row.job_id, row.number) in placed}
    return {
        job_id: frozenset(placed[job_id, row.number])
        for job_id, row in last.items()
        if row.state == AttemptState.FAILED
        and row.error_type != NODE_DIED
        and runs.last_step(session, job_id, row.number) == 0
    }


def could_run_elsewhere(session: Session, job_id: str, number: int, workers: int | None) -> bool:
    """Whether an attempt ran on a node of the attempt before it, although the others could hold the job."""
    placed = placements(session, [(job_id, number - 1), (job_id, number)])
    before, nodes = placed.get((job_id, number - 1), {}), placed.get((job_id, number), {})
    found = snapshot(session)
    if found is None or not before.keys() & nodes.keys():
        return False
    cluster = with_drains(Cluster(nodes_of(found)), drained(session))
    left = [node for node in cluster.nodes if not node.drained and node.id not in nodes]
    demand = demand_of(session, job_id, workers)
    return most_places(left, demand) >= demand.workers


def avoided_nodes(session: Session, job_id: str, number: int) -> list[str]:
    """Return the ids of the nodes that an attempt was to avoid when it started."""
    is_start = Event.job_id == job_id, Event.type == "status"
    for data in session.scalars(select(Event.data).where(*is_start).order_by(Event.seq.desc())):
        if data.get("to") == JobStatus.STARTING and data.get("attempt") == number:
            return list(data.get(AVOIDED, []))
    return []
