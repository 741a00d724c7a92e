"""SQL that every request needs: token look-up and audit log."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import bindparam, insert, or_, select, update
from sqlalchemy.orm import Session

from service import credentials
from service.credentials import Scope
from service.db.models import AuditEntry, Base, Tenant, Token, User, UtcDateTime, WebSession

_CREDENTIAL = (
    select(Token, Tenant.disabled_at, User)
    .outerjoin(Tenant, Tenant.name == Token.tenant)
    .outerjoin(User, User.id == Token.user_id)
)
# Built once, because they run for every request and building one takes half of its run time.
_BY_HASH = _CREDENTIAL.where(Token.hash == bindparam("hash"))
_BY_ID = _CREDENTIAL.where(Token.id == bindparam("id"))
_BY_SESSION = _CREDENTIAL.join(WebSession, WebSession.token_id == Token.id).where(
    WebSession.hash == bindparam("hash"),
    WebSession.expires_at > bindparam("now", type_=UtcDateTime()),
)
_ADD_AUDIT_ENTRY = insert(Base.metadata.tables[AuditEntry.__tablename__])


@dataclass(frozen=True)
class Credential:
    """A token with everything that decides its validity and scope."""

    token: Token
    tenant_disabled_at: datetime | None
    user: User | None

    @property
    def scope(self) -> Scope | None:
        """The highest scope of the token, at most the role of its user."""
        scope = credentials.highest_scope(self.token.scopes)
        if self.user is None or scope is None:
            return scope
        role = credentials.highest_scope([self.user.role])
        return scope if credentials.includes(role, scope) else role

    def refusal(self, now: datetime) -> str | None:
        """Return why the token is refused; `None` if it is valid."""
        token = self.token
        if token.revoked_at is not None:
            return "The token is unknown or was revoked"
        if token.expires_at is not None and token.expires_at <= now:
            expired_at = f"{token.expires_at:%Y-%m-%d %H:%M} UTC"
            return (
                f"The token expired at {expired_at}. Use another one, or log in again (dasl login)"
            )
        if token.user_id is not None and (self.user is None or self.user.disabled_at is not None):
            return "The user of the token is disabled. An administrator of the tenant can enable it"
        if self.tenant_disabled_at is not None:
            return "The tenant of the token is disabled. An operator of the service can enable it"
        return None


def credential_by_hash(session: Session, hash: str) -> Credential | None:
    """Return the token with this hash, valid or not."""
    row = session.execute(_BY_HASH, {"hash": hash}).one_or_none()
    return None if row is None else Credential(*row)


def credential_by_session(session: Session, hash: str, now: datetime) -> Credential | None:
    """Return the token, valid or not, of the unexpired session whose cookie has this hash."""
    row = session.execute(_BY_SESSION, {"hash": hash, "now": now}).one_or_none()
    return None if row is None else Credential(*row)


def credential_by_id(session: Session, token_id: str) -> Credential | None:
    """Return the token with this id, valid or not."""
    row = session.execute(_BY_ID, {"id": token_id}).one_or_none()
    return None if row is None else Credential(*row)


def tenant_exists(session: Session, name: str) -> bool:
    query = select(Tenant.name).where(Tenant.name == name)
    return "\0" not in name and session.scalar(query) is not None


def record_use(session: Session, token_id: str, now: datetime, resolution: timedelta) -> None:
    """Set the last use of a token, unless the stored one is recent enough."""
    session.execute(
        update(Token)
        .where(
            Token.id == token_id,
            or_(Token.last_used_at.is_(None), Token.last_used_at < now - resolution),
        )
        .values(last_used_at=now)
    )


def add_audit_entry(session: Session, columns: dict[str, Any]) -> None:
    """Add a row to the audit log, with the columns of `AuditEntry`."""
    session.execute(_ADD_AUDIT_ENTRY, columns)
