"""Lists that come page by page, read as one iterator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from service.client.transport import Params, Transport


def pages(transport: Transport, path: str, params: Params) -> Iterator[dict[str, Any]]:
    """Yield the items of all pages, asking for the next page when it is needed."""
    query = dict(params)
    while True:
        page = transport.json("GET", path, params=query)
        yield from page["data"]
        cursor = page.get("next")
        if not page.get("has_more") or cursor is None or cursor == query.get("after"):
            return
        query["after"] = cursor
