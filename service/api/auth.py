"""Bearer tokens and session cookies. Only hashes are stored; a plain hash suffices for 256 random bits.

A session acts as its token. Its cookie counts only in requests without the header `Authorization`, and only for `/v1`.

An operator may name a tenant in the header `DASL-Tenant` of any request, and then acts as its administrator. With a
header, paths, bodies and links of lists are the same for all tenants.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import unquote

from fastapi import BackgroundTasks, Depends, Request
from fastapi.security import HTTPBearer
from sqlalchemy.orm import Session

from service.api import audit_log, last_use, repository, web_session
from service.api.auth_rate_limit import too_many
from service.api.problems import Problem, not_found
from service.api.transaction import Context, WithContext
from service.credentials import Scope, hash_token, includes, token_matches

TENANT_HEADER = "DASL-Tenant"


@dataclass(frozen=True)
class Caller:
    """The token of a request, with its scope and the tenant for which it acts."""

    token_id: str
    tenant: str
    """The tenant of the token, or the one that an operator names."""
    token_tenant: str
    scope: Scope | None
    """The highest scope; `None` if this version knows none of the token's scopes."""
    has_queue_limit: bool
    """Whether the number of its queued jobs is limited, so that its submissions are serialized."""
    user_id: str | None
    """The user of the token."""
    expires_at: datetime | None
    """Expiry of the token."""
    session_hash: str | None = None
    """The hash of the session's cookie, if the request has a session instead of a token."""

    @property
    def account_id(self) -> str:
        """The account that is charged: the user of the token, or the token if it has no user."""
        return self.user_id or self.token_id

    def may(self, scope: Scope) -> bool:
        """Whether the caller's scope includes this one."""
        return includes(self.scope, scope)


def bearer_token(request: Request) -> str:
    """Return the bearer token of a request.

    Raises:
        Problem: 401, the request has no token.
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise unauthenticated(
            "The request has no token; expected the header `Authorization: Bearer TOKEN`"
        )
    return token.strip()


def unauthenticated(detail: str) -> Problem:
    """Build a 401 problem with a `WWW-Authenticate` header."""
    return Problem(401, "unauthenticated", detail, headers={"WWW-Authenticate": "Bearer"})


# For the OpenAPI document only, as `bearer_token` raises better errors.
_documented = HTTPBearer(auto_error=False, description="A token created with `dasl tokens create`")
_documented_worker = HTTPBearer(
    auto_error=False,
    scheme_name="WorkerToken",
    description="The token of one attempt of a job, or of one ingest run.",
)


def _require(scope: Scope) -> Callable[..., Caller]:
    def authenticate(
        request: Request,
        context: WithContext,
        after_response: BackgroundTasks,
        _: Annotated[object, Depends(_documented)],
    ) -> Caller:
        return _authenticate(request, context, after_response, scope)

    return authenticate


def _authenticate(
    request: Request, context: Context, after_response: BackgroundTasks, scope: Scope
) -> Caller:
    now = datetime.now(UTC)
    # Use a separate session, as the endpoint's transaction has not begun and may be a writing one.
    with context.database.autocommit() as session:
        credential, session_hash = _credential(session, request, now)
        if (reason := credential.refusal(now)) is not None:
            raise unauthenticated(reason)
        row = credential.token
        named = request.headers.get(TENANT_HEADER)  # percent-encoded UTF-8
        tenant = row.tenant if named is None else unquote(named)
        caller = Caller(
            row.id,
            tenant,
            row.tenant,
            credential.scope,
            row.max_queued_jobs is not None,
            row.user_id,
            row.expires_at,
            session_hash,
        )
        foreign = tenant != row.tenant
        is_operator = caller.may("operator")
        is_known = not (foreign and is_operator) or repository.tenant_exists(session, tenant)
    if context.last_use.is_due(row.id, row.last_used_at, now):
        after_response.add_task(last_use.record, context.database, row.id)
    needed = "operator" if foreign and not is_operator else scope
    if not caller.may(needed):
        raise _forbidden(request, context, caller, needed)
    if not is_known:
        raise not_found("tenant", tenant)
    request.state.caller = caller
    return caller


def _credential(
    session: Session, request: Request, now: datetime
) -> tuple[repository.Credential, str | None]:
    """Return the token of a request, and the hash of the session cookie if that has it.

    Raises:
        Problem: 401; or 403, the request does not come from the session's page.
    """
    cookie = request.cookies.get(web_session.COOKIE)
    if cookie is None or "authorization" in request.headers:
        return token_credential(session, bearer_token(request)), None
    session_hash = hash_token(cookie)
    credential = repository.credential_by_session(session, session_hash, now)
    if credential is None:
        raise unauthenticated("The session is unknown or has ended. Log in again")
    web_session.check_write(request, cookie)
    return credential, session_hash


def token_credential(session: Session, token: str) -> repository.Credential:
    """Look up a token; check its validity by `refusal`.

    Raises:
        Problem: 401, it does not exist.
    """
    credential = repository.credential_by_hash(session, hash_token(token))
    if credential is None or not token_matches(token, credential.token.hash):
        raise unauthenticated("The token is unknown or was revoked")
    return credential


def _forbidden(request: Request, context: Context, caller: Caller, needed: Scope) -> Problem:
    # A 403 writes an audit row, so limit the rate.
    wait = context.forbidden.count(caller.token_id)
    if wait is not None:
        return too_many(
            f"This needs the scope {needed!r}. Too many requests with this token were refused for a missing scope; retry later",
            wait,
        )
    with context.database.write() as session:
        audit_log.record(
            session, request, caller.token_tenant, caller.token_id, caller.user_id, 403
        )
    cause = f"The header {TENANT_HEADER}" if caller.tenant != caller.token_tenant else "This"
    detail = f"{cause} needs the scope {needed!r}; the token has: {caller.scope or 'none'}"
    return Problem(403, "forbidden", detail)


Reader = Annotated[Caller, Depends(_require("read"))]
Submitter = Annotated[Caller, Depends(_require("submit"))]
Admin = Annotated[Caller, Depends(_require("admin"))]
Operator = Annotated[Caller, Depends(_require("operator"))]


def _with_session(
    request: Request, context: WithContext, after_response: BackgroundTasks
) -> Caller:
    caller = _authenticate(request, context, after_response, "read")
    if caller.session_hash is None:
        raise unauthenticated(
            "The request has no session; it needs the session cookie, and no token"
        )
    return caller


SessionCaller = Annotated[Caller, Depends(_with_session)]


async def _worker_token(request: Request, _: Annotated[object, Depends(_documented_worker)]) -> str:
    return bearer_token(request)


# Ownership is checked in `worker_api`.
WorkerToken = Annotated[str, Depends(_worker_token)]
