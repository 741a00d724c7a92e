# Written by tools.sync_client from aio/access.py; edit that file.
"""Tenants, users, access tokens and the audit log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Unpack

from service.client.account_settings import (
    TenantLimits,
    TokenChanges,
    TokenSettings,
    UserChanges,
)
from service.client.models import AuditEntry, StartedLogin, Tenant, Token, User
from service.client.transport import Transport, path_to


class Tenants:
    """`client.tenants`. Changes need a token with scope `operator`; others see their own tenant."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(self, name: str, **limits: Unpack[TenantLimits]) -> Tenant:
        """Create a tenant."""
        body = {"name": name, **limits}
        return Tenant.model_validate(self._transport.json("POST", path_to("tenants"), body=body))

    def get(self, name: str) -> Tenant:
        """Return a tenant."""
        return Tenant.model_validate(self._transport.json("GET", path_to("tenants", name)))

    def list(self, *, page_size: int = 100) -> Iterator[Tenant]:
        """Iterate over the tenants by name."""
        for item in self._transport.pages(path_to("tenants"), {"limit": page_size}):
            yield Tenant.model_validate(item)

    def set(self, name: str, **limits: Unpack[TenantLimits]) -> Tenant:
        """Change weight and limits of a tenant. Those that are not passed stay as they are."""
        return self._change(name, dict(limits))

    def disable(self, name: str) -> Tenant:
        """Refuse the tokens of a tenant from now on. Its jobs continue."""
        return self._change(name, {"disabled": True})

    def enable(self, name: str) -> Tenant:
        """Accept the tokens of a disabled tenant again."""
        return self._change(name, {"disabled": False})

    def delete(self, name: str) -> None:
        """Delete an empty tenant.

        Raises:
            ApiError: 409, something is left in it.
        """
        self._transport.json("DELETE", path_to("tenants", name))

    def _change(self, name: str, changes: dict[str, object]) -> Tenant:
        path = path_to("tenants", name)
        return Tenant.model_validate(self._transport.json("PATCH", path, body=changes))


class Users:
    """`client.users`. Needs a token with scope `admin`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(self, name: str, *, email: str | None = None, role: str = "submit") -> User:
        """Create a user."""
        body = {"name": name, "email": email, "role": role}
        return User.model_validate(self._transport.json("POST", path_to("users"), body=body))

    def get(self, user_id: str) -> User:
        """Return a user."""
        return User.model_validate(self._transport.json("GET", path_to("users", user_id)))

    def list(self, *, page_size: int = 100) -> Iterator[User]:
        """Iterate over the users of the tenant, newest first."""
        for item in self._transport.pages(path_to("users"), {"limit": page_size}):
            yield User.model_validate(item)

    def set(self, user_id: str, **changes: Unpack[UserChanges]) -> User:
        """Change a user. A disabled user's tokens are refused at once."""
        path = path_to("users", user_id)
        return User.model_validate(self._transport.json("PATCH", path, body=changes))


class Tokens:
    """`client.tokens`. Every call but `current` needs a token with scope `admin`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
        self,
        name: str,
        scopes: Sequence[str] = ("read", "submit"),
        **settings: Unpack[TokenSettings],
    ) -> Token:
        """Create a token. Its secret is returned once, in `.token`.

        Unless `user_id` is passed (None: of no user), it belongs to the user of this client's token. Unless
        `expires_at` or `expires_in_days` is passed, it expires with this client's token; an operator's do not.
        """
        body = {"name": name, "scopes": list(scopes), **settings}
        return Token.model_validate(self._transport.json("POST", path_to("tokens"), body=body))

    def current(self) -> Token:
        """Return the token that this client uses, without its secret."""
        return Token.model_validate(self._transport.json("GET", path_to("tokens", "current")))

    def list(self, *, page_size: int = 100) -> Iterator[Token]:
        """Iterate over all tokens, without their secrets."""
        for item in self._transport.pages(path_to("tokens"), {"limit": page_size}):
            yield Token.model_validate(item)

    def set(self, token_id: str, **changes: Unpack[TokenChanges]) -> Token:
        """Change quotas and expiry of a token. What is not passed stays as it is."""
        path = path_to("tokens", token_id)
        return Token.model_validate(self._transport.json("PATCH", path, body=changes))

    def revoke(self, token_id: str) -> None:
        """Revoke a token, effective immediately."""
        self._transport.json("DELETE", path_to("tokens", token_id))


class Login:
    """`client.login`. Needs no token; the server must have a login provider."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def start(self, redirect_uri: str) -> StartedLogin:
        """Start a login.

        Args:
            redirect_uri: `http://127.0.0.1:PORT/callback`, where the browser brings `state` and `code`.
        """
        answer = self._transport.json("POST", path_to("login"), body={"redirect_uri": redirect_uri})
        return StartedLogin.model_validate(answer)

    def finish(self, login: StartedLogin, code: str) -> Token:
        """Finish a login with the code that the browser brought. The token's secret is in `.token`."""
        body = {"state": login.state, "secret": login.secret, "code": code}
        answer = self._transport.json("POST", path_to("login", "finish"), body=body)
        return Token.model_validate(answer)


class Audit:
    """`client.audit`. Needs a token with scope `admin`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(
        self, *, token: str | None = None, since: str | None = None, page_size: int = 100
    ) -> Iterator[AuditEntry]:
        """Iterate over requests that changed something or were refused (403), newest first.

        Args:
            token: id of a token, to return only its requests.
            since: date or time (UTC) of the oldest entry.
        """
        params = {"token": token, "since": since, "limit": page_size}
        for item in self._transport.pages(path_to("audit"), params):
            yield AuditEntry.model_validate(item)
