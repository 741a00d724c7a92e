"""HTTP transport: authentication, retries, pagination, and problem documents as exceptions."""

import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypedDict, TypeVar, Unpack
from urllib.parse import quote

import httpx
from pydantic import BaseModel

from service.client.aio.threads import in_thread, sleep
from service.client.config import Connection
from service.client.errors import (
    STALE_ATTEMPT,
    ApiError,
    ConnectionFailed,
    InvalidSpec,
    StaleAttempt,
    StoreUnreachable,
)
from service.client.models import read
from service.client.specs import Spec, spec_body
from service.client.tls import tls_context

BUSY = frozenset({502, 503, 504})
"""Status codes of a server or proxy that is temporarily unavailable."""

_OF_PROXY = frozenset({403, 404, 408, 425, 429})
"""Further status codes of a proxy while the server behind it is replaced or busy."""

_SIGNATURE = "X-Amz-Signature"
"""Parameter of a URL that is valid without a token."""

Record = TypeVar("Record", bound=BaseModel)
Params = Mapping[str, str | int | float | Sequence[str] | None]


class Options(TypedDict, total=False):
    """Options of a request."""

    body: object
    """Bytes, or an object to send as JSON."""
    params: Params | None
    headers: Mapping[str, str]
    repeatable: bool
    """Whether it may be sent again; by default if it is a GET or has an Idempotency-Key."""
    patience: float | None
    """Seconds to retry; None: as the transport."""


class AsyncTransport:
    """Connection pool to one server.

    Args:
        patience: how long to retry a repeatable request after connection errors and status 502, 503 or
            504, in seconds; calls may override it.
        timeout: seconds to wait for an answer.
        awaits_server: also retry answers of a proxy, such as a 404 without a problem document, and finally raise
            `ConnectionFailed`. For callers that know that the server exists.
        tenant: the tenant for which an operator's token acts; `None`: its own.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        patience: float,
        timeout: float = 30.0,
        awaits_server: bool = False,
        tenant: str | None = None,
    ) -> None:
        self.url = connection.url
        self._awaits_server = awaits_server
        self._patience = patience
        self._timeout = timeout
        headers = {"User-Agent": "dasl-client", "Accept": "application/json"}
        if connection.token:
            headers["Authorization"] = f"Bearer {connection.token}"
        if tenant:
            headers["DASL-Tenant"] = quote(tenant, safe="")
        # A proxy from the environment cannot reach this machine's loopback.
        trust_env = self._is_remote = not connection.is_loopback
        self._http = httpx.AsyncClient(
            base_url=connection.url,
            headers=headers,
            timeout=httpx.Timeout(timeout, connect=5.0),
            # A stream holds a connection until it ends, and a token may have a hundred streams.
            limits=httpx.Limits(max_connections=500, max_keepalive_connections=20),
            trust_env=trust_env,
            verify=tls_context(connection.url, trust_env=trust_env),
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def json(self, method: str, path: str, **options: Unpack[Options]) -> Any:
        """Send a request and return the decoded JSON answer, None if it is empty.

        Raises:
            ApiError: the server refused the request.
            ConnectionFailed: no server answered in time.
        """
        response = await self._send(method, path, **options)
        if not response.content:
            return None
        try:
            return response.json()
        except ValueError as error:
            raise ConnectionFailed(self.url, "it is not a DASL server") from error

    async def read(
        self, model: type[Record], method: str, path: str, **options: Unpack[Options]
    ) -> Record:
        """Send a request as `json` does, and return the answer as a record."""
        return read(model, await self.json(method, path, **options))

    async def text(self, path: str, *, params: Params | None = None) -> str:
        """GET a text document."""
        headers = {"Accept": "text/plain"}
        return (await self._send("GET", path, params=params, headers=headers)).text

    async def pages(self, path: str, params: Params) -> AsyncIterator[dict[str, Any]]:
        """Yield the items of a paginated list, requesting each page when it is needed."""
        query = dict(params)
        while True:
            page = await self.json("GET", path, params=query)
            if not isinstance(page, dict) or not isinstance(page.get("data"), list):
                raise ConnectionFailed(self.url, "it is not a DASL server")
            for item in page["data"]:
                yield item
            cursor = page.get("next")
            if not page.get("has_more") or cursor is None or cursor == query.get("after"):
                return
            query["after"] = cursor

    async def records(
        self, model: type[Record], path: str, params: Params
    ) -> AsyncIterator[Record]:
        """Yield the items of a paginated list as records."""
        async for item in self.pages(path, params):
            yield read(model, item)

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Params | None = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[httpx.Response]:
        """Stream the body of a GET request. Not retried, because only the caller knows its position.

        A redirect to an object store is followed without the token.

        Raises:
            ConnectionFailed: the connection failed, possibly while the body was read.
            ApiError: the server or the store refused the request, except with 416, which downloads handle.
        """
        store: httpx.URL | None = None
        try:
            async with AsyncExitStack() as stack:
                response = await stack.enter_async_context(
                    self._http.stream("GET", path, params=_without_none(params), headers=headers)
                )
                location = httpx.URL(response.headers.get("location", ""))
                if response.status_code == 307 and _SIGNATURE in location.params:
                    # Remove the query, which is a credential.
                    store = location.copy_with(raw_path=b"")
                    verify = tls_context(str(store))
                    http = await stack.enter_async_context(
                        httpx.AsyncClient(timeout=self._http.timeout, verify=verify)
                    )
                    response = await stack.enter_async_context(
                        http.stream("GET", location, headers=headers)
                    )
                if response.status_code != 416 and not response.is_success:
                    await response.aread()
                    self._raise_for(response, store)
                yield response
        except httpx.InvalidURL as error:
            raise _too_long() from error
        except httpx.RequestError as error:
            reason = _reason(error, self._timeout)
            if store is not None:
                raise StoreUnreachable(str(store), reason) from error
            raise ConnectionFailed(self.url, reason) from error

    async def _send(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        params: Params | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool | None = None,
        patience: float | None = None,
    ) -> httpx.Response:
        if repeatable is None:
            repeatable = method == "GET" or "Idempotency-Key" in (headers or {})
        deadline = time.monotonic() + (self._patience if patience is None else patience)
        pause = 0.1
        while True:
            failure: ConnectionFailed | None = None
            retry_after = 0.0
            try:
                content: dict[str, Any] = (
                    {"content": body} if isinstance(body, bytes) else {"json": body}
                )
                response = await self._http.request(
                    method, path, **content, params=_without_none(params), headers=headers
                )
            except httpx.InvalidURL as error:
                raise _too_long() from error
            except httpx.RequestError as error:
                failure = ConnectionFailed(self.url, _reason(error, self._timeout))
                failure.__cause__ = error
            else:
                may_be_proxy = self._awaits_server and response.status_code in _OF_PROXY
                # Each problem of the API has a type.
                if may_be_proxy and not _problem(response).get("type"):
                    answer = f"a proxy answers {response.status_code}"
                    failure = ConnectionFailed(self.url, answer)
                elif response.status_code not in BUSY:
                    self._raise_for(response)
                    return response
                retry_after = _retry_after(response)
            # Add jitter, so that many workers do not retry at the same moment.
            wait = max(pause * random.uniform(0.75, 1.25), retry_after)
            if not repeatable or time.monotonic() + wait > deadline:
                if failure is not None:
                    raise failure
                self._raise_for(response)
            await sleep(wait)
            pause = min(pause * 2, 5.0)

    def _raise_for(self, response: httpx.Response, store: httpx.URL | None = None) -> None:
        if response.is_success:
            return
        if store is not None:
            title = f"The artifact store at {store} answered {response.status_code} to the download"
            raise ApiError(response.status_code, {"title": title})
        if response.is_redirect:
            target = response.headers.get("location", "elsewhere")
            raise ConnectionFailed(self.url, f"it redirects to {target}; use that address")
        problem = _problem(response) or {
            "title": f"{self.url} answered {response.status_code} to {response.url.path}"
        }
        if response.status_code == 413 and "type" not in problem:
            problem["title"] = (
                f"A proxy in front of {self.url} accepts no body of this size (413). Let it accept 64 MB (nginx: "
                "client_max_body_size 64m)"
            )
        stale = response.status_code == 409 and str(problem.get("type", "")).endswith(STALE_ATTEMPT)
        kind = StaleAttempt if stale else ApiError
        raise kind(response.status_code, problem, self._is_remote)


class AsyncResource:
    """Base of the requests of one kind, such as `client.jobs`."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def _send_spec(self, path: str, spec: Spec, headers: Mapping[str, str]) -> Any:
        """Send a spec or an experiment.

        Raises:
            InvalidSpec: it cannot be read or sent.
        """
        body = await in_thread(spec_body, spec)
        try:
            return await self._transport.json("POST", path, body=body, headers=headers)
        except (TypeError, ValueError) as error:
            raise InvalidSpec(
                f"The spec has a value that JSON cannot represent: {error}"
            ) from error


