"""`/v1/cluster`: nodes, resources and queue."""

from __future__ import annotations

from fastapi import APIRouter

from service.api.auth import Reader
from service.api.transaction import ReadSession, Route, WithContext
from service.cluster import service
from service.cluster.schemas import ClusterView

router = APIRouter(prefix="/v1", tags=["cluster"], route_class=Route)


@router.get("/cluster")
def show_cluster(caller: Reader, context: WithContext, session: ReadSession) -> ClusterView:
    """Show nodes, used and free CPUs and GPUs, and the queue by priority.

    Only a token with the scope `admin` sees the nodes' ids and addresses.
    """
    names_nodes = caller.may("admin")
    return service.view(
        session,
        caller.tenant,
        context.decisions,
        names_nodes=names_nodes,
        api_started_at=context.started_at,
    )
