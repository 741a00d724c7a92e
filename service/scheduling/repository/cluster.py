"""SQL of the cluster: the last snapshot of its nodes, and the drained ones."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from dasl_core.spec import Resources
from service.db.models import ClusterSnapshot, Drain, QueueDecisions
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
    """Return the ids of the known nodes that must not get a rank of an attempt.

    Args:
        avoided: ids of the nodes that the attempt avoids.
    """
    last = snapshot(session)
    if last is None:
        return [*avoided]
    named = {*resources.exclude_nodes, *avoided}
    cluster = known_cluster(session, last)
    return [node.id for node in cluster.nodes if node.drained or node.is_named(named)]


def addresses(session: Session, ids: Collection[str]) -> list[str]:
    """Return the addresses of nodes; the id of a node that left the cluster."""
    by_id = {node.id: node.address for node in known_cluster(session, snapshot(session)).nodes}
    return sorted(by_id.get(id, id) for id in ids)


_ROW = 1


def snapshot(session: Session) -> ClusterSnapshot | None:
    """Return the last snapshot of the cluster; `None` before the first."""
    return session.get(ClusterSnapshot, _ROW)


def last_cluster(session: Session) -> Cluster:
    """Return the nodes of the last snapshot, with nothing in use."""
    nodes = read_nodes(snapshot(session))
    return Cluster(
        tuple(replace(node, used_cpus=0.0, used_gpus=0.0, used_memory=0.0) for node in nodes)
    )


def save_snapshot(session: Session, snapshot: ClusterSnapshot) -> None:
    """Replace the snapshot; sets its id."""
    snapshot.id = _ROW
    session.merge(snapshot)


def decisions(session: Session) -> list[dict[str, Any]]:
    """Return the stored decisions; none before the first round."""
    row = session.get(QueueDecisions, _ROW)
    return [] if row is None else row.decisions


def save_decisions(session: Session, decisions: list[dict[str, Any]]) -> None:
    """Replace the stored decisions."""
    session.merge(QueueDecisions(id=_ROW, decisions=decisions))


def read_nodes(snapshot: ClusterSnapshot | None) -> tuple[Node, ...]:
    """Read the nodes of a snapshot; none before the first one."""
    stored = () if snapshot is None else snapshot.nodes
    # A newer dispatcher may store more fields.
    fields = Node.__dataclass_fields__.keys()
    return tuple(Node(**{name: node[name] for name in node.keys() & fields}) for node in stored)


def known_cluster(session: Session, snapshot: ClusterSnapshot | None) -> Cluster:
    """Return the cluster of a snapshot, with the drained nodes marked."""
    return with_drains(Cluster(read_nodes(snapshot)), drained(session))


def stored_node(node: Node) -> dict[str, Any]:
    """Convert a node to its form in a snapshot's `nodes`."""
    values = {name: value for name, value in vars(node).items() if name != "drained"}
    return {**values, "labels": dict(node.labels)}
