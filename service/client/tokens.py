"""Access tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from service.client.models import Token
from service.client.pages import pages
from service.client.transport import Transport, path_to


class Tokens:
    """`client.tokens`; needs a token of scope `admin`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(self, name: str, scopes: Sequence[str] = ("read", "submit")) -> Token:
        """A new token; its secret is in `.token` of this answer and nowhere else, ever."""
        body = {"name": name, "scopes": list(scopes)}
        return Token.model_validate(self._transport.json("POST", path_to("tokens"), body=body))

    def list(self, *, page_size: int = 100) -> Iterator[Token]:
        """All tokens, without their secrets."""
        for item in pages(self._transport, path_to("tokens"), {"limit": page_size}):
            yield Token.model_validate(item)

    def revoke(self, token_id: str) -> None:
        """Make a token useless from now on."""
        self._transport.json("DELETE", path_to("tokens", token_id))
