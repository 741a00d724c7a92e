"""A web server on 127.0.0.1 to which the browser brings the result of a login (RFC 8252)."""

import hmac
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Self
from urllib.parse import parse_qs, urlsplit

from service.cli import console
from service.wire.access import StartedLogin

_PATIENCE_SECONDS = 600.0


class Callback:
    """Waits for one request of the browser.

    Args:
        port: on 127.0.0.1; 0 takes any free one.
    """

    def __init__(self, port: int) -> None:
        self._server = _Server(("127.0.0.1", port), _Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}/callback"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.server_close()

    def wait(self, login: StartedLogin) -> str:
        """Return the code that the browser brings for this login.

        Raises:
            typer.Exit: the provider refused the login, or there was no login within ten minutes.
        """
        self._server.state = login.state
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while self._server.result is None:
            self._server.timeout = deadline - time.monotonic()
            if self._server.timeout <= 0:
                raise console.fail("Nobody logged in within ten minutes; start again: dasl login")
            self._server.handle_request()
        code, error = self._server.result
        if code is None:
            raise console.fail(f"The login provider refused the login: {error}")
        return code


class _Server(HTTPServer):
    state = ""
    result: tuple[str | None, str] | None = None


class _Handler(BaseHTTPRequestHandler):
    timeout = 10.0  # of a connection that sends nothing, as browsers open them in advance
    server: _Server

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(address.query).items()}
        state = query.get("state", "")
        # Another page in the browser could send a code of its own.
        if address.path != "/callback" or not hmac.compare_digest(
            state.encode(), self.server.state.encode()
        ):
            self._answer(404, "This is not the page of your login.")
            return
        error = query.get("error_description") or query.get("error") or "it sent no code"
        self.server.result = (query.get("code"), error)
        if "code" in query:
            self._answer(200, "Return to the terminal. You can close this page.")
        else:
            self._answer(200, "The login was refused. Return to the terminal.")

    def _answer(self, status: int, sentence: str) -> None:
        body = f"<!doctype html><title>DASL</title><p>{sentence}</p>".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the address contains the code."""
