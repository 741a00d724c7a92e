"""Drain and undrain nodes. Nothing here commits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from service.api.auth import Caller
from service.cluster import repository
from service.cluster.schemas import DrainRequest
from service.scheduling import repository as scheduling
from service.scheduling.nodes import ALL_NODES, Node
from service.wire.cluster import DrainView


def shown(session: Session) -> list[DrainView]:
    """Return all drains."""
    return [
        DrainView(
            node=None if drain.node == ALL_NODES else drain.node,
            save=drain.save,
            reason=drain.reason,
            created_at=drain.created_at,
        )
        for drain in scheduling.drains(session)
    ]


def drain(session: Session, caller: Caller, request: DrainRequest) -> None:
    """Drain a node, or the whole cluster; a repetition replaces `save` and `reason`."""
    name = _lasting_name(request.node, _nodes(session))
    row = {
        "node": name,
        "save": request.save,
        "reason": request.reason,
        "tenant": caller.tenant,
        "token_id": caller.token_id,
        "created_at": datetime.now(UTC),
    }
    repository.save_drain(session, row)


def undrain(session: Session, node: str | None) -> None:
    """End the drain of a node, or that of the whole cluster; a repetition changes nothing."""
    names = {ALL_NODES if node is None else node}
    names |= {
        name
        for each in _nodes(session)
        if each.is_named(names)
        for name in (each.id, each.address, each.name)
    }
    repository.remove_drains(session, names)


def _nodes(session: Session) -> Sequence[Node]:
    snapshot = scheduling.snapshot(session)
    return () if snapshot is None else scheduling.nodes_of(snapshot)


def _lasting_name(node: str | None, nodes: Sequence[Node]) -> str:
    """Return how a drain names a node: by its address instead of its id, which changes when Ray restarts there."""
    if node is None:
        return ALL_NODES
    for each in nodes:
        if each.id == node and [other.address for other in nodes].count(each.address) == 1:
            return each.address
    return node
