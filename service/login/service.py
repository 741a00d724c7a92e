"""Log people in at the OpenID Connect provider, and give them a token that expires.

The browser sends the provider's code to the client, which started the login and is the only one that knows its secret.
State, nonce and PKCE verifier are used once.
"""

import ipaddress
import secrets
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from service import credentials, ids
from service.api.problems import Problem
from service.db.models import Login, Token, User
from service.db.rows import add, add_if_new
from service.db.session import Database
from service.login import repository
from service.login.provider import Provider, login_failed
from service.login.schemas import LoginRequest, LoginResult
from service.settings import Settings
from service.tenants import repository as tenants
from service.tokens import service as tokens
from service.wire.access import StartedLogin

_PENDING = timedelta(minutes=10)
_MAX_PENDING = 10_000
# Limited, so that one address cannot keep others from logging in.
_MAX_PENDING_PER_ADDRESS = 100


def start(
    database: Database, provider: Provider, request: LoginRequest, address: str | None
) -> StartedLogin:
    """Start a login.

    Args:
        address: address of the client.

    Raises:
        Problem: 429, too many logins, of this address or in total, are unfinished; 503, the provider does not answer.
    """
    state, secret, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(4))
    url = provider.authorization_url(
        redirect_uri=request.redirect_uri, state=state, nonce=nonce, code_verifier=verifier
    )
    now = datetime.now(UTC)
    login = Login(
        state_hash=credentials.hash_token(state),
        secret_hash=credentials.hash_token(secret),
        nonce=nonce,
        code_verifier=verifier,
        redirect_uri=request.redirect_uri,
        expires_at=now + _PENDING,
        address=address and client_network(address),
    )
    with database.write() as session:
        if repository.remove_expired(session, now) >= _MAX_PENDING:
            raise _too_many("Too many logins are unfinished")
        if repository.count_from(session, login.address) >= _MAX_PENDING_PER_ADDRESS:
            raise _too_many("Too many logins from this address are unfinished")
        add(session, login)
    return StartedLogin(
        authorization_url=url, state=state, secret=secret, expires_at=login.expires_at
    )


