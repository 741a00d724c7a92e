"""Strict JSON request bodies of bounded size, with text that every database can store."""

import json
import math
import re
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, NoReturn

import anyio
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dasl_core.spec.base import shorten
from dasl_core.spec.errors import shorten_name
from service.api.problems import Problem, field_problem

# PostgreSQL cannot store NUL, and a lone surrogate is not a character.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

BODY_SECONDS = 60.0
"""Enough for the largest body over a line of 1 Mbit/s. An unfinished request holds a connection."""

_JSON = re.compile(r"application/([\w.+-]+\+)?json\s*(;|$)", re.ASCII | re.IGNORECASE)

# Bounded, because recursive functions serialize stored values later.
_MAX_DEPTH = 50

# Bounded, because each invalid key takes a kilobyte of error text before it is shortened. Valid objects have far fewer.
_MAX_KEYS = 2000


class StrictRequest(Request):
    """A request whose body is strict RFC 8259 JSON, with text that every database can store."""

    async def body(self) -> bytes:
        """Return the raw body.

        Raises:
            Problem: 408, it does not arrive in time; 415, its headers declare something other than plain JSON.
        """
        try:
            with anyio.fail_after(BODY_SECONDS):
                body = await super().body()
        except TimeoutError:
            detail = f"The body did not arrive within {BODY_SECONDS:g} s"
            raise Problem(408, "request-timeout", detail, headers={"Connection": "close"}) from None
        if body and self.headers.get("content-encoding", "identity") != "identity":
            raise Problem(415, "unsupported-media-type", "A body must not be compressed")
        if body and not _JSON.match(self.headers.get("content-type", "")):
            raise Problem(
                415, "unsupported-media-type", "Send the header `Content-Type: application/json`"
            )
        return body

    async def json(self) -> Any:
        """Parse the body.

        Raises:
            Problem: 400 or 422, also where Python's parser is more lenient than the standard.
        """
        body = await self.body()
        try:
            # Decode it first, as `json.loads` would also accept UTF-16 and UTF-32.
            value = json.loads(
                body.decode(),
                parse_constant=_refuse_constant,
                parse_float=_finite,
                object_pairs_hook=_without_duplicates,
            )
        except json.JSONDecodeError:
            raise
        except RecursionError as error:
            raise _too_deep() from error
        except ValueError as error:
            raise Problem(400, "bad-request", f"The body is not JSON: {error}") from error
        _check_content(value)
        return value


class StrictRoute(APIRoute):
    """A route whose endpoint gets a `StrictRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler that the router calls."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handler(StrictRequest(request.scope, request.receive))

        return strict


class BodyLimit:
    """ASGI middleware that answers a body larger than `limit` bytes with 413.

    Args:
        other_limit: returns the limit of a request with a different limit; None: `limit`.
    """

    def __init__(
        self, app: ASGIApp, limit: int, other_limit: Callable[[Scope], int | None] = lambda _: None
    ) -> None:
        self.app = app
        self.limit, self.other_limit = limit, other_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse by the declared length, or count what arrives when none is declared."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = self.other_limit(scope) or self.limit
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit():
            problem = Problem(400, "bad-request", "Content-Length is not a number")
            await problem.response()(scope, receive, send)
            return
        # Python refuses to parse numbers with very many digits.
        if len(declared) > 19 or int(declared) > limit:
            await self._problem(limit).response()(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise self._problem(limit)
            return message

        await self.app(scope, counted, send)

    def _problem(self, limit: int) -> Problem:
        detail = f"A body may have at most {limit} bytes"
        return Problem(413, "body-too-large", detail, extra={"limit": limit})


def client_address(scope: Scope) -> str | None:
    """Return the address of the client, or of an untrusted proxy."""
    client = scope.get("client")
    return str(client[0])[:100] if client else None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{shorten(digits)} is too large")
    return number


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > _MAX_KEYS:
        raise Problem(400, "bad-request", f"An object of the body has more than {_MAX_KEYS} keys")
    unique: dict[str, Any] = {}
    for key, value in pairs:
        if key in unique:
            detail = f"The body names the key {shorten(key)} twice in one object"
            raise Problem(400, "bad-request", detail)
        unique[key] = value
    return unique


def _check_content(value: Any) -> None:
    # Use an explicit stack, as recursion could exceed the interpreter's limit before the depth is checked.
    # It holds only iterators and the current path, because a body may have millions of values.
    path: list[object] = []
    levels: list[Iterator[tuple[object, Any]]] = [iter([("body", value)])]
    while levels:
        for key, item in levels[-1]:
            if len(levels) - 1 > _MAX_DEPTH:
                raise _too_deep()
            if isinstance(item, str):
                _check_text(item, [*path, key])
            elif isinstance(item, dict | list):
                path.append(key)
                levels.append(_entries(item))
                break
        else:
            levels.pop()
            if path:
                path.pop()


def _entries(item: dict[str, Any] | list[Any]) -> Iterator[tuple[object, Any]]:
    if isinstance(item, list):
        return iter(enumerate(item))
    for key in item:
        _check_text(key, ["a key"])
    return iter(item.items())


def _check_text(text: str, path: Sequence[object]) -> None:
    if _UNSTORABLE.search(text):
        # Drop the leading "body", unless the body itself is the text.
        field = ".".join(map(shorten_name, path[1:] or path))
        raise field_problem(field, "has a NUL or half a surrogate pair", text, "plain text")


def _too_deep() -> Problem:
    return Problem(400, "bad-request", f"The JSON body is nested deeper than {_MAX_DEPTH} levels")
