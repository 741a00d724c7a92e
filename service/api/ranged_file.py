"""File downloads with `Range`, `ETag` and `Content-Disposition` (RFC 9110, RFC 6266)."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from service.api.problems import Problem
from service.api.transaction import Context, StoreRoute

_ANY = "application/octet-stream"
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
_SHOWN_BYTES = 8 << 20
_RANGE = re.compile(r"bytes=\s*(\d*)-(\d*)\s*", re.ASCII | re.IGNORECASE)
# Larger than any file; Python refuses to parse numbers with very many digits.
_TOO_LARGE = 10**19


@dataclass(frozen=True)
class StoredFile:
    """An immutable file in the artifact store; its hash is its entity tag."""

    name: str
    uri: str
    size: int
    sha256: str
    content_type: str = _ANY

    @property
    def etag(self) -> str:
        """A strong entity tag."""
        return f'"{self.sha256}"'


class FileRoute(StoreRoute):
    """A route whose endpoint returns a `StoredFile` to answer with."""

    async def _run(self, context: Context, request: Request, run: Callable[[], Any]) -> Any:
        return await super()._run(
            context, request, lambda: partial(answer, request, context, run())
        )


def download(
    router: APIRouter, path: str, content_type: str = _ANY
) -> Callable[[Endpoint], Endpoint]:
    """Register an endpoint for GET and HEAD of a file; `content_type` is for the API's document."""
    content = {content_type: {"schema": {"type": "string", "format": "binary"}}}
    responses: dict[int | str, dict[str, Any]] = {
        200: {"content": content},
        206: {"description": "The requested range.", "content": content},
        304: {"description": "The client has it (`If-None-Match`)."},
        307: {
            "description": "It is at the URL in `Location` for some minutes; send no token there."
        },
    }

    def register(endpoint: Endpoint) -> Endpoint:
        router.head(path, include_in_schema=False)(endpoint)
        return router.get(path, response_class=Response, responses=responses)(endpoint)

    return register


def answer(request: Request, context: Context, file: StoredFile) -> Response:
    """Answer with the file or the requested part of it; 304 if the client already has it.

    It reads the store, so call it in the threads of a `StoreRoute`. With presigned downloads, a GET is answered
    with 307 and a URL of the store.

    Raises:
        Problem: 404, the store has lost the file; 412, `If-Match` names other files; 416, the range lies outside of
            the file.
    """
    headers = {
        "ETag": file.etag,
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-cache",
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(file.name, safe='')}",
        # A browser must never execute what a job wrote.
        "X-Content-Type-Options": "nosniff",
    }
    required = _tags(request, "if-match")
    if required and not {"*", file.etag} & required:
        raise Problem(412, "precondition-failed", f"The entity tag of {file.name} is {file.etag}")
    if {"*", file.etag} & {tag.removeprefix("W/") for tag in _tags(request, "if-none-match")}:
        return Response(status_code=304, headers=headers)
    storage = context.storage
    if storage.size(file.uri) != file.size:
        raise Problem(
            404,
            "file-missing",
            f"{file.name} is missing from the artifact store, or has another size",
        )
    # The page, whose requests have a cookie and no token, may only display what its own origin sends.
    is_shown = "authorization" not in request.headers and file.size <= _SHOWN_BYTES
    is_redirected = request.method == "GET" and not is_shown
    if is_redirected and (url := storage.direct_url(file.uri)) is not None:
        # The URL is a credential, so no cache may store it.
        location = {"Location": url, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
        return Response(status_code=307, headers=location)
    start, stop, status = 0, file.size, 200
    part = _range(request, file)
    if part is not None:
        start, stop = part
        status = 206
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{file.size}"
    headers["Content-Length"] = str(stop - start)
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=file.content_type)
    body = context.store_threads.iterate(storage.read(file.uri, start, stop))
    return StreamingResponse(body, status, headers, media_type=file.content_type)


def _tags(request: Request, header: str) -> set[str]:
    return {tag.strip() for tag in request.headers.get(header, "").split(",")} - {""}


def _range(request: Request, file: StoredFile) -> tuple[int, int] | None:
    """Return the requested range as (start, stop); `None`: the whole file."""
    value = request.headers.get("range") if request.method == "GET" else None
    if value is None or request.headers.get("if-range", file.etag) != file.etag:
        return None
    match = _RANGE.fullmatch(value)
    if match is None or not (match[1] or match[2]):
        # Several ranges, or an unknown unit: a server may ignore the header, as it must for HEAD (RFC 9110, 14.2).
        return None
    if match[1]:
        start = _number(match[1])
        stop = min(file.size, _number(match[2]) + 1) if match[2] else file.size
        if match[2] and _number(match[2]) < start:
            return None  # ignore an invalid range
    else:
        start, stop = max(0, file.size - _number(match[2])), file.size
    if start >= stop:
        raise Problem(
            416,
            "range-not-satisfiable",
            f"The file has {file.size} bytes",
            headers={"Content-Range": f"bytes */{file.size}"},
        )
    return start, stop


def _number(digits: str) -> int:
    digits = digits.lstrip("0") or "0"
    return int(digits) if len(digits) < 20 else _TOO_LARGE
