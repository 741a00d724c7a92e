"""Preemption: choose running jobs that save a checkpoint and stop for the first job that lacks room.

Only jobs of lower rank are preempted, and only if the waiting job then certainly fits. The room stays reserved for it,
and the queue is ordered by the same rank, so that a preempted job cannot take the room back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from service.scheduling.admission import Queued, Running, occupied
from service.scheduling.nodes import Node

Preemption = Literal["off", "low", "priority"]

MIN_RUNTIME = timedelta(minutes=10)
"""An attempt that has run for less is not preempted, because its start would be wasted."""


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
    """When it started or registered its last checkpoint; later work may be lost."""
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
    """Return a minimal set of attempts to stop so that a job fits; empty if no set suffices.

    No subset of it suffices. Attempts of the lowest rank are taken first, then attempts with the least work since
    their last checkpoint.

    Args:
        nodes: the nodes without the resources that other programs use.
        staying: all other jobs that hold resources and are not already stopping.
    """
    rank = Rank(not job.preemptible, job.priority)
    lower = sorted(
        (
            candidate
            for candidate in candidates
            if candidate.rank.gives_way_to(rank, mode) and now - candidate.started_at >= MIN_RUNTIME
        ),
        key=lambda item: (item.rank, now - item.unsaved_since, item.job_id),
    )
    if not lower:
        return []
    occupancy = occupied(nodes, (*staying, *(candidate.holds for candidate in candidates)))
    preempted: list[Candidate] = []
    for candidate in lower:
        if occupancy.fits(job.demand):
            break
        occupancy.change(candidate.holds.demand, candidate.holds.placement, -1)
        preempted.append(candidate)
    if not occupancy.fits(job.demand):
        return []
    # Spare superfluous attempts, the highest rank first.
    for candidate in reversed(preempted.copy()):
        occupancy.change(candidate.holds.demand, candidate.holds.placement, +1)
        if occupancy.fits(job.demand):
            preempted.remove(candidate)
        else:
            occupancy.change(candidate.holds.demand, candidate.holds.placement, -1)
    return preempted
