"""A file as an answer: `Range`, `ETag`, `Content-Disposition` (RFC 9110, RFC 6266)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from service.api.problems import Problem
from service.artifacts.storage import Storage

RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string"}}}},
    206: {"description": "The part that `Range` names."},
    304: {"description": "The client has it (`If-None-Match`)."},
}
"""Of an endpoint that returns `answer`, for OpenAPI."""
_RANGE = re.compile(r"bytes=\s*(\d*)-(\d*)\s*", re.ASCII)
# No file is as large, and Python refuses to read numbers of very many digits.
_BEYOND = 10**19


@dataclass(frozen=True)
class StoredFile:
    """A file whose content never changes: its hash is its entity tag."""

    name: str
    uri: str
    size: int
    sha256: str
    content_type: str = "application/octet-stream"

    @property
    def etag(self) -> str:
        """A strong entity tag."""
        return f'"{self.sha256}"'


def answer(request: Request, storage: Storage, file: StoredFile) -> Response:
    """The file or the part that the request asks for; 304 when the client has it.

    Raises:
        Problem: 404 when the store has lost the file, 416 for a range outside of it.
    """
    headers = {
        "ETag": file.etag,
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-cache",
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(file.name, safe='')}",
        # What a job wrote is never run in the browser of who looks at it.
        "X-Content-Type-Options": "nosniff",
    }
    if _lists(request.headers.get("if-none-match", ""), file.etag):
        return Response(status_code=304, headers=headers)
    if storage.size(file.uri) != file.size:
        raise Problem(404, "file-missing", f"The store no longer has {file.name} as registered")
    start, stop, status = 0, file.size, 200
    part = _range(request, file)
    if part is not None:
        start, stop = part
        status = 206
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{file.size}"
    headers["Content-Length"] = str(stop - start)
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=file.content_type)
    body = storage.read(file.uri, start, stop)
    return StreamingResponse(body, status, headers, media_type=file.content_type)


def _range(request: Request, file: StoredFile) -> tuple[int, int] | None:
    """The one range asked for, as (start, stop); `None`: the whole file is the answer."""
    value = request.headers.get("range")
    if value is None or request.headers.get("if-range", file.etag) != file.etag:
        return None
    match = _RANGE.fullmatch(value)
    if match is None or not (match[1] or match[2]):
        # Several ranges, or a unit that is not known: a server may ignore the header.
        return None
    if match[1]:
        start = _number(match[1])
        stop = min(file.size, _number(match[2]) + 1) if match[2] else file.size
        if match[2] and _number(match[2]) < start:
            return None  # Not a range at all by the grammar, so it is ignored.
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
    return int(digits) if len(digits) < 20 else _BEYOND


def _lists(header: str, etag: str) -> bool:
    tags = [tag.strip().removeprefix("W/") for tag in header.split(",")]
    return "*" in tags or etag in tags
