"""Occupancy: the resources of a cluster that jobs hold, on known nodes or on any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, Self

from service.protocol import PlacementData
from service.scheduling import packing
from service.scheduling.nodes import Node
from service.scheduling.packing import Demand, Room, Worker

Placement = Mapping[str, int]
"""How many workers of a job are on each node, by the node's id."""


def placement_of(data: PlacementData) -> Placement:
    """Return the placement that an attempt reported."""
    placement: Counter[str] = Counter()
    for node in data.nodes:
        placement[node.id] += len(node.ranks)
    return placement


class Occupancy:
    """Resources that jobs hold on some nodes.

    Workers whose node is known take room exactly there. The others may be anywhere: those of an attempt
    that is starting, of a job between two attempts, or on a node that is not in the cluster.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._rooms = [Room(node.total_cpus, node.total_gpus) for node in nodes]
        self._index = {node.id: index for index, node in enumerate(nodes)}
        self._anywhere: Counter[Worker] = Counter()

    def copy(self) -> Self:
        """Return an independent copy."""
        copy = object.__new__(type(self))
        copy._rooms, copy._index = self._rooms.copy(), self._index
        copy._anywhere = self._anywhere.copy()
        return copy

    def change(self, demand: Demand, placement: Placement | None, sign: Literal[1, -1]) -> None:
        """Add or remove the workers of a job; `placement` is `None` if it is unknown."""
        (cpus, gpus), anywhere = demand.worker, demand.workers
        for node, workers in (placement or {}).items():
            index = self._index.get(node)
            if index is not None:
                room, taken = self._rooms[index], sign * workers
                self._rooms[index] = Room(room.cpus - taken * cpus, room.gpus - taken * gpus)
                anywhere -= workers
        self._anywhere[demand.worker] += sign * anywhere

    def fits(self, demand: Demand) -> bool:
        """Whether all workers of a job are certain to fit beside those that hold resources."""
        return packing.sure_places(self._rooms, self._anywhere, demand.worker) >= demand.workers

    def unexplained_use(self, nodes: Sequence[Node]) -> dict[str, Room]:
        """Return what is in use of each node beyond what jobs may hold there.

        Args:
            nodes: those of this occupancy.
        """
        cpus = sum(worker.cpus * count for worker, count in self._anywhere.items())
        gpus = sum(worker.gpus * count for worker, count in self._anywhere.items())
        unexplained = {}
        for node, room in zip(nodes, self._rooms, strict=True):
            more_cpus = node.used_cpus - (node.total_cpus - room.cpus) - cpus
            more_gpus = node.used_gpus - (node.total_gpus - room.gpus) - gpus
            if more_cpus > 0 or more_gpus > 0:
                unexplained[node.id] = Room(max(0.0, more_cpus), max(0.0, more_gpus))
        return unexplained
