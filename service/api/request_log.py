"""Every request: an id, the time that its answer took, and a log record."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping
from uuid import uuid4

from prometheus_client import Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.problems import REQUEST_ID, request_id
from service.log_records import REQUESTS, set_surroundings

logger = logging.getLogger(REQUESTS)

_WELL_FORMED = re.compile(r"[A-Za-z0-9._-]{1,64}")
# Anything else would let a client make as many series as it likes.
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# They come every few seconds and say nothing that the metrics do not.
_QUIET = ("/livez", "/readyz", "/metrics", "/worker/")


class ObservedRequests:
    """ASGI middleware, the outermost of ours.

    A request keeps the `X-Request-ID` that it came with if that is well-formed, else it gets one; the
    answer has it, every record of the request has it, and so has a problem document.

    Args:
        latency: observes the seconds until an answer begins, by `route`, `method` and `status`.
    """

    def __init__(self, app: ASGIApp, latency: Histogram) -> None:
        self.app = app
        self.latency = latency

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and note when its answer begins: a live stream never ends."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID, "")
        own = given if _WELL_FORMED.fullmatch(given) else uuid4().hex
        # Not taken back at the end: the answer to a defect is made outside of this, and a request is
        # a task of its own.
        request_id.set(own)
        set_surroundings(_Surroundings(own, scope))
        began = time.perf_counter()
        answered = False

        async def noted(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                MutableHeaders(scope=message)[REQUEST_ID] = own
                self._note(scope, message["status"], time.perf_counter() - began)
            await send(message)

        try:
            await self.app(scope, receive, noted)
        except Exception:
            if not answered:
                self._note(scope, 500, time.perf_counter() - began)
            raise

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self.latency.labels(route, method, f"{status // 100}xx").observe(seconds)
        level = logging.INFO
        if status >= 500:
            level = logging.ERROR
        elif str(scope["path"]).startswith(_QUIET):
            level = logging.DEBUG
        fields = {
            "method": method,
            "route": route,
            "status": status,
            "seconds": round(seconds, 4),
        }
        logger.log(level, "%s %s: %d", method, route, status, extra={"fields": fields})


class _Surroundings(Mapping[str, object]):
    """What is known of a request so far: its job and attempt only once its route is found."""

    _PARAMETERS: Mapping[str, str] = {
        "job": "job_id",
        "attempt": "number",
        "dataset": "dataset_id",
        "checkpoint": "checkpoint_id",
    }

    def __init__(self, own: str, scope: Scope) -> None:
        self._own, self._scope = own, scope

    def __getitem__(self, name: str) -> object:
        if name == "request":
            return self._own
        given = self._scope.get("path_params", {}).get(self._PARAMETERS[name])
        # What stands in an address may be anything, a line break and a forged record among it.
        return given if given is None or _WELL_FORMED.fullmatch(str(given)) else "malformed"

    def __iter__(self) -> Iterator[str]:
        yield "request"
        yield from self._PARAMETERS

    def __len__(self) -> int:
        return 1 + len(self._PARAMETERS)
