"""`/v1/login`: tokens for people, by OpenID Connect. Off unless `DASL_OIDC_ISSUER` is set."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from service.api import audit_log
from service.api.auth_rate_limit import too_many
from service.api.json_body import client_address
from service.api.problems import Problem
from service.api.transaction import Route, WithContext
from service.login import service
from service.login.provider import Provider
from service.login.schemas import LoginRequest, LoginResult
from service.wire.access import NewToken, StartedLogin, TokenView

router = APIRouter(prefix="/v1/login", tags=["login"], route_class=Route)


async def _provider(request: Request) -> Provider:
    provider = request.app.state.login_provider
    if not isinstance(provider, Provider):
        raise Problem(
            404,
            "login-not-configured",
            "This server has no login provider (DASL_OIDC_ISSUER). Use a token: an administrator creates one "
            "with `dasl tokens create`",
        )
    return provider


WithProvider = Annotated[Provider, Depends(_provider)]


@router.post("", status_code=201)
def start_login(
    login: LoginRequest, request: Request, context: WithContext, provider: WithProvider
) -> StartedLogin:
    """Start a login: a person opens the page, and the client presents the code that the browser sends."""
    # Limit the rate, because it needs no token and adds a row.
    address = client_address(request.scope)
    wait = context.logins.count(address or "")
    if wait is not None:
        raise too_many("Too many logins were started from this address; retry later", wait)
    return service.start(context.database, provider, login, address)


@router.post("/finish", status_code=201)
def finish_login(
    result: LoginResult, request: Request, context: WithContext, provider: WithProvider
) -> NewToken:
    """Finish a login: create or update the user, and return a token that expires."""
    claims = service.redeem_claims(context.database, provider, result)
    with context.database.write() as session:
        token, text = service.log_in(session, context.settings, claims)
        audit_log.record(session, request, token.tenant, token.id, token.user_id, 201)
        return NewToken(**TokenView.model_validate(token).model_dump(), token=text)
