"""`/v1/storage`: the storage of checkpoints, artifacts, previews, logs and metrics."""

import shutil
from pathlib import Path

from fastapi import APIRouter

from service.api.auth import Admin
from service.api.transaction import HeavyRoute, ReadSession, WithContext
from service.storage import repository
from service.wire.storage import StorageView, Store, TenantBytes

router = APIRouter(prefix="/v1", tags=["storage"], route_class=HeavyRoute)


@router.get("/storage")
def show_storage(caller: Admin, context: WithContext, session: ReadSession) -> StorageView:
    """Show the storage of the tenant's jobs, previews and uploads, the largest jobs, and the free space of a local store."""
    settings = context.settings
    total, free = _disk(settings.artifacts_uri)
    only = None if caller.may("operator") else caller.tenant
    stored = repository.stored_by_tenant(session, only=only)
    uploads = repository.uploaded_by_tenant(session, only=only)
    store = Store(
        bytes=sum(stored.values()),
        tenants=[
            TenantBytes(tenant=tenant, bytes=stored.get(tenant, 0), uploads=uploads.get(tenant, 0))
            for tenant in sorted({*stored, *uploads})
        ],
        max_bytes=settings.max_artifact_bytes,
        total_bytes=total,
        free_bytes=free,
    )
    return repository.tenant_storage(session, caller.tenant, store, settings.log_max_bytes)


def _disk(uri: str) -> tuple[int | None, int | None]:
    """Return total and free bytes of the disk of a local store."""
    if not uri.startswith("file://"):
        return None, None
    try:
        disk = shutil.disk_usage(Path(uri.removeprefix("file://")))
    except OSError:  # not created yet, or only on the workers' machines
        return None, None
    return disk.total, disk.free
