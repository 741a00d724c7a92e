"""`PUT /v1/datasets/{id}/content`: the chunks of an upload."""

import re
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
from fastapi import APIRouter, Request, Response
from starlette.types import Scope

from service.api import audit_log
from service.api.auth import Submitter
from service.api.json_body import StrictRoute
from service.api.problems import FULL
from service.api.threads import InThread
from service.api.transaction import WithContext
from service.datasets.uploads import service
from service.datasets.uploads.body import Body
from service.datasets.uploads.service import MAX_CHUNK_BYTES, OFFSET_HEADER
from service.db.models import Dataset
from service.wire.datasets import DatasetView

router = APIRouter(prefix="/v1/datasets", tags=["datasets"], route_class=StrictRoute)

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
    """Append a chunk to an upload; 409 with `offset` if the chunk does not begin at the current end.

    A chunk that is already stored is accepted again if it has the same bytes.
    """
    body = Body(request.stream())
    try:
        store = service.store_chunk(
            context.database,
            context.storage,
            caller.tenant,
            dataset_id,
            service.parse_range(request.headers.get("content-range")),
            service.parse_digest(", ".join(request.headers.getlist("content-digest"))),
            partial(audit_log.record_change, request=request),
        )
        async with context.upload_threads.admitted(caller.token_id) as in_thread:
            dataset = await _stored(store, body, in_thread)
    finally:
        # Otherwise a client that still sends would find the connection closed without an answer.
        await body.drain()
    response.headers[OFFSET_HEADER] = str(dataset.upload_received)
    return DatasetView.model_validate(dataset)


async def _stored(store: service.StoreChunk, body: Body, in_thread: InThread) -> Dataset:
    """Pass a body to `store`, which needs a thread only while it has a block, so that slow clients hold none."""
    block = None
    try:
        while (dataset := await in_thread(partial(_advance, store, block))) is None:
            block = await body.read()
    except BaseException as error:
        with anyio.CancelScope(shield=True):
            await in_thread(partial(_abandon, store, error))
        raise
    return dataset


def _advance(store: service.StoreChunk, block: bytes | None) -> Dataset | None:
    """Start `store` or send it a block; return the data set once the chunk is stored."""
    try:
        store.send(block)
    except StopIteration as end:
        dataset: Dataset = end.value
        return dataset
    return None


def _abandon(store: service.StoreChunk, error: BaseException) -> None:
    """Let `store` release its locks, unless it has ended."""
    with suppress(type(error)):
        store.throw(error)
