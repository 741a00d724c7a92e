"""Sessions of the page, which are started with a token or a login code, and login codes.

Sessions and codes refer to a token and grant nothing beyond it. Their secrets have 256 random bits, and only the hashes
are stored.
"""

from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import Field
from sqlalchemy.orm import Session

from dasl_core.headlines import TITLES
from dasl_core.spec.base import StrictModel
from dasl_core.vocabulary import IMAGE_EXTENSIONS
from service import credentials
from service.api import repository as tokens
from service.api.auth import token_credential, unauthenticated
from service.api.problems import Problem, field_problem
from service.api.web_session import csrf_token
from service.datasets.schemas import UPLOAD_ENDINGS
from service.db.models import LoginCode, Token, WebSession
from service.db.rows import by_id
from service.db.session import Database
from service.sessions import repository
from service.wire.access import SessionView, TokenView

_CODE_LIFE = timedelta(minutes=10)
# Most sessions of a token. A script that logs in repeatedly ends its oldest sessions.
_MAX_SESSIONS, _MAX_CODES = 100, 20

Secret = Annotated[str, Field(min_length=1, max_length=500)]


class SessionRequest(StrictModel):
    """A login of the page, by a token or a login code.

    With `replace`, a code also takes the place of a session of another token.
    """

    token: Secret | None = None
    code: Secret | None = None
    replace: bool = False


def check(database: Database, request: SessionRequest, cookie: str | None) -> None:
    """Check a login without writing, so that failed logins do not compete with writers of the database.

    Raises:
        Problem: 401, the token or code is invalid; 409, the cookie is that of another token's session, which a code does
            not replace unasked; 422, the request does not have exactly one of token and code.
    """
    now = datetime.now(UTC)
    with database.autocommit() as session:
        if request.token is not None and request.code is None:
            _valid(token_credential(session, request.token), now)
        elif request.code is not None and request.token is None:
            of_code = repository.token_of_code(session, credentials.hash_token(request.code), now)
            if of_code is None:
                raise _code_refused()
            if cookie is not None and not request.replace:
                _check_same(session, cookie, of_code, now)
        else:
            raise field_problem("token", "send either `token` or `code`")


def start(session: Session, request: SessionRequest, hours: float) -> tuple[WebSession, Token, str]:
    """Start a session of at most some hours; returns its row, its token, and its cookie.

    Raises:
        Problem: 401, the token or code is not valid.
    """
    now = datetime.now(UTC)
    if request.token is not None:
        credential: tokens.Credential | None = token_credential(session, request.token)
    else:
        assert request.code is not None
        token_id = repository.take_code(session, credentials.hash_token(request.code), now)
        credential = None if token_id is None else tokens.credential_by_id(session, token_id)
    if credential is None:
        raise _code_refused()
    token = _valid(credential, now)
    cookie, hashed = credentials.new_token()
    ends = [now + timedelta(hours=hours), *([token.expires_at] if token.expires_at else [])]
    row = WebSession(hash=hashed, token_id=token.id, created_at=now, expires_at=min(ends))
    repository.add(session, row, keep=_MAX_SESSIONS)
    return row, token, cookie


def new_code(session: Session, token_id: str) -> tuple[LoginCode, str]:
    """Create a code that starts one session of a token within ten minutes; returns its row and its text."""
    code, hashed = credentials.new_token()
    now = datetime.now(UTC)
    row = LoginCode(hash=hashed, token_id=token_id, created_at=now, expires_at=now + _CODE_LIFE)
    repository.add(session, row, keep=_MAX_CODES)
    return row, code


def view(token: Token, row: WebSession, cookie: str) -> SessionView:
    """Describe a session to the page that has its cookie."""
    held = credentials.highest_scope(token.scopes)
    scopes = [scope for scope in credentials.SCOPES if credentials.includes(held, scope)]
    return SessionView(
        **{**TokenView.model_validate(token).model_dump(), "scopes": scopes},
        csrf=csrf_token(cookie),
        session_expires_at=row.expires_at,
        metrics=TITLES,
        image_extensions=sorted(IMAGE_EXTENSIONS),
        upload_endings=list(UPLOAD_ENDINGS),
    )


def _valid(credential: tokens.Credential, now: datetime) -> Token:
    if (reason := credential.refusal(now)) is not None:
        raise unauthenticated(reason)
    return credential.token


def _check_same(session: Session, cookie: str, token_id: str, now: datetime) -> None:
    """Check that a code has the token of the session: a stranger's link would log a person in to another tenant."""
    held = tokens.credential_by_session(session, credentials.hash_token(cookie), now)
    if held is None or held.refusal(now) is not None or held.token.id == token_id:
        return
    other = by_id(session, Token, token_id)
    if other is not None:
        raise Problem(
            409,
            "other-session",
            f"You are logged in as {held.token.name} of the tenant {held.token.tenant}. This link logs in as "
            f"{other.name} of the tenant {other.tenant}, to whom what you then do belongs",
        )


def _code_refused() -> Problem:
    return unauthenticated(
        "The login code is unknown, was used before, or is older than ten minutes. Get another one: dasl open"
    )
