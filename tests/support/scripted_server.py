"""A real HTTP server with scripted answers, for outages and wrong answers that the real API never gives."""

import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@dataclass
class Request:
    """A received request."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Answer:
    """A scripted answer. `cut_after`: the connection breaks after so many bytes of the body."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None


Handler = Callable[[Request], Answer]


def answer_json(value: object, status: int = 200, **headers: str) -> Answer:
    kind = "application/problem+json" if status >= 400 else "application/json"
    return Answer(json.dumps(value).encode(), status, {"Content-Type": kind, **headers})


def answer_range(content: bytes, request: Request) -> Answer:
    """Answer with `content` as a server with Range support does."""
    byte_range = re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", ""))
    if byte_range is None:
        return Answer(content)
    start = int(byte_range[1])
    if start >= len(content):
        return Answer(b"", 416)
    span = f"bytes {start}-{len(content) - 1}/{len(content)}"
    return Answer(content[start:], 206, {"Content-Range": span})


class ScriptedServer:
    """Server that answers with `handler` and records all requests in `requests`."""

    def __init__(self, handler: Handler, port: int = 0) -> None:
        self.requests: list[Request] = []
        self._connections: list[socket.socket] = []
        outer = self

        class RequestHandler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                outer._connections.append(self.connection)

            def _serve(self) -> None:
                length = int(self.headers.get("content-length", 0))
                raw = self.rfile.read(length)
                headers = {key.lower(): value for key, value in self.headers.items()}
                request = Request(
                    self.command, self.path, headers, json.loads(raw) if raw else None
                )
                outer.requests.append(request)
                answer = handler(request)
                self.send_response(answer.status)
                for key, value in answer.headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body[: answer.cut_after])
                if answer.cut_after is not None:
                    self.close_connection = True

            do_GET = do_POST = do_PATCH = do_DELETE = _serve

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing; tests read `requests`."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), RequestHandler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        """Stop like a killed process, which also breaks open connections."""
        self._server.shutdown()
        for connection in self._connections:
            with suppress(OSError):  # the client closed it first
                connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()
        self._thread.join()


@contextmanager
def scripted(handler: Handler, port: int = 0) -> Iterator[ScriptedServer]:
    server = ScriptedServer(handler, port)
    try:
        yield server
    finally:
        server.close()
