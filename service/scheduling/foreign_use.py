"""Use of a shared Ray's nodes by programs other than DASL."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from service.scheduling.admission import Running, occupied
from service.scheduling.nodes import Node
from service.scheduling.packing import Demand, Room

LAG = timedelta(seconds=20)
"""How long after the end of an attempt Ray may still report its resources as used."""


class ForeignUse:
    """Lower bound on the use of each node by other programs: Ray's report minus the use by DASL.

    Use that an attempt with unknown nodes may explain does not count as foreign, nor use by an attempt that has just
    ended, as Ray's reports lag behind.
    """

    def __init__(self) -> None:
        self._live: Mapping[str, Demand] = {}
        self._ended: dict[str, tuple[Demand, datetime]] = {}

    def update(self, live: Mapping[str, Demand], now: datetime) -> None:
        """Record the live attempts, by their submission id."""
        ended = {name: (self._live[name], now) for name in self._live.keys() - live.keys()}
        recent = {name: end for name, end in self._ended.items() if now - end[1] < LAG}
        self._live, self._ended = live, recent | ended

    def by_node(self, nodes: Sequence[Node], held: Iterable[Running]) -> dict[str, Room]:
        """Return the resources that other programs use, by the node's id.

        Args:
            held: the jobs that hold resources.
        """
        occupancy = occupied(nodes, held)
        for demand, _ in self._ended.values():
            occupancy.change(demand, None, +1)
        return occupancy.unexplained_use(nodes)
