"""Create, change and delete tenants."""

from datetime import UTC, datetime

from sqlalchemy.orm import Session

from service.api.problems import Problem, not_found
from service.db.locks import lock_tenant
from service.db.models import Tenant
from service.db.rows import add_if_new
from service.tenants import repository
from service.tenants.schemas import Limits, TenantChanges, TenantRequest

_NOUNS = {"jobs": "job", "datasets": "data set", "tokens": "valid token", "users": "enabled user"}


def create(session: Session, request: TenantRequest) -> Tenant:
    """Create a tenant.

    Raises:
        Problem: 409, a tenant of this name exists.
    """
    limits = {field: getattr(request, field) for field in Limits.model_fields}
    tenant = Tenant(name=request.name, created_at=datetime.now(UTC), **limits)
    if not add_if_new(session, tenant):
        raise Problem(
            409,
            "name-taken",
            f"The tenant {request.name!r} exists. Choose another name, or change that tenant.",
        )
    return tenant


def ensure(session: Session, name: str) -> None:
    """Add a tenant's row with the defaults, unless it exists, and lock it until the transaction ends."""
    while not lock_tenant(session, name):  # it may be deleted concurrently
        add_if_new(session, Tenant(name=name, created_at=datetime.now(UTC)))


def get(session: Session, name: str, *, lock: bool = False) -> Tenant:
    """Return a tenant.

    Raises:
        Problem: 404.
    """
    tenant = repository.get(session, name, lock=lock) if "\0" not in name else None
    if tenant is None:
        raise not_found("tenant", name)
    return tenant


def change(session: Session, name: str, changes: TenantChanges, *, own: str) -> Tenant:
    """Change the given fields. Jobs that were already submitted continue.

    Args:
        own: the tenant of the caller's token, which the caller cannot disable.

    Raises:
        Problem: 404; 409, the caller would disable its own token.
    """
    tenant = get(session, name, lock=True)
    named = changes.model_fields_set
    if "disabled" in named:
        if changes.disabled and name == own:
            raise Problem(
                409,
                "would-lock-out",
                f"disabled: {name!r} is the tenant of this token, which would be refused. Use the token of "
                "an operator of another tenant",
            )
        tenant.disabled_at = (tenant.disabled_at or datetime.now(UTC)) if changes.disabled else None
    for field in named & Limits.model_fields.keys():
        setattr(tenant, field, getattr(changes, field))
    session.flush()
    return tenant


def delete(session: Session, name: str) -> None:
    """Delete an empty tenant. Its audit log stays.

    Raises:
        Problem: 404; 409, it is not empty.
    """
    get(session, name, lock=True)
    contents = repository.contents(session, name, datetime.now(UTC))
    if contents:
        parts = [
            f"{number} {_NOUNS[kind]}{'' if number == 1 else 's'}"
            for kind, number in contents.items()
        ]
        raise Problem(
            409,
            "tenant-not-empty",
            f"The tenant {name!r} has {', '.join(parts)}. Remove them first, or disable the tenant "
            f"(dasl tenants disable {name})",
            extra={"left": contents},
        )
    repository.remove(session, name)