def client_network(address: str) -> str:
    """Return an IPv4 address, or the /64 network of an IPv6 address, which may belong to a single client."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:  # for example of a Unix socket
        return address[:100]
    if isinstance(ip, ipaddress.IPv6Address):
        # A server that listens on both versions sees IPv4 clients as ::ffff:192.0.2.7.
        if ip.ipv4_mapped is not None:
            return str(ip.ipv4_mapped)
        return str(ipaddress.ip_network((ip.packed, 64), strict=False))
    return str(ip)


def _too_many(reason: str) -> Problem:
    headers = {"Retry-After": str(int(_PENDING.total_seconds()))}
    return Problem(429, "too-many-logins", f"{reason}; try again in ten minutes", headers=headers)


def redeem_claims(database: Database, provider: Provider, result: LoginResult) -> dict[str, Any]:
    """Redeem the code of a login and return the verified claims about the person.

    Raises:
        Problem: 401, the login is unknown, used or expired, or the provider's answer is not valid; 503.
    """
    verified_claims = id_token_check()
    # Commit before the request to the provider, so that a login is tried only once.
    with database.write() as session:
        login = repository.take(session, credentials.hash_token(result.state), datetime.now(UTC))
    if login is None or not credentials.token_matches(result.secret, login.secret_hash):
        raise login_failed("it is unknown, was used before, or is older than ten minutes")
    id_token = provider.redeem(
        result.code, redirect_uri=login.redirect_uri, code_verifier=login.code_verifier
    )
    return verified_claims(id_token, login.nonce, provider)


def id_token_check() -> Callable[[str, str, Provider], dict[str, Any]]:
    """Return `verified_claims`, which needs the extra `oidc`.

    Raises:
        ValueError: the extra is not installed.
    """
    try:
        from service.login.id_token import verified_claims
    except ModuleNotFoundError as error:
        if error.name != "jwt":
            raise
        raise ValueError(
            'DASL_OIDC_ISSUER: needs the extra oidc; in a checkout of DASL: pip install ".[server,oidc]"'
        ) from error
    return verified_claims


def log_in(session: Session, settings: Settings, claims: dict[str, Any]) -> tuple[Token, str]:
    """Create or update the user of verified claims; return a token and its text.

    Raises:
        Problem: 403, the claims name no tenant or role, or the tenant or user is disabled.
    """
    now = datetime.now(UTC)
    tenant, role = _tenant(settings, claims), _role(settings, claims)
    row = tenants.get(session, tenant)
    if row is None:
        raise _refused(f"the tenant {tenant!r} does not exist; an operator can create it")
    if row.disabled_at is not None:
        raise _refused(f"the tenant {tenant!r} is disabled")
    user = _user(session, tenant, claims, role, now)
    if user.disabled_at is not None:
        raise _refused("this user is disabled; an administrator of the tenant can enable it")
    if settings.oidc_role_claim:
        user.role = role  # otherwise, administrators set it
    name, email = _text(claims, "name", "preferred_username", "email", "sub"), _email(claims)
    user.name, user.email, user.last_login_at = name, email, now
    return tokens.create(
        session,
        tenant=tenant,
        name="dasl login",
        scopes=[credentials.highest_scope([user.role]) or "read"],
        user_id=user.id,
        expires_at=now + timedelta(hours=settings.oidc_token_hours),
        from_login=True,
    )


def _user(session: Session, tenant: str, claims: dict[str, Any], role: str, now: datetime) -> User:
    """Return the user of an identity; add it at the first login."""
    issuer, subject = str(claims["iss"]), str(claims["sub"])
    if not subject or len(subject) > 255 or not subject.isprintable():
        raise _refused("the claim 'sub' is not valid")
    while (user := repository.find_user(session, tenant, issuer, subject)) is None:
        added = User(
            id=ids.new_id("usr"),
            tenant=tenant,
            name=subject[:200],
            role=role,
            issuer=issuer,
            subject=subject,
            created_at=now,
        )
        if add_if_new(session, added):
            return added
    return user


def _tenant(settings: Settings, claims: dict[str, Any]) -> str:
    if not settings.oidc_tenant_claim:
        return settings.oidc_tenant
    values = _values(claims, settings.oidc_tenant_claim)
    if len(values) != 1:
        raise _refused(f"the claim {settings.oidc_tenant_claim!r} does not name one tenant")
    return values[0]


def _role(settings: Settings, claims: dict[str, Any]) -> credentials.Scope:
    values = _values(claims, settings.oidc_role_claim) if settings.oidc_role_claim else []
    roles = [settings.oidc_roles[value] for value in values if value in settings.oidc_roles]
    role = credentials.highest_scope(roles) or settings.oidc_role
    if not role:
        raise _refused(
            f"no value of the claim {settings.oidc_role_claim!r} has a role; an operator sets DASL_OIDC_ROLES"
        )
    return role


def _values(claims: dict[str, Any], name: str) -> list[str]:
    """Return the values of a claim that is a string or a list of strings."""
    value = claims.get(name)
    values: Iterable[object] = value if isinstance(value, list) else [value]
    return [text for text in values if isinstance(text, str) and text.isprintable() and text]


def _text(claims: dict[str, Any], *names: str) -> str:
    """Return up to 200 characters of the first of these claims that is a text."""
    return next((value[0][:200] for name in names if (value := _values(claims, name))), "-")


def _email(claims: dict[str, Any]) -> str | None:
    if claims.get("email_verified") is False:
        return None
    values = _values(claims, "email")
    return values[0] if values and len(values[0]) <= 320 else None


def _refused(reason: str) -> Problem:
    return Problem(403, "login-refused", f"The login is refused: {reason}")
