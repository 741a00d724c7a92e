"""Tenants, users, access tokens and the audit log."""

from collections.abc import AsyncIterator, Sequence
from typing import TypedDict, Unpack

from service.client.aio.transport import AsyncResource, path_to
from service.wire.access import AuditView, NewToken, StartedLogin, TenantView, TokenView, UserView


class Quotas(TypedDict, total=False):
    """Limits of the jobs and data sets of a token; None means no limit."""

    max_queued_jobs: int | None
    max_running_jobs: int | None
    max_gpus: int | None
    max_pending_datasets: int | None
    max_uploaded_bytes: int | None


class TokenChanges(Quotas, total=False):
    """Quotas and expiry of a token; None means no limit, or no expiry."""

    expires_at: str | None
    expires_in_days: float | None


class TokenSettings(TokenChanges, total=False):
    """Settings of a new token."""

    user_id: str | None
    """The user it belongs to; None: no user."""


class TenantLimits(TypedDict, total=False):
    """Share and limits of a tenant; None means no limit."""

    weight: float
    max_queued_jobs: int | None
    max_running_jobs: int | None
    max_gpus: int | None
    max_priority: int | None
    max_hours: float | None
    max_uploaded_bytes: int | None


class UserChanges(TypedDict, total=False):
    """Changes of a user. `role` is the highest scope of its tokens."""

    name: str
    email: str | None
    role: str
    disabled: bool


class AsyncTenants(AsyncResource):
    """`client.tenants`. Changes need a token with scope `operator`; others see their own tenant."""

    async def create(self, name: str, **limits: Unpack[TenantLimits]) -> TenantView:
        """Create a tenant."""
        body = {"name": name, **limits}
        return await self._transport.read(TenantView, "POST", path_to("tenants"), body=body)

    async def get(self, name: str) -> TenantView:
        """Return a tenant."""
        return await self._transport.read(TenantView, "GET", path_to("tenants", name))

    def list(self, *, page_size: int = 100) -> AsyncIterator[TenantView]:
        """Iterate over the tenants by name."""
        return self._transport.records(TenantView, path_to("tenants"), {"limit": page_size})

    async def set(self, name: str, **limits: Unpack[TenantLimits]) -> TenantView:
        """Change weight and limits of a tenant; arguments that are not passed change nothing."""
        return await self._change(name, dict(limits))

    async def disable(self, name: str) -> TenantView:
        """Refuse the tokens of a tenant from now on. Its jobs continue."""
        return await self._change(name, {"disabled": True})

    async def enable(self, name: str) -> TenantView:
        """Accept the tokens of a disabled tenant again."""
        return await self._change(name, {"disabled": False})

    async def delete(self, name: str) -> None:
        """Delete an empty tenant.

        Raises:
            ApiError: 409, the tenant is not empty.
        """
        await self._transport.json("DELETE", path_to("tenants", name))

    async def _change(self, name: str, changes: dict[str, object]) -> TenantView:
        path = path_to("tenants", name)
        return await self._transport.read(TenantView, "PATCH", path, body=changes)


class AsyncUsers(AsyncResource):
    """`client.users`. Needs a token with scope `admin`."""

    async def create(
        self, name: str, *, email: str | None = None, role: str = "submit"
    ) -> UserView:
        """Create a user."""
        body = {"name": name, "email": email, "role": role}
        return await self._transport.read(UserView, "POST", path_to("users"), body=body)

    async def get(self, user_id: str) -> UserView:
        """Return a user."""
        return await self._transport.read(UserView, "GET", path_to("users", user_id))

    def list(self, *, page_size: int = 100) -> AsyncIterator[UserView]:
        """Iterate over the users of the tenant, newest first."""
        return self._transport.records(UserView, path_to("users"), {"limit": page_size})

    async def set(self, user_id: str, **changes: Unpack[UserChanges]) -> UserView:
        """Change a user. The tokens of a disabled user are refused immediately."""
        path = path_to("users", user_id)
        return await self._transport.read(UserView, "PATCH", path, body=changes)


class AsyncTokens(AsyncResource):
    """`client.tokens`. All calls except `current` need a token with scope `admin`."""

    async def create(
        self,
        name: str,
        scopes: Sequence[str] = ("read", "submit"),
        **settings: Unpack[TokenSettings],
    ) -> NewToken:
        """Create a token. Its secret is returned once, in `.token`.

        By default it belongs to the user of this client's token (`user_id=None`: to no user), and expires with this
        client's token (set `expires_at` or `expires_in_days`). An operator's tokens do not expire by default.
        """
        body = {"name": name, "scopes": list(scopes), **settings}
        return await self._transport.read(NewToken, "POST", path_to("tokens"), body=body)

    async def current(self) -> TokenView:
        """Return the token that this client uses, without its secret."""
        return await self._transport.read(TokenView, "GET", path_to("tokens", "current"))

    def list(self, *, page_size: int = 100) -> AsyncIterator[TokenView]:
        """Iterate over all tokens, without their secrets."""
        return self._transport.records(TokenView, path_to("tokens"), {"limit": page_size})

    async def set(self, token_id: str, **changes: Unpack[TokenChanges]) -> TokenView:
        """Change quotas and expiry of a token; arguments that are not passed change nothing."""
        path = path_to("tokens", token_id)
        return await self._transport.read(TokenView, "PATCH", path, body=changes)

    async def revoke(self, token_id: str) -> None:
        """Revoke a token, effective immediately."""
        await self._transport.json("DELETE", path_to("tokens", token_id))


class AsyncLogin(AsyncResource):
    """`client.login`. Needs no token; the server must have a login provider."""

    async def start(self, redirect_uri: str) -> StartedLogin:
        """Start a login.

        Args:
            redirect_uri: `http://127.0.0.1:PORT/callback`, where the browser sends `state` and `code`.
        """
        return await self._transport.read(
            StartedLogin, "POST", path_to("login"), body={"redirect_uri": redirect_uri}
        )

    async def finish(self, login: StartedLogin, code: str) -> NewToken:
        """Finish a login with the code that the browser sent. The token's secret is in `.token`."""
        body = {"state": login.state, "secret": login.secret, "code": code}
        return await self._transport.read(NewToken, "POST", path_to("login", "finish"), body=body)


class AsyncAudit(AsyncResource):
    """`client.audit`. Needs a token with scope `admin`."""

    def list(
        self, *, token: str | None = None, since: str | None = None, page_size: int = 100
    ) -> AsyncIterator[AuditView]:
        """Iterate over requests that changed something or were refused (403), newest first.

        Args:
            token: id of a token, to return only its requests.
            since: date or time (UTC) of the oldest entry.
        """
        params = {"token": token, "since": since, "limit": page_size}
        return self._transport.records(AuditView, path_to("audit"), params)
