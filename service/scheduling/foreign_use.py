"""What programs other than DASL use of the nodes of a shared Ray."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from service.scheduling.admission import Running
from service.scheduling.nodes import Node
from service.scheduling.occupancy import Occupancy
from service.scheduling.packing import Demand, Room

LAG = timedelta(seconds=20)
"""For so long after the end of an attempt, Ray may still report its resources as used."""


class ForeignUse:
    """What is certain about the use of each node by other programs: Ray's reports minus our own use.

    An attempt whose nodes are not known may be what uses a node, and so may one that has just ended, as
    Ray's reports lag behind. Such use is not counted as foreign.
    """

    def __init__(self) -> None:
        self._live: Mapping[str, Demand] = {}
        self._ended: dict[str, tuple[Demand, datetime]] = {}

    def update(self, live: Mapping[str, Demand], now: datetime) -> None:
        """Record the live attempts, by their submission id."""
        gone = {name: (self._live[name], now) for name in self._live.keys() - live.keys()}
        recent = {name: end for name, end in self._ended.items() if now - end[1] < LAG}
        self._live, self._ended = live, recent | gone

    def of(self, nodes: Sequence[Node], held: Iterable[Running]) -> dict[str, Room]:
        """Return what other programs use of nodes, by the node's id.

        Args:
            held: the jobs that hold resources.
        """
        own = Occupancy(nodes)
        for job in held:
            own.change(job.demand, job.placement, +1)
        for demand, _ in self._ended.values():
            own.change(demand, None, +1)
        return own.unexplained_use(nodes)
