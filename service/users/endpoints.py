"""`/v1/users`: the users of an administrator's tenant."""

from typing import Annotated

from fastapi import APIRouter, Response

from service.api.auth import Admin
from service.api.pagination import Page, Window, page, window
from service.api.transaction import ReadSession, Route, WriteSession
from service.db.models import User
from service.db.rows import newest, owned
from service.users import service
from service.users.schemas import UserChanges, UserRequest
from service.wire.access import UserView

router = APIRouter(prefix="/v1/users", tags=["users"], route_class=Route)


@router.post("", status_code=201)
def create_user(
    request: UserRequest, response: Response, caller: Admin, session: WriteSession
) -> UserView:
    """Create a user; create its tokens with `user_id`."""
    user = service.create(session, caller, request)
    response.headers["Location"] = f"/v1/users/{user.id}"
    return UserView.model_validate(user)


@router.get("")
def list_users(
    caller: Admin, session: ReadSession, window: Annotated[Window, window("usr")]
) -> Page[UserView]:
    """List users, newest first, including disabled ones."""
    rows = newest(session, owned(User, caller.tenant), *window)
    return page(rows, window.limit, UserView.model_validate)


@router.get("/{user_id}")
def show_user(user_id: str, caller: Admin, session: ReadSession) -> UserView:
    """Show a user."""
    return UserView.model_validate(service.get(session, caller.tenant, user_id))


@router.patch("/{user_id}")
def change_user(
    user_id: str, changes: UserChanges, caller: Admin, session: WriteSession
) -> UserView:
    """Change the given fields; the tokens of a disabled user are refused immediately."""
    return UserView.model_validate(service.change(session, caller, user_id, changes))
