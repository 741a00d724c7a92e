"""`/v1/tenants`: for operators; other callers see their own tenant."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from service.api.auth import Operator, Reader
from service.api.pagination import Limit, Page, page
from service.api.problems import not_found
from service.api.transaction import ReadSession, Route, WriteSession
from service.tenants import repository, service
from service.tenants.schemas import TenantChanges, TenantRequest
from service.wire.access import TenantView

router = APIRouter(prefix="/v1/tenants", tags=["tenants"], route_class=Route)

After = Annotated[
    str | None,
    Query(max_length=100, pattern=r"^[^\x00]*$", description="`next` of the previous page."),
]


@router.post("", status_code=201)
def create_tenant(
    request: TenantRequest, response: Response, caller: Operator, session: WriteSession
) -> TenantView:
    """Create a tenant."""
    tenant = service.create(session, request)
    response.headers["Location"] = f"/v1/tenants/{tenant.name}"
    return TenantView.model_validate(tenant)


@router.get("")
def list_tenants(
    caller: Reader, session: ReadSession, after: After = None, limit: Limit = 50
) -> Page[TenantView]:
    """List tenants by name: all tenants for an operator, otherwise the caller's tenant."""
    only = None if caller.may("operator") else caller.tenant
    rows = repository.by_name(session, only=only, after=after, limit=limit)
    return page(rows, limit, TenantView.model_validate, lambda row: row.name)


# A name given by `dasl db admin-token` may contain slashes.
@router.get("/{tenant:path}")
def show_tenant(tenant: str, caller: Reader, session: ReadSession) -> TenantView:
    """Show a tenant; callers who are not operators see only their own."""
    if tenant != caller.tenant and not caller.may("operator"):
        raise not_found("tenant", tenant)
    return TenantView.model_validate(service.get(session, tenant))


@router.patch("/{tenant:path}")
def change_tenant(
    tenant: str, changes: TenantChanges, caller: Operator, session: WriteSession
) -> TenantView:
    """Change the given fields: weight, limits, and whether the tenant's tokens are refused."""
    changed = service.change(session, tenant, changes, own=caller.token_tenant)
    return TenantView.model_validate(changed)


@router.delete("/{tenant:path}", status_code=204, response_class=Response)
def delete_tenant(tenant: str, caller: Operator, session: WriteSession) -> None:
    """Delete a tenant; 409 unless it is empty."""
    service.delete(session, tenant)
