"""`/v1/session`: logins of the page. A session is a cookie that scripts cannot read, and acts as its token."""

from fastapi import APIRouter, Request, Response

from service.api import audit_log, web_session
from service.api.auth import Reader, SessionCaller, unauthenticated
from service.api.problems import Problem
from service.api.transaction import ReadSession, Route, WithContext, WriteSession
from service.db.models import Token, WebSession
from service.db.rows import by_id
from service.sessions import repository, service
from service.sessions.service import SessionRequest
from service.wire.access import NewLoginCode, SessionView

router = APIRouter(prefix="/v1/session", tags=["session"], route_class=Route)


@router.post("", status_code=201)
def log_in(
    login: SessionRequest,
    request: Request,
    response: Response,
    context: WithContext,
    session: WriteSession,
) -> SessionView:
    """Start a session with a token or a login code, and set its cookie."""
    web_session.check_origin(request)
    service.check(context.database, login, request.cookies.get(web_session.COOKIE))
    row, token, cookie = service.start(session, login, context.settings.session_hours)
    audit_log.record(session, request, token.tenant, token.id, token.user_id, 201)
    seconds = (row.expires_at - row.created_at).total_seconds()
    web_session.set_cookie(request, response, cookie, seconds)
    context.visited.set()
    return service.view(token, row, cookie)


@router.get("")
def show_session(
    request: Request, caller: SessionCaller, context: WithContext, session: ReadSession
) -> SessionView:
    """Show the token of the session, and its CSRF token."""
    assert caller.session_hash is not None
    row = by_id(session, WebSession, caller.session_hash)
    token = by_id(session, Token, caller.token_id)
    if row is None or token is None:
        raise unauthenticated("The session has ended. Log in again")
    context.visited.set()
    return service.view(token, row, request.cookies[web_session.COOKIE])


@router.delete("", status_code=204, response_class=Response)
def log_out(
    request: Request, response: Response, caller: SessionCaller, session: WriteSession
) -> None:
    """End the session, with immediate effect, and remove its cookie."""
    assert caller.session_hash is not None
    repository.remove(session, caller.session_hash)
    web_session.set_cookie(request, response, "", 0)


@router.post("/codes", status_code=201)
def create_login_code(caller: Reader, session: WriteSession) -> NewLoginCode:
    """Create a code that starts one session of this token within ten minutes; `dasl open` adds it to an address."""
    if caller.session_hash is not None:
        raise Problem(403, "forbidden", "A login code would outlive its session; use the token")
    row, code = service.new_code(session, caller.token_id)
    return NewLoginCode(code=code, expires_at=row.expires_at)
