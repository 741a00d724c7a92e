"""SQL of the cluster: the last snapshot of its nodes, and the drained ones."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from dasl_core.spec import Resources
from service.db.models import ClusterSnapshot, Drain
from service.scheduling.nodes import Cluster, Node, with_drains


def drains(session: Session) -> list[Drain]:
    """Return the drained nodes, by name."""
    return list(session.scalars(select(Drain).order_by(Drain.node)))


def drained(session: Session) -> set[str]:
    """Return the ids, names or addresses of drained nodes."""
    return set(session.scalars(select(Drain.node)))


def excluded_nodes(
    session: Session, resources: Resources, avoided: Collection[str] = ()
) -> list[str]:
    """Return the ids of the nodes that must get no rank of an attempt, as far as they are known.

    Args:
        avoided: ids of those that it avoids.
    """
    found = snapshot(session)
    if found is None:
        return [*avoided]
    cluster = with_drains(Cluster(nodes_of(found)), drained(session))
    named = {*resources.exclude_nodes, *avoided}
    return [node.id for node in cluster.nodes if node.drained or node.is_named(named)]


def addresses(session: Session, ids: Collection[str]) -> list[str]:
    """Return the addresses of nodes; the id of one that is not in the cluster any more."""
    found = snapshot(session)
    known = {node.id: node.address for node in nodes_of(found)} if found is not None else {}
    return sorted(known.get(each, each) for each in ids)


_ROW = 1


def snapshot(session: Session) -> ClusterSnapshot | None:
    """Return the last snapshot of the cluster; `None` before the first."""
    return session.get(ClusterSnapshot, _ROW)


def last_cluster(session: Session) -> Cluster:
    """Return the nodes of the last snapshot, with nothing in use."""
    found = snapshot(session)
    nodes = nodes_of(found) if found is not None else ()
    return Cluster(
        tuple(replace(node, used_cpus=0.0, used_gpus=0.0, used_memory=0.0) for node in nodes)
    )


def save_snapshot(session: Session, snapshot: ClusterSnapshot) -> None:
    """Replace the snapshot; sets its id."""
    snapshot.id = _ROW
    session.merge(snapshot)


def nodes_of(snapshot: ClusterSnapshot) -> tuple[Node, ...]:
    """Return the nodes of a snapshot."""
    return tuple(_node(node) for node in snapshot.nodes)


def _node(values: dict[str, Any]) -> Node:
    # A newer dispatcher may know more of a node.
    known = values.keys() & Node.__dataclass_fields__.keys()
    return Node(**{name: values[name] for name in known})


def stored_node(node: Node) -> dict[str, Any]:
    """Return a node for `nodes` of a snapshot."""
    values = {name: value for name, value in vars(node).items() if name != "drained"}
    return {**values, "labels": dict(node.labels)}
