"""`PUT /v1/datasets/{id}/content`: the chunks of an upload."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import anyio
from anyio import from_thread
from fastapi import APIRouter, Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from service.api import audit_log
from service.api.auth import Submitter
from service.api.json_body import StrictRoute
from service.api.problems import FULL, Problem
from service.api.transaction import WithContext
from service.datasets.schemas import DatasetView
from service.datasets.uploads import service
from service.datasets.uploads.service import MAX_CHUNK_BYTES, OFFSET_HEADER

router = APIRouter(prefix="/v1/datasets", tags=["datasets"], route_class=StrictRoute)

# Fewer, larger blocks: each takes the way between the event loop and a thread.
_BLOCK = 1 << 20
# A client that is gone without a trace must not keep the others out.
_IDLE_SECONDS = 60.0
_PATH = re.compile(r"/v1/datasets/[^/]+/content")
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    },
    "parameters": [
        {
            "name": "Content-Range",
            "in": "header",
            "required": True,
            "schema": {"type": "string"},
            "description": "bytes FIRST-LAST/SIZE",
        },
        {
            "name": "Content-Digest",
            "in": "header",
            "schema": {"type": "string"},
            "description": "sha-256=:BASE64: of the body, to check it",
        },
    ],
}


def body_limit(scope: Scope) -> int | None:
    """Return the size limit of a request with a chunk; None for others."""
    is_chunk = scope["method"] == "PUT" and _PATH.fullmatch(scope["path"]) is not None
    return MAX_CHUNK_BYTES if is_chunk else None


@router.put("/{dataset_id}/content", openapi_extra=_BODY, responses=FULL)
async def put_content(
    dataset_id: str, request: Request, response: Response, caller: Submitter, context: WithContext
) -> DatasetView:
    """Store a chunk of an upload at the offset where it ends by now; 409 with `offset` if the chunk begins elsewhere."""
    body = _Body(request)
    try:
        store = partial(
            service.store_chunk,
            context.database,
            context.storage,
            caller.tenant,
            dataset_id,
            service.parse_range(request.headers.get("content-range")),
            body.blocks(),
            service.parse_digest(request.headers.get("content-digest")),
            partial(audit_log.record_change, request=request),
        )
        dataset = await context.upload_threads.run_for(caller.token_id, store)
    finally:
        # Else a client that still sends would find the connection closed, and no answer.
        await body.drain()
    response.headers[OFFSET_HEADER] = str(dataset.upload_received)
    return DatasetView.model_validate(dataset)


class _Body:
    """The body of a request, read block by block in a thread."""

    def __init__(self, request: Request) -> None:
        self._stream = request.stream()
        self._ended = False

    def blocks(self) -> Iterator[bytes]:
        """Yield the blocks; called in a thread of anyio.

        Raises:
            Problem: 400, the client has closed the connection; 408, it sends nothing.
        """
        while block := from_thread.run(self._next):
            yield block

    async def drain(self) -> None:
        """Read the rest, which the size limit of bodies bounds."""
        try:
            while await self._next():
                pass
        except Problem:
            self._ended = True

    async def _next(self) -> bytes:
        """Return the next block; empty at the end."""
        block = bytearray()
        try:
            while not self._ended and len(block) < _BLOCK:
                with anyio.fail_after(_IDLE_SECONDS):
                    piece = await anext(self._stream, None)
                if piece is None:
                    self._ended = True
                else:
                    block += piece
        except ClientDisconnect:
            self._ended = True
            raise Problem(400, "bad-request", "The client closed the connection") from None
        except TimeoutError:
            self._ended = True
            detail = f"No byte of the body has arrived for {_IDLE_SECONDS:g} s"
            raise Problem(408, "request-timeout", detail, headers={"Connection": "close"}) from None
        except Problem:  # the limit of bodies
            self._ended = True
            raise
        return bytes(block)
