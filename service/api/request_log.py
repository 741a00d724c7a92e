"""An id, a latency measurement and a log record for each request."""

import logging
import re
import time
from collections.abc import Iterator, Mapping
from uuid import uuid4

from prometheus_client import Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.problems import REQUEST_ID, request_id
from service.log_records import REQUESTS, set_context

logger = logging.getLogger(REQUESTS)

_WELL_FORMED = re.compile(r"[A-Za-z0-9._-]{1,64}")
# Other methods share one label, so that a client cannot create series.
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# Not logged: requested every few seconds, and covered by the metrics.
_QUIET = ("/livez", "/readyz", "/metrics", "/worker/")
# Not an error: normal while a search starts.
_NOT_READY = ("/readyz", 503)
LOGGED_IDS = "dasl.logged_ids"
"""Key of the request's ASGI scope for ids that are not in its path, by path parameter."""


class RequestLog:
    """The outermost ASGI middleware of the service: request ids, latency and a log record.

    A well-formed `X-Request-ID` of the client is kept; otherwise the request gets a new id. The id is
    in the answer's headers, in all log records of the request, and in its problem document.

    Args:
        latency: observes the seconds until an answer begins, by `route`, `method` and `status`.
    """

    def __init__(self, app: ASGIApp, latency: Histogram) -> None:
        self.app = app
        self.latency = latency

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request, and record when its answer begins, as a live stream may never end."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        client_id = Headers(scope=scope).get(REQUEST_ID, "")
        id = client_id if _WELL_FORMED.fullmatch(client_id) else uuid4().hex
        # Never reset it: the answer to an unexpected error is built outside of this middleware, and each request
        # runs in a separate task.
        request_id.set(id)
        set_context(_RequestContext(id, scope))
        began = time.perf_counter()
        answered = False

        async def observed(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                MutableHeaders(scope=message)[REQUEST_ID] = id
                is_error = message["status"] >= 500 and not _asks_to_repeat(message)
                self._record(scope, message["status"], time.perf_counter() - began, is_error)
            await send(message)

        try:
            await self.app(scope, receive, observed)
        except Exception:
            if not answered:
                self._record(scope, 500, time.perf_counter() - began, is_error=True)
            raise

    def _record(self, scope: Scope, status: int, seconds: float, is_error: bool) -> None:
        route = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self.latency.labels(route, method, f"{status // 100}xx").observe(seconds)
        level = logging.INFO
        if is_error and (scope["path"], status) != _NOT_READY:
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


def _asks_to_repeat(message: Message) -> bool:
    """Whether an answer is a 503 with `Retry-After`; if there is an error behind it, it is logged where it occurs."""
    return message["status"] == 503 and "Retry-After" in Headers(raw=message["headers"])


class _RequestContext(Mapping[str, object]):
    """Log fields of a request; the ids in its path appear once the router has matched it."""

    _PARAMETERS: Mapping[str, str] = {
        "job": "job_id",
        "attempt": "number",
        "dataset": "dataset_id",
        "checkpoint": "checkpoint_id",
    }

    def __init__(self, id: str, scope: Scope) -> None:
        self._id, self._scope = id, scope

    def __getitem__(self, name: str) -> object:
        if name == "request":
            return self._id
        ids = {**self._scope.get("path_params", {}), **self._scope.get(LOGGED_IDS, {})}
        value = ids.get(self._PARAMETERS[name])
        # Quote ids: a path may contain a line break followed by a forged record.
        return value if value is None or _WELL_FORMED.fullmatch(str(value)) else "malformed"

    def __iter__(self) -> Iterator[str]:
        yield "request"
        yield from self._PARAMETERS

    def __len__(self) -> int:
        return 1 + len(self._PARAMETERS)
