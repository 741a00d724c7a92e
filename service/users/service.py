"""Create and change users."""

from datetime import UTC, datetime

from sqlalchemy.orm import Session

from service import ids
from service.api import references
from service.api.auth import Caller
from service.api.problems import Problem, field_problem, not_found
from service.credentials import Scope
from service.db.locks import lock_tenant
from service.db.models import User
from service.db.rows import add, owned
from service.users.schemas import UserChanges, UserRequest


def create(session: Session, caller: Caller, request: UserRequest) -> User:
    """Create a user of the caller's tenant.

    Raises:
        Problem: 404, the tenant was deleted; 422, the role is above the caller's scope.
    """
    check_grant(caller, "role", request.role)
    if not lock_tenant(session, caller.tenant):
        raise not_found("tenant", caller.tenant)
    user = User(
        id=ids.new_id("usr"),
        tenant=caller.tenant,
        name=request.name,
        email=request.email,
        role=request.role,
        created_at=datetime.now(UTC),
    )
    add(session, user)
    return user


def get(session: Session, tenant: str, user_id: str, *, lock: bool = False) -> User:
    """Return a tenant's user.

    Raises:
        Problem: 404.
    """
    return references.get(session, owned(User, tenant), "usr", user_id, "user", lock=lock)


def change(session: Session, caller: Caller, user_id: str, changes: UserChanges) -> User:
    """Change the given fields; a lower role limits the user's tokens immediately.

    Raises:
        Problem: 403, the user is an operator; 404; 422, the caller may not grant the role.
    """
    user = get(session, caller.tenant, user_id, lock=True)
    check_may_change(caller, user)
    named = changes.model_fields_set
    if "role" in named:
        check_grant(caller, "role", changes.role)
    elif "disabled" in named and not changes.disabled:
        # An enabled user has its role again.
        check_grant(caller, "disabled", user.role)
    if "disabled" in named:
        user.disabled_at = (user.disabled_at or datetime.now(UTC)) if changes.disabled else None
    for field in named & {"name", "email", "role"}:
        setattr(user, field, getattr(changes, field))
    session.flush()
    return user


def check_grant(caller: Caller, field: str, scope: Scope | str) -> None:
    """Check that a caller grants no more than its own scope: only operators may create operators.

    Raises:
        Problem: 422 for the field.
    """
    if scope == "operator" and not caller.may("operator"):
        raise field_problem(field, "the scope 'operator' is granted by operators only", scope)


def check_may_change(caller: Caller, user: User) -> None:
    """Check that a caller may change a user and its tokens: only operators change other operators.

    Raises:
        Problem: 403.
    """
    if user.role == "operator" and user.id != caller.user_id and not caller.may("operator"):
        raise Problem(
            403,
            "forbidden",
            f"The user {user.name!r} is an operator; only an operator may change it or its tokens",
        )


def check_enabled(user: User) -> None:
    """Check that a user may get tokens.

    Raises:
        Problem: 409, the user is disabled.
    """
    if user.disabled_at is not None:
        raise Problem(
            409,
            "user-disabled",
            f"The user {user.name!r} is disabled. Enable it first (dasl users enable {user.id})",
        )
