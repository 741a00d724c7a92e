"""Occupancy: the resources of a cluster that jobs hold, on known or unknown nodes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Literal, Self

from service.protocol import PlacementData
from service.scheduling import packing
from service.scheduling.nodes import Node
from service.scheduling.packing import Demand, Room, Worker

Placement = Mapping[str, int]
"""Number of workers of a job on each node, by the node's id; 0 on one that runs its driver only."""


def read_placement(data: PlacementData) -> Placement:
    """Read the placement that an attempt reported; its driver's node is included, maybe with 0 workers."""
    placement: Counter[str] = Counter()
    for node in data.nodes:
        placement[node.id] += len(node.ranks)
    if data.driver is not None:
        placement[data.driver] += 0
    return placement


class Occupancy:
    """Resources that jobs hold on some nodes.

    Workers with a known node take room on that node. Others may be on any node: workers of an attempt that is
    starting, of a job between two attempts, or on a node that left the cluster.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._rooms = [Room.from_node(node) for node in nodes]
        self._index = {node.id: index for index, node in enumerate(nodes)}
        self._anywhere: Counter[Demand] = Counter()
        """Number of jobs on unknown nodes, by demand."""

    def copy(self) -> Self:
        """Return an independent copy."""
        other = copy(self)
        other._rooms, other._anywhere = self._rooms.copy(), self._anywhere.copy()
        return other

    def change(self, demand: Demand, placement: Placement | None, sign: Literal[1, -1]) -> None:
        """Add or remove the workers of a job; `placement` is `None` if it is unknown."""
        anywhere = demand.workers
        for node, workers in (placement or {}).items():
            index = self._index.get(node)
            if index is not None:
                self._rooms[index] = self._rooms[index].without(demand.worker, sign * workers)
                anywhere -= workers
        if anywhere:
            self._anywhere[demand._replace(workers=anywhere)] += sign

    def fits(self, demand: Demand) -> bool:
        """Whether all workers of a job are certain to fit in addition to the workers that hold resources.

        Ray may place this job before submitted jobs with other allowed nodes, which must keep their room.
        """
        if not self._has_room(demand):
            return False
        waiting = [
            other
            for other, jobs in self._anywhere.items()
            if jobs > 0 and other.choice != demand.choice and self._meet(other, demand)
        ]
        if not waiting:
            return True
        with_it = self.copy()
        with_it._anywhere[demand] += 1
        return all(
            with_it._has_room(other, placed=False) or not self._has_room(other, placed=False)
            for other in waiting
        )

    def _has_room(self, demand: Demand, *, placed: bool = True) -> bool:
        """Whether a job fits; if not `placed`, the job is already counted among those on unknown nodes."""
        others: Counter[Worker] = Counter()
        for other, jobs in self._anywhere.items():
            if other == demand and not placed:
                jobs -= 1
            if self._meet(other, demand):
                others[other.worker] += jobs * other.workers
        # A starting job may have been placed on a node before that was drained.
        rooms = [
            room
            for node, room in zip(self._nodes, self._rooms, strict=True)
            if demand.choice.allows(node) and not (placed and node.drained)
        ]
        if demand.choice.same_node:
            places = (packing.sure_places([room], others, demand.worker) for room in rooms)
            return max(places, default=0) >= demand.workers
        return packing.sure_places(rooms, others, demand.worker) >= demand.workers

    def _meet(self, one: Demand, other: Demand) -> bool:
        """Whether a node exists that both jobs may use."""
        if one.choice == other.choice:
            return True
        return any(one.choice.allows(node) and other.choice.allows(node) for node in self._nodes)

    def unexplained_use(self, nodes: Sequence[Node]) -> dict[str, Room]:
        """Return the resources in use on each node of this occupancy that no job can explain."""
        unexplained = {}
        for node, room in zip(nodes, self._rooms, strict=True):
            for demand, jobs in self._anywhere.items():
                room = room.without(demand.worker, jobs * demand.workers)
            used = (node.used_cpus, node.used_gpus, node.used_memory)
            amounts = zip(used, Room.from_node(node), room, strict=True)
            more = Room(*(max(0.0, in_use - (total - free)) for in_use, total, free in amounts))
            if any(more):
                unexplained[node.id] = more
        return unexplained
