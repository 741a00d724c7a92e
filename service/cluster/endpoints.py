"""`/v1/cluster`: nodes, resources and queue."""

from fastapi import APIRouter

from service.api.auth import Operator, Reader
from service.api.transaction import ReadSession, Route, WithContext, WriteSession
from service.cluster import drains, service
from service.cluster.drains import DrainRequest, UndrainRequest
from service.wire.cluster import ClusterView, Drains

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
        names_nodes=names_nodes,
        api_started_at=context.started_at,
    )


@router.post("/cluster/drain")
def drain_node(request: DrainRequest, caller: Operator, session: WriteSession) -> Drains:
    """Drain a node or the whole cluster: it gets no new workers. Works while Ray does not run.

    With `save`, attempts with ranks there save a checkpoint and stop, and their jobs are queued again
    without using up a restart.
    """
    drains.drain(session, caller, request)
    return Drains(data=drains.views(session))


@router.post("/cluster/undrain")
def undrain_node(request: UndrainRequest, caller: Operator, session: WriteSession) -> Drains:
    """End the drain of a node, or of the whole cluster."""
    drains.undrain(session, request.node)
    return Drains(data=drains.views(session))
