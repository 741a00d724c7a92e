"""Requests as this service takes them: JSON that can be stored, bodies of bounded size."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, NoReturn

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dasl_core.spec.base import shorten
from dasl_core.spec.errors import shorten_name
from service.api.problems import Problem, field_problem

# NUL cannot be stored by PostgreSQL, and half a surrogate pair is no character.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

_JSON = re.compile(r"application/([\w.+-]+\+)?json\s*(;|$)", re.ASCII | re.IGNORECASE)

# What is stored must also be shown again, by serializers that recurse.
_DEEPEST = 50

# What is wrong with each takes a kilobyte to tell, before all but some of it is left out. No object of ours
# has nearly as many.
_MOST_KEYS = 2000


class StrictRequest(Request):
    """A request whose body is RFC 8259's JSON, and text that a database can store."""

    async def body(self) -> bytes:
        """The body as it came.

        Raises:
            Problem: 415, it says that it is something other than JSON.
        """
        body = await super().body()
        if body and self.headers.get("content-encoding", "identity") != "identity":
            raise Problem(415, "unsupported-media-type", "A body must not be compressed")
        if body and not _JSON.match(self.headers.get("content-type", "")):
            raise Problem(
                415, "unsupported-media-type", "Send the header `Content-Type: application/json`"
            )
        return body

    async def json(self) -> Any:
        """The body.

        Raises:
            Problem: 400 or 422, where Python's parser would be more lenient than the standard.
        """
        body = await self.body()
        try:
            # Left to itself Python would read UTF-16 and UTF-32 as well.
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
    """Gives every endpoint of a router a `StrictRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler that the router calls."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handler(StrictRequest(request.scope, request.receive))

        return strict


class BodyLimit:
    """ASGI middleware: a body larger than `limit` bytes is answered with 413."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse by the declared length, or count what arrives when none is declared."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit():
            problem = Problem(400, "bad-request", "Content-Length is no number")
            await problem.response()(scope, receive, send)
            return
        # Python refuses to read numbers of very many digits.
        if len(declared) > 19 or int(declared) > self.limit:
            await self._problem().response()(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.limit:
                raise self._problem()
            return message

        await self.app(scope, counted, send)

    def _problem(self) -> Problem:
        return Problem(413, "body-too-large", f"A body may have at most {self.limit} bytes")


def client_address(scope: Scope) -> str | None:
    """The address that a request comes from; of a proxy's client only if the proxy is trusted."""
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
    if len(pairs) > _MOST_KEYS:
        raise Problem(400, "bad-request", f"An object of the body has more than {_MOST_KEYS} keys")
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            named = f"The body names the key {shorten(key)} twice in one object"
            raise Problem(400, "bad-request", named)
        found[key] = value
    return found


def _check_content(value: Any) -> None:
    # A stack of its own: the interpreter's would end before the check of its depth does. It holds
    # iterators, and keys only of where it stands: a body may have millions of values.
    place: list[object] = []
    levels: list[Iterator[tuple[object, Any]]] = [iter([("body", value)])]
    while levels:
        for key, item in levels[-1]:
            if len(levels) - 1 > _DEEPEST:
                raise _too_deep()
            if isinstance(item, str):
                _check_text(item, [*place, key])
            elif isinstance(item, dict | list):
                place.append(key)
                levels.append(_entries(item))
                break
        else:
            levels.pop()
            if place:
                place.pop()


def _entries(item: dict[str, Any] | list[Any]) -> Iterator[tuple[object, Any]]:
    if isinstance(item, list):
        return iter(enumerate(item))
    for key in item:
        _check_text(key, ["a key"])
    return iter(item.items())


def _check_text(text: str, place: Sequence[object]) -> None:
    if _UNSTORABLE.search(text):
        # All of it is in the body.
        names = place[1:] or place
        field = ".".join(map(shorten_name, names))
        raise field_problem(field, "has a NUL or half a surrogate pair", text, "plain text")


def _too_deep() -> Problem:
    return Problem(400, "bad-request", f"The JSON body is nested deeper than {_DEEPEST} levels")
