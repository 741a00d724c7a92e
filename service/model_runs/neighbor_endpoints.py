"""`/v1/checkpoints/{id}/neighbors`: the nearest images of an embedding."""

import re
from functools import partial
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Query, Request
from starlette.types import Scope

from service.api.auth import Reader
from service.api.json_body import StrictRoute
from service.api.problems import Problem
from service.api.threads import InThread
from service.api.transaction import Context, WithContext
from service.checkpoints.endpoints import OfJob
from service.datasets.uploads.body import Body
from service.model_runs.neighbors import Question
from service.wire.model_runs import NeighborsView

router = APIRouter(prefix="/v1/checkpoints", tags=["model runs"], route_class=StrictRoute)

MAX_IMAGE_BYTES = 16 << 20
_PATH = re.compile(r"/v1/checkpoints/[^/]+/neighbors")
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
# A search that is starting takes longer; clients ask again.
_PATIENCE_SECONDS = 8.0
_POLL_SECONDS = 0.02

Dataset = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=300,
        description="Data set of the embedding; the newest embedding without it.",
    ),
]
Number = Annotated[int, Query(ge=1, le=1000, description="How many neighbors.")]


def body_limit(scope: Scope) -> int | None:
    """Return the size limit of a request with an image; None for others."""
    has_image = scope["method"] == "POST" and _PATH.fullmatch(scope["path"]) is not None
    return MAX_IMAGE_BYTES if has_image else None


@router.get("/{checkpoint_id}/neighbors")
async def neighbors_of_key(
    checkpoint_id: str,
    caller: Reader,
    context: WithContext,
    image: Annotated[str, Query(max_length=2000, description="Key of an image.")] = "",
    job: OfJob = None,
    dataset: Dataset = None,
    k: Number = 10,
) -> NeighborsView:
    """Find the nearest images of an embedding to one of them. 503 `search-starting` at first: ask again."""
    question = Question(context.database, caller, checkpoint_id, job, dataset, k, key=image)
    async with context.search_threads.admitted(caller.token_id) as in_thread:
        return await _answer(context, question, in_thread)


@router.post("/{checkpoint_id}/neighbors", openapi_extra=_BODY)
async def neighbors_of_file(
    checkpoint_id: str,
    request: Request,
    caller: Reader,
    context: WithContext,
    job: OfJob = None,
    dataset: Dataset = None,
    k: Number = 10,
) -> NeighborsView:
    """Find the nearest images of an embedding to an image file, the body. 503 `search-starting` at first: ask again."""
    body = Body(request.stream())
    question = Question(context.database, caller, checkpoint_id, job, dataset, k)
    try:
        async with context.search_threads.admitted(caller.token_id) as in_thread:
            await in_thread(question.check)
            return await _answer(context, question, in_thread, await _whole(body))
    finally:
        # Otherwise a client that still sends would find the connection closed without an answer.
        await body.drain()


async def _whole(body: Body) -> bytes:
    image = bytearray()
    while block := await body.read():
        image += block
    return bytes(image)


async def _answer(
    context: Context, question: Question, in_thread: InThread, image: bytes = b""
) -> NeighborsView:
    """Ask, and poll for the answer without holding a thread or a connection."""
    asked = await in_thread(partial(question.ask, image))
    del image  # many megabytes that the database has now
    until = anyio.current_time() + _PATIENCE_SECONDS
    try:
        while (answer := await in_thread(partial(question.poll, asked))) is None:
            if anyio.current_time() >= until or context.closing.is_set():
                detail = "The search of this embedding is starting; ask again"
                raise Problem(503, "search-starting", detail, headers={"Retry-After": "2"})
            await anyio.sleep(_POLL_SECONDS)
        return answer
    finally:
        with anyio.CancelScope(shield=True):
            await in_thread(partial(question.forget, asked))
