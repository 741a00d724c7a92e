"""`/v1/tokens`: the tokens of an administrator's tenant."""

from typing import Annotated

from fastapi import APIRouter, Response

from service.api.auth import Admin, Reader
from service.api.pagination import Page, Window, page, window
from service.api.transaction import ReadSession, Route, WriteSession
from service.db.models import Token
from service.db.rows import by_id, newest, owned
from service.tokens import service
from service.tokens.schemas import TokenChanges, TokenRequest
from service.wire.access import NewToken, TokenView

router = APIRouter(prefix="/v1/tokens", tags=["tokens"], route_class=Route)


@router.post("", status_code=201)
def create_token(request: TokenRequest, caller: Admin, session: WriteSession) -> NewToken:
    """Create a token; only this answer contains its text."""
    token, text = service.create_for(session, caller, request)
    return NewToken(**TokenView.model_validate(token).model_dump(), token=text)


@router.get("")
def list_tokens(
    caller: Admin, session: ReadSession, window: Annotated[Window, window("tok")]
) -> Page[TokenView]:
    """List tokens, newest first, including revoked ones."""
    rows = newest(session, owned(Token, caller.tenant), *window)
    return page(rows, window.limit, TokenView.model_validate)


@router.get("/current")
def show_current_token(caller: Reader, session: ReadSession) -> TokenView:
    """Show the token of this request."""
    return TokenView.model_validate(by_id(session, Token, caller.token_id))


@router.patch("/{token_id}")
def change_token(
    token_id: str, changes: TokenChanges, caller: Admin, session: WriteSession
) -> TokenView:
    """Change the given quotas and expiry; null: no limit, no expiry."""
    return TokenView.model_validate(service.change(session, caller, token_id, changes))


@router.delete("/{token_id}", status_code=204, response_class=Response)
def revoke_token(token_id: str, caller: Admin, session: WriteSession) -> None:
    """Revoke a token, with immediate effect."""
    service.revoke(session, caller, token_id)
