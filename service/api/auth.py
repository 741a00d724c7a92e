"""Bearer tokens. Only a hash is stored; a token has 256 random bits, so a plain hash is enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from service.api import audit_log, repository
from service.api.auth_rate_limit import too_many
from service.api.problems import Problem
from service.api.transaction import WithContext
from service.credentials import Scope, hash_token, token_matches

# Each scope includes those before it.
_RANK: dict[str, int] = {"read": 0, "submit": 1, "admin": 2}


@dataclass(frozen=True)
class Caller:
    """The token of a request, with its tenant and scopes."""

    token_id: str
    tenant: str
    scopes: tuple[str, ...]
    has_queue_limit: bool
    """Whether the number of its queued jobs is limited, so that its submissions are serialized."""

    def may(self, scope: Scope) -> bool:
        """Whether the caller's scopes include this one."""
        return any(_RANK[held] >= _RANK[scope] for held in self.scopes)


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
    """A 401 problem with a `WWW-Authenticate` header."""
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
        request: Request, context: WithContext, _: Annotated[object, Depends(_documented)]
    ) -> Caller:
        token = bearer_token(request)
        # A separate session, as the endpoint's transaction has not begun and may be a writing one.
        with context.database.autocommit() as session:
            row = repository.token_by_hash(session, hash_token(token))
            valid = row is not None and token_matches(token, row.hash) and row.revoked_at is None
            if row is None or not valid:
                raise unauthenticated("The token is unknown or was revoked")
            caller = Caller(row.id, row.tenant, tuple(row.scopes), row.max_queued_jobs is not None)
        request.state.caller = caller
        if not caller.may(scope):
            # A 403 writes an audit row, so it is rate-limited.
            wait = context.forbidden.count(caller.token_id)
            if wait is not None:
                raise too_many(
                    f"This needs the scope {scope!r}. Too many requests with this token were refused for a missing scope; retry later",
                    wait,
                )
            with context.database.write() as session:
                audit_log.record(session, request, caller.tenant, caller.token_id, 403)
            scopes = ", ".join(caller.scopes) or "none"
            detail = f"This needs the scope {scope!r}; the token has: {scopes}"
            raise Problem(403, "forbidden", detail)
        return caller

    return authenticate


Reader = Annotated[Caller, Depends(_require("read"))]
Submitter = Annotated[Caller, Depends(_require("submit"))]
Admin = Annotated[Caller, Depends(_require("admin"))]


async def _worker_token(request: Request, _: Annotated[object, Depends(_documented_worker)]) -> str:
    return bearer_token(request)


# Ownership is checked in `worker_api`.
WorkerToken = Annotated[str, Depends(_worker_token)]
