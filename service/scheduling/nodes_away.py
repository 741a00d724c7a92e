"""Nodes that left the cluster a short time ago, and may be back soon."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from service.scheduling.admission import SHRINK_AFTER
from service.scheduling.nodes import Node


class NodeAway(NamedTuple):
    """A node that is not in the cluster, and when it was first missed."""

    node: Node
    since: datetime


class NodesAway:
    """Which nodes have been away for less than `SHRINK_AFTER`, in time in which the others were seen.

    After a restart of Ray, or of this process, nodes join one by one: those that were there before count as away
    from then on.

    Args:
        nodes: that were there when an earlier process looked last.
        away: those that it missed.
    """

    def __init__(self, nodes: Iterable[Node] = (), away: Iterable[NodeAway] = ()) -> None:
        self._present = {node.id: node for node in nodes}
        self._away = {each.node.id: each for each in away}
        self._looks_again = True

    @property
    def away(self) -> list[NodeAway]:
        """The nodes that are away."""
        return list(self._away.values())

    @property
    def nodes(self) -> list[Node]:
        """The nodes that are away, without the times."""
        return [each.node for each in self._away.values()]

    def update(self, nodes: Sequence[Node], now: datetime) -> None:
        """Record the nodes of the cluster; none if Ray is away or has no node."""
        here = {node.id: node for node in nodes}
        new = [node for node in nodes if node.id not in self._present]
        for name, node in self._present.items():
            if name not in here:
                self._away[name] = NodeAway(node, now)
        self._present = here
        if not here:
            self._looks_again = True
            return
        if self._looks_again:
            self._away = {name: NodeAway(each.node, now) for name, each in self._away.items()}
            self._looks_again = False
        for node in new:
            self._returned(node)
        self._away = {
            name: each for name, each in self._away.items() if now - each.since < SHRINK_AFTER
        }

    def _returned(self, node: Node) -> None:
        """Forget the node that is back: with its id or, after a restart, at its address."""
        if self._away.pop(node.id, None) is None:
            same = (name for name, each in self._away.items() if each.node.address == node.address)
            self._away.pop(next(same, ""), None)