def path_to(*segments: str) -> str:
    """Join quoted segments to `/v1/...`, so that a name cannot reach another path."""
    for segment in segments:
        # Servers decode %2F to a slash, which only names of tenants may contain.
        if segment in {"", ".", ".."} or ("/" in segment and segments[0] != "tenants"):
            raise ValueError(f"{segment!r} is not an id")
    return "/v1/" + "/".join(quote(segment, safe="") for segment in segments)


def _too_long() -> ApiError:
    """What a server would answer to an address that is too long for httpx to send."""
    return ApiError(414, {"title": "The address of the request is too long; shorten the arguments"})


def _without_none(params: Params | None) -> dict[str, str | int | float | Sequence[str]]:
    return {key: value for key, value in (params or {}).items() if value is not None}


def _problem(response: httpx.Response) -> dict[str, Any]:
    """Return the problem document of an answer; empty if it has none."""
    if "json" not in response.headers.get("content-type", ""):
        return {}
    try:
        decoded = response.json()
    except ValueError:
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _retry_after(response: httpx.Response) -> float:
    value = response.headers.get("retry-after", "")
    return min(float(value), 30.0) if value.isdigit() else 0.0


def _reason(error: httpx.RequestError, timeout: float) -> str:
    if isinstance(error, httpx.ConnectTimeout):
        return "no connection within 5 s"
    if isinstance(error, httpx.TimeoutException):
        return f"no answer within {timeout:g} s"
    cause: BaseException = error
    # The event loop's library hides the reason behind "All connection attempts failed".
    while not isinstance(cause, ConnectionRefusedError) and (below := _below(cause)) is not None:
        cause = below
    if isinstance(cause, ConnectionRefusedError):
        return "connection refused"
    text = str(error).strip() or type(error).__name__
    return "connection refused" if "refused" in text.lower() else text


def _below(error: BaseException) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup):
        return error.exceptions[0]
    return error.__cause__ or error.__context__
