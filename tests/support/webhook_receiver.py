"""A real HTTP receiver of webhooks, which keeps the bytes of each request, and answers as the test says."""

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from standardwebhooks import Webhook


@dataclass
class Received:
    """A request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def verified(self, secret: str) -> Any:
        """Verify the signature with the library of Standard Webhooks; return the payload.

        Raises:
            WebhookVerificationError: it is not valid.
        """
        return Webhook(secret).verify(self.body, self.headers)


@dataclass
class Reply:
    """An answer."""

    status: int = 204
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


Handler = Callable[[Received], Reply]


class Receiver:
    """A server on loopback that answers with `handler` and keeps all requests in `requests`."""

    def __init__(self, handler: Handler, certificate: Path | None = None) -> None:
        self.requests: list[Received] = []
        outer = self

        class RequestHandler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {key.lower(): value for key, value in self.headers.items()}
                request = Received(self.path, headers, body)
                outer.requests.append(request)
                reply = handler(request)
                self.send_response(reply.status)
                for name, value in reply.headers:
                    self.send_header(name, value)
                self.end_headers()
                try:
                    self.wfile.write(reply.body)
                except OSError:
                    self.close_connection = True  # the sender has read enough

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing; tests read `requests`."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), RequestHandler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self.url = f"http://127.0.0.1:{self.port}/hook"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def receiver(
    handler: Handler = lambda _: Reply(), certificate: Path | None = None
) -> Iterator[Receiver]:
    """Run a receiver; by default it accepts everything."""
    server = Receiver(handler, certificate)
    try:
        yield server
    finally:
        server.close()
