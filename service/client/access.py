"""Access tokens and the audit log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypedDict, Unpack

from service.client.models import AuditEntry, Token
from service.client.transport import Transport, path_to


class Quotas(TypedDict, total=False):
    """Limits of the jobs submitted with a token; None means no limit."""

    max_queued_jobs: int | None
    max_running_jobs: int | None
    max_gpus: int | None


class Tokens:
    """`client.tokens`. Every call but `current` needs a token with scope `admin`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
        self, name: str, scopes: Sequence[str] = ("read", "submit"), **quotas: Unpack[Quotas]
    ) -> Token:
        """Create a token. Its secret is returned once, in `.token`."""
        body = {"name": name, "scopes": list(scopes), **quotas}
        return Token.model_validate(self._transport.json("POST", path_to("tokens"), body=body))

    def current(self) -> Token:
        """Return the token that this client uses, without its secret."""
        return Token.model_validate(self._transport.json("GET", path_to("tokens", "current")))

    def list(self, *, page_size: int = 100) -> Iterator[Token]:
        """Iterate over all tokens, without their secrets."""
        for item in self._transport.pages(path_to("tokens"), {"limit": page_size}):
            yield Token.model_validate(item)

    def set(self, token_id: str, **quotas: Unpack[Quotas]) -> Token:
        """Change quotas of a token. Quotas that are not passed stay as they are."""
        path = path_to("tokens", token_id)
        return Token.model_validate(self._transport.json("PATCH", path, body=quotas))

    def revoke(self, token_id: str) -> None:
        """Revoke a token, effective immediately."""
        self._transport.json("DELETE", path_to("tokens", token_id))


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
