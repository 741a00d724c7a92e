"""Access tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypedDict, Unpack

from service.client.models import Token
from service.client.pages import pages
from service.client.transport import Transport, path_to


class Quotas(TypedDict, total=False):
    """What the jobs submitted with a token may take at a time; None: no limit."""

    max_queued_jobs: int | None
    max_running_jobs: int | None
    max_gpus: int | None


class Tokens:
    """`client.tokens`; all but `current` needs a token of scope `admin`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
        self, name: str, scopes: Sequence[str] = ("read", "submit"), **quotas: Unpack[Quotas]
    ) -> Token:
        """A new token; its secret is in `.token` of this answer and nowhere else, ever."""
        body = {"name": name, "scopes": list(scopes), **quotas}
        return Token.model_validate(self._transport.json("POST", path_to("tokens"), body=body))

    def current(self) -> Token:
        """The token that this client shows, without its secret."""
        return Token.model_validate(self._transport.json("GET", path_to("tokens", "current")))

    def list(self, *, page_size: int = 100) -> Iterator[Token]:
        """All tokens, without their secrets."""
        for item in pages(self._transport, path_to("tokens"), {"limit": page_size}):
            yield Token.model_validate(item)

    def set(self, token_id: str, **quotas: Unpack[Quotas]) -> Token:
        """Change quotas of a token; those that are not named stay."""
        path = path_to("tokens", token_id)
        return Token.model_validate(self._transport.json("PATCH", path, body=quotas))

    def revoke(self, token_id: str) -> None:
        """Make a token useless from now on."""
        self._transport.json("DELETE", path_to("tokens", token_id))
