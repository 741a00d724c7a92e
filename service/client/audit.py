"""Who did what: requests that changed something or were refused the right to."""

from __future__ import annotations

from collections.abc import Iterator

from service.client.models import AuditEntry
from service.client.pages import pages
from service.client.transport import Transport, path_to


class Audit:
    """`client.audit`; needs a token of scope `admin`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(
        self, *, token: str | None = None, since: str | None = None, page_size: int = 100
    ) -> Iterator[AuditEntry]:
        """Entries, newest first: of one token (its id), or since a date or time (UTC)."""
        params = {"token": token, "since": since, "limit": page_size}
        for item in pages(self._transport, path_to("audit"), params):
            yield AuditEntry.model_validate(item)
