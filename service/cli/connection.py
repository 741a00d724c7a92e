"""The client that commands speak through."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.client import Client


def connect(patience: float = 1.0) -> Client:
    """A client of the configured server. Somebody sits and waits: it gives up sooner than the SDK."""
    from service.client import Client

    return Client(patience=patience)
