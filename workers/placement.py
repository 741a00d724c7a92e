"""Placement of ranks on nodes, which the service needs to know to start other jobs there.

Ray's controller learns the nodes from the ranks when they start, and rank 0 reports them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

_LONGEST_LIST = 8


class RankNode(NamedTuple):
    """The node of one rank, as Ray knows it."""

    id: str
    address: str


# The node of each rank, in rank 0's process.
_nodes: Sequence[RankNode] = ()


def this_node() -> RankNode:
    """Return the node of this process."""
    import ray

    return RankNode(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address())


def set_nodes(nodes: Sequence[RankNode]) -> None:
    """Store the nodes of all ranks in order; called in rank 0's process."""
    global _nodes
    _nodes = nodes


def describe(attempt: int, driver: str) -> tuple[str, dict[str, Any]]:
    """Return message and data of the event `placement`; called in rank 0's process.

    Args:
        attempt: its number.
        driver: id of the driver's node.
    """
    ranks: dict[RankNode, list[int]] = {}
    for rank, node in enumerate(_nodes):
        ranks.setdefault(node, []).append(rank)
    nodes = [{"id": node.id, "address": node.address, "ranks": of} for node, of in ranks.items()]
    message = f"{_count(len(_nodes))} on {len(ranks)} nodes"
    if len(ranks) <= _LONGEST_LIST:
        message = ", ".join(f"{_count(len(of))} on {node.address}" for node, of in ranks.items())
    return message, {"attempt": attempt, "driver": driver, "nodes": nodes}


def _count(ranks: int) -> str:
    return f"{ranks} rank" + ("" if ranks == 1 else "s")
