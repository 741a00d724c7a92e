"""Requests to receivers of webhooks: signed, bounded in time and size, and only to checked addresses.

Redirects and proxies of the environment are not used, because they would lead to unchecked addresses.
"""

import base64
import hashlib
import hmac
import logging
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import httpcore
import httpx

from service.client.tls import default_context
from service.outbox.addresses import AddressGuard, Refused
from service.outbox.retries import ATTEMPT_SECONDS, Outcome

logger = logging.getLogger(__name__)

_CONNECT_SECONDS = 5.0
_MAX_ADDRESSES = 4
_MAX_RESPONSE_BYTES = 64 * 1024
_SECRET_PREFIX = "whsec_"


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Sign a message as Standard Webhooks does."""
    key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX))
    signed = f"{message_id}.{timestamp}.".encode() + body
    digest = hmac.new(key, signed, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


class Sender:
    """Sends messages, each over a separate connection. Thread-safe.

    Args:
        seconds: time limit of an attempt, without the resolution of the name.
    """

    def __init__(self, guard: AddressGuard, *, seconds: float = ATTEMPT_SECONDS) -> None:
        self._guard, self._seconds = guard, seconds

    def send(self, url: str, message_id: str, body: bytes, secrets: Sequence[str]) -> Outcome:
        """Send a message once.

        Args:
            secrets: secrets to sign with; all signatures are sent.
        """
        began = time.monotonic()
        timestamp = int(time.time())
        signatures = (signature(secret, message_id, timestamp, body) for secret in secrets)
        headers: dict[bytes | str, bytes | str] = {
            "Content-Type": "application/json",
            "User-Agent": "dasl-webhooks",
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": " ".join(signatures),
        }
        status, retry_after = None, None
        try:
            self._guard.check_url(url)
            status, retry_after = self._post(url, headers, body)
            error = None if 200 <= status < 300 else _refusal(status)
        except Refused as refused:
            error = f"url {refused}"
        except (httpcore.TimeoutException, TimeoutError):
            error = f"no answer within {self._seconds:g} s"
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as failed:
            error = f"no connection, or no valid answer: {_reason(failed)}"
        except Exception:
            logger.exception("A webhook could not be sent")
            error = "the request could not be made; the log of the dispatcher has the reason"
        return Outcome(status, error, retry_after, time.monotonic() - began)

    def _post(
        self, address: str, headers: Mapping[bytes | str, bytes | str], body: bytes
    ) -> tuple[int, timedelta | None]:
        parts = httpx.URL(address)
        url = httpcore.URL(
            scheme=parts.raw_scheme, host=parts.raw_host, port=parts.port, target=parts.raw_path
        )
        backend = _CheckedNetwork(self._guard, self._seconds)
        tls = default_context() if parts.scheme == "https" else None
        with (
            httpcore.ConnectionPool(ssl_context=tls, network_backend=backend) as pool,
            pool.stream("POST", url, headers=headers, content=body) as response,
        ):
            size = 0
            # Read and discard the answer, because some receivers log an error otherwise.
            for part in response.iter_stream():
                size += len(part)
                if size > _MAX_RESPONSE_BYTES:
                    break
            return response.status, _retry_after(response.headers)


class _CheckedNetwork(httpcore.NetworkBackend):
    """Connects only to checked addresses, and ends all work of a connection at a deadline.

    It connects to the addresses that it has resolved and checked, so a later change of the name has no effect. TLS
    still verifies the name.
    """

    def __init__(self, guard: AddressGuard, seconds: float) -> None:
        self._guard, self._seconds = guard, seconds
        self._backend = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Connect to one of the addresses of a host."""
        addresses = self._guard.addresses(host, port)[:_MAX_ADDRESSES]
        deadline = time.monotonic() + self._seconds
        for address in addresses[:-1]:
            try:
                return self._connect(address, port, deadline)
            except (httpcore.NetworkError, httpcore.TimeoutException):
                continue  # this machine may have no IPv6
        return self._connect(addresses[-1], port, deadline)

    def _connect(self, address: str, port: int, deadline: float) -> httpcore.NetworkStream:
        timeout = min(_CONNECT_SECONDS, _left(deadline))
        stream = self._backend.connect_tcp(address, port, timeout=timeout)
        return _BoundedStream(stream, deadline)


class _BoundedStream(httpcore.NetworkStream):
    """A stream whose reads and writes end at a deadline, even if the other side is slow."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: float) -> None:
        self._stream, self._deadline = stream, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(self._deadline))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _left(self._deadline))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        left = _left(self._deadline)
        stream = self._stream.start_tls(ssl_context, server_hostname, left)
        return _BoundedStream(stream, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise httpcore.ReadTimeout("the attempt takes too long")
    return left


def _refusal(status: int) -> str:
    if 300 <= status < 400:
        return f"the receiver answers {status}; redirects are not followed"
    return f"the receiver answers {status}"


def _reason(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.encode("ascii", "replace").decode()[:200]


def _retry_after(headers: Sequence[tuple[bytes, bytes]]) -> timedelta | None:
    """Return the wait that the receiver requests: a number of seconds, or until a date."""
    for name, value in headers:
        if name.lower() != b"retry-after":
            continue
        text = value.decode("latin-1").strip()
        if text.isascii() and text.isdigit():
            return timedelta(seconds=min(int(text[:9]), 10**6))
        try:
            at = parsedate_to_datetime(text)
        except ValueError:
            return None
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return max(at - datetime.now(UTC), timedelta())
    return None
