"""SQL of the nodes on which attempts failed before their first step, which the next attempts avoid."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.models import Job, Run
from service.protocol import NODE_DIED
from service.runs import repository as runs
from service.scheduling.nodes import Cluster, with_drains
from service.scheduling.packing import most_places
from service.scheduling.repository.cluster import drained, nodes_of, snapshot
from service.scheduling.repository.holdings import placements
from service.scheduling.repository.resources import MAX_CACHED, demand_of
from service.states import AttemptState

AVOID_FOR = timedelta(minutes=10)
"""How long after a failure a job waits for other nodes. Failures whose cause is not the node are as frequent."""


class Avoided(NamedTuple):
    """Nodes that a job avoids."""

    nodes: frozenset[str]
    """Their ids."""
    until: datetime
    """Until then it waits for other nodes also if they are in use."""


# A cache: what an ended attempt did stays. The key is a job with the number of its newest attempt.
_avoided: dict[tuple[str, int], Avoided | None] = {}


def nodes_to_avoid(session: Session, newest: Mapping[str, int]) -> dict[str, Avoided]:
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
        _avoided.update(dict.fromkeys(missing.items()))
        for job_id, avoided in _failed_nodes(session, missing).items():
            _avoided[job_id, missing[job_id]] = avoided
    found = {job_id: _avoided[job_id, number] for job_id, number in newest.items()}
    return {job_id: avoided for job_id, avoided in found.items() if avoided is not None}


def _failed_nodes(session: Session, newest: Mapping[str, int]) -> dict[str, Avoided]:
    ended = (Run.state, Run.error_type, Run.finished_at)
    # Not of `Attempt`: with its kind in the query, SQLite reads all attempts that there are.
    of_jobs = select(Run.owner.label("job_id"), Run.number, *ended).where(Run.owner.in_(newest))
    rows = session.execute(of_jobs.order_by(Run.number)).all()
    placed = placements(session, [(row.job_id, row.number) for row in rows])
    last = {row.job_id: row for row in rows if (row.job_id, row.number) in placed}
    return {
        job_id: Avoided(frozenset(placed[job_id, row.number]), row.finished_at + AVOID_FOR)
        for job_id, row in last.items()
        if row.state == AttemptState.FAILED
        and row.error_type != NODE_DIED
        and runs.last_step(session, job_id, row.number) == 0
    }


def could_run_elsewhere(session: Session, job: Job, number: int) -> bool:
    """Whether an attempt ran on a node of the attempt before it, although the others could hold the job."""
    job_id = job.id
    placed = placements(session, [(job_id, number - 1), (job_id, number)])
    before, nodes = placed.get((job_id, number - 1), {}), placed.get((job_id, number), {})
    found = snapshot(session)
    if found is None or not before.keys() & nodes.keys():
        return False
    cluster = with_drains(Cluster(nodes_of(found)), drained(session))
    left = [node for node in cluster.nodes if not node.drained and node.id not in nodes]
    demand = demand_of(session, job_id, job.workers)
    return most_places(left, demand) >= demand.workers
