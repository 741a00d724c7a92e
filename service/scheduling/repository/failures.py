"""SQL of nodes to avoid: an attempt of the job failed there before its first step."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.models import Job, Run
from service.protocol import NODE_DIED
from service.runs import repository as runs
from service.scheduling.nodes import Cluster, with_drains
from service.scheduling.occupancy import Placement
from service.scheduling.packing import most_places
from service.scheduling.repository.attempts import placements
from service.scheduling.repository.cluster import drained, read_nodes, snapshot
from service.scheduling.repository.resources import MAX_CACHED, job_demand
from service.states import AttemptState

AVOID_FOR = timedelta(minutes=10)
"""How long after a failure a job waits for other nodes. Many failures have other causes than the node."""


class Avoided(NamedTuple):
    """Nodes that a job avoids."""

    nodes: frozenset[str]
    """Ids of the nodes."""
    until: datetime
    """Until then the job waits for other nodes even if they are in use."""


# Can be cached, because ended attempts never change. The key is a job and the number of its newest attempt.
_avoided: dict[tuple[str, int], Avoided | None] = {}


def nodes_to_avoid(session: Session, newest: Mapping[str, int]) -> dict[str, Avoided]:
    """Return the nodes on which the last attempts of queued jobs failed before their first step.

    The last attempt is the last one whose ranks started. Dead nodes are not returned, because they left the cluster.

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
    cached = {job_id: _avoided[job_id, number] for job_id, number in newest.items()}
    return {job_id: avoided for job_id, avoided in cached.items() if avoided is not None}


def _failed_nodes(session: Session, newest: Mapping[str, int]) -> dict[str, Avoided]:
    ended = (Run.state, Run.error_type, Run.finished_at)
    # Select from `Run`: with the kind of `Attempt` in the query, SQLite would read all attempts.
    query = select(Run.owner.label("job_id"), Run.number, *ended).where(Run.owner.in_(newest))
    rows = session.execute(query.order_by(Run.number)).all()
    placed = placements(session, [(row.job_id, row.number) for row in rows])
    last = {row.job_id: row for row in rows if (row.job_id, row.number) in placed}
    return {
        job_id: Avoided(_with_ranks(placed[job_id, row.number]), row.finished_at + AVOID_FOR)
        for job_id, row in last.items()
        if row.state == AttemptState.FAILED
        and row.error_type != NODE_DIED
        and runs.last_step(session, job_id, row.number) == 0
    }


def _with_ranks(placement: Placement) -> frozenset[str]:
    return frozenset(node for node, workers in placement.items() if workers)


def could_run_elsewhere(session: Session, job: Job, number: int) -> bool:
    """Whether an attempt reused a node of the previous attempt, although the other nodes have room for the job."""
    job_id = job.id
    placed = placements(session, [(job_id, number - 1), (job_id, number)])
    before, nodes = (_with_ranks(placed.get((job_id, n), {})) for n in (number - 1, number))
    last = snapshot(session)
    if last is None or not before & nodes:
        return False
    cluster = with_drains(Cluster(read_nodes(last)), drained(session))
    others = [node for node in cluster.nodes if not node.drained and node.id not in nodes]
    demand = job_demand(session, job_id, job.workers)
    return most_places(others, demand) >= demand.workers
