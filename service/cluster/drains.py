"""Drain and undrain nodes. The caller commits."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field
from sqlalchemy.orm import Session

from dasl_core.spec.base import StrictModel
from dasl_core.spec.fields import NodeName
from service.api.auth import Caller
from service.cluster import repository
from service.scheduling import repository as scheduling
from service.scheduling.nodes import ALL_NODES, Node
from service.wire.cluster import DrainView


class DrainRequest(StrictModel):
    """Which node to drain, and how."""

    node: Annotated[
        NodeName | None, Field(description="Id, name or address; null: the whole cluster.")
    ] = None
    save: Annotated[
        bool,
        Field(
            description="Attempts with ranks there save a checkpoint, and their jobs are queued."
        ),
    ] = True
    reason: Annotated[str, Field(max_length=500)] = ""


class UndrainRequest(StrictModel):
    """Which drain to end."""

    node: Annotated[
        NodeName | None,
        Field(description="Id, name or address; null: the drain of the whole cluster."),
    ] = None


def views(session: Session) -> list[DrainView]:
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
    row = {
        "node": _lasting_name(request.node, scheduling.read_nodes(scheduling.snapshot(session))),
        "save": request.save,
        "reason": request.reason,
        "tenant": caller.tenant,
        "token_id": caller.token_id,
        "created_at": datetime.now(UTC),
    }
    repository.save_drain(session, row)


def undrain(session: Session, node: str | None) -> None:
    """End the drain of a node, or of the whole cluster. Idempotent."""
    names = {ALL_NODES if node is None else node}
    names |= {
        name
        for node in scheduling.read_nodes(scheduling.snapshot(session))
        if node.is_named(names)
        for name in (node.id, node.address, node.name)
    }
    repository.remove_drains(session, names)


def _lasting_name(node: str | None, nodes: Sequence[Node]) -> str:
    """Return a node's name for a drain: its address in place of its id, which changes when Ray restarts."""
    if node is None:
        return ALL_NODES
    for other in nodes:
        if other.id == node and [n.address for n in nodes].count(other.address) == 1:
            return other.address
    return node
