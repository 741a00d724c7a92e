"""Preemption: which running jobs save a checkpoint and give way to the first job that lacks room.

Only jobs of lower rank give way, and only if the waiting job then fits for certain. The room stays
reserved for it, and the queue is ordered by the same rank, so that a preempted job never takes the room
back from the job that it gave way to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from service.scheduling.admission import Queued, Running
from service.scheduling.nodes import Node
from service.scheduling.occupancy import Occupancy

Preemption = Literal["off", "low", "priority"]

MIN_RUNTIME = timedelta(minutes=10)
"""An attempt that has run for less does not give way: its start would have been for nothing."""


class Rank(NamedTuple):
    """Rank of a job in the queue and in preemption; a higher one starts first."""

    keeps_room: bool
    """Whether it is not preemptible."""
    priority: int

    def gives_way_to(self, other: Rank, mode: Preemption) -> bool:
        """Whether a job of this rank gives way to one of another rank."""
        if mode == "off":
            return False
        if mode == "low":
            return other.keeps_room and not self.keeps_room
        return self < other


@dataclass(frozen=True)
class Candidate:
    """A running attempt that can save a checkpoint and return to the queue."""

    job_id: str
    attempt: int
    rank: Rank
    unsaved_since: datetime
    """When it started, or registered its last checkpoint: what it did since may be lost."""
    started_at: datetime
    holds: Running


def victims(
    nodes: Sequence[Node],
    staying: Sequence[Running],
    candidates: Sequence[Candidate],
    job: Queued,
    now: datetime,
    mode: Preemption,
) -> list[Candidate]:
    """Return a minimal set of attempts that must stop so that a job fits; empty if none helps.

    No subset of the returned attempts would do. Those of the lowest rank come first, then those with the
    least work since their last checkpoint.

    Args:
        nodes: without what other programs use of them.
        staying: all other jobs that hold resources, without those that are stopping already.
    """
    rank = Rank(not job.preemptible, job.priority)
    lower = sorted(
        (
            each
            for each in candidates
            if each.rank.gives_way_to(rank, mode) and now - each.started_at >= MIN_RUNTIME
        ),
        key=lambda each: (each.rank, now - each.unsaved_since, each.job_id),
    )
    if not lower:
        return []
    occupancy = Occupancy(nodes)
    for held in (*staying, *(each.holds for each in candidates)):
        occupancy.change(held.demand, held.placement, +1)
    chosen: list[Candidate] = []
    for each in lower:
        if occupancy.fits(job.demand):
            break
        occupancy.change(each.holds.demand, each.holds.placement, -1)
        chosen.append(each)
    if not occupancy.fits(job.demand):
        return []
    # Those of the highest rank are spared first.
    for each in reversed(chosen.copy()):
        occupancy.change(each.holds.demand, each.holds.placement, +1)
        if occupancy.fits(job.demand):
            chosen.remove(each)
        else:
            occupancy.change(each.holds.demand, each.holds.placement, -1)
    return chosen
