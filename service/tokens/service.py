"""Create, change and revoke API tokens, and enforce their queue quota."""

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from service import credentials, ids
from service.api import references
from service.api.auth import Caller
from service.api.problems import Problem, field_problem, quota_exceeded
from service.db.models import Token
from service.db.rows import add, owned
from service.tenants import service as tenants
from service.tokens import repository
from service.tokens.schemas import DefaultQuotas, Expiry, Quotas, TokenChanges, TokenRequest
from service.users import service as users


def create_for(session: Session, caller: Caller, request: TokenRequest) -> tuple[Token, str]:
    """Create the token that a caller requests; return its row and its text.

    By default it belongs to the caller's user and expires with the caller's token.

    Raises:
        Problem: 403, the user is an operator; 404, no such user; 409, the user is disabled; 422, a scope exceeds the caller's or the user's.
    """
    highest = credentials.highest_scope(request.scopes)
    users.check_grant(caller, "scopes", str(highest))
    user_id, expires_at = request.user_id, request.expiry()
    if "user_id" not in request.model_fields_set and caller.tenant == caller.token_tenant:
        user_id = caller.user_id
    if not request.model_fields_set & Expiry.model_fields.keys() and not caller.may("operator"):
        expires_at = caller.expires_at
    if user_id is not None:
        user = users.get(session, caller.tenant, user_id)
        users.check_may_change(caller, user)
        users.check_enabled(user)
        role = credentials.highest_scope([user.role])
        if highest is not None and not credentials.includes(role, highest):
            raise field_problem(
                "scopes", f"exceed the role {user.role!r} of the user", highest, f"at most {role}"
            )
    return create(
        session,
        tenant=caller.tenant,
        name=request.name,
        scopes=request.scopes,
        quotas=request,
        user_id=user_id,
        expires_at=expires_at,
    )


def create(
    session: Session,
    *,
    tenant: str,
    name: str,
    scopes: Sequence[credentials.Scope],
    quotas: Quotas | None = None,
    user_id: str | None = None,
    expires_at: datetime | None = None,
    from_login: bool = False,
) -> tuple[Token, str]:
    """Create a token, and the row of its tenant; return its row and its text, which is not stored."""
    tenants.ensure(session, tenant)
    text, hashed = credentials.new_token()
    quotas = quotas or DefaultQuotas()
    token = Token(
        id=ids.new_id("tok"),
        tenant=tenant,
        name=name,
        hash=hashed,
        scopes=sorted(set(scopes)),
        user_id=user_id,
        expires_at=expires_at,
        from_login=from_login,
        **{quota: getattr(quotas, quota) for quota in Quotas.model_fields},
        created_at=datetime.now(UTC),
    )
    add(session, token)
    return token, text


def change(session: Session, caller: Caller, token_id: str, changes: TokenChanges) -> Token:
    """Change the given quotas and expiry. Running jobs continue even above a new limit.

    Raises:
        Problem: 403, it is an operator's; 404, the tenant has no such token; 422, the caller may not extend a token
            with the scope `operator`.
    """
    token = _find(session, caller, token_id)
    _check_owner(session, caller, token)
    named = changes.model_fields_set
    for quota in named & Quotas.model_fields.keys():
        setattr(token, quota, getattr(changes, quota))
    if named & {"expires_at", "expires_in_days"}:
        users.check_grant(caller, "expires_at", str(credentials.highest_scope(token.scopes)))
        token.expires_at = changes.expiry()
    session.flush()
    return token


def check_queue(session: Session, caller: Caller, limit: int | None, jobs: int = 1) -> None:
    """Check that a caller's token may have more jobs in the queue; all jobs of its user count.

    Args:
        limit: from `lock_quota` in the same transaction.
        jobs: number of jobs that are queued together.

    Raises:
        Problem: 429, the queue quota is exhausted.
    """
    if limit is None:
        return
    queued = repository.count_queued(session, caller.account_id)
    if queued + jobs > limit:
        whose = "its jobs" if caller.user_id is None else "the jobs of its user"
        raise queue_full("token", whose, limit, queued, jobs)


def queue_full(owner: str, whose: str, limit: int, queued: int, jobs: int) -> Problem:
    """Build a 429 problem for a full queue of an owner, by whose jobs it is full."""
    remedy = "submit again when one has started"
    if jobs > 1:
        remedy = f"these are {jobs} more. Submit fewer, or again when others have started"
    detail = (
        f"max_queued_jobs of this {owner} is {limit}, and {queued} of {whose} are queued; {remedy}"
    )
    return quota_exceeded("max_queued_jobs", limit, queued, detail)


def revoke(session: Session, caller: Caller, token_id: str) -> None:
    """Revoke a token. Idempotent.

    Raises:
        Problem: 403, it is an operator's; 404, the tenant has no such token.
    """
    token = _find(session, caller, token_id)
    _check_owner(session, caller, token)
    token.revoked_at = token.revoked_at or datetime.now(UTC)


def _check_owner(session: Session, caller: Caller, token: Token) -> None:
    """Check that a caller may change a token: only operators may change tokens of operators."""
    if token.user_id is not None:
        users.check_may_change(caller, users.get(session, token.tenant, token.user_id))
    elif credentials.highest_scope(token.scopes) == "operator" and not caller.may("operator"):
        raise Problem(
            403,
            "forbidden",
            f"The token {token.name!r} has the scope 'operator'; only an operator may change it",
        )


def _find(session: Session, caller: Caller, token_id: str) -> Token:
    other = " (another one: DASL_TENANT)" if caller.may("operator") else ""
    where = f" of tenant {caller.tenant}{other}"
    return references.get(session, owned(Token, caller.tenant), "tok", token_id, "token", where)
