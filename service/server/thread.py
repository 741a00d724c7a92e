"""The API in a thread of this process."""

import asyncio
import socket
import threading
import time
from concurrent.futures import Future

import anyio.to_thread
import uvicorn

from service.db.session import Database
from service.server.app import create_app
from service.server.headers import TimedHeaders
from service.settings import Settings

_SHUTDOWN_SECONDS = 3


class ApiThread(threading.Thread):
    """Serve the API on a bound socket until `stop`.

    The socket listens as soon as this object exists; early requests wait until the thread is ready.
    """

    def __init__(self, settings: Settings, database: Database, listener: socket.socket) -> None:
        super().__init__(name="api", daemon=True)
        self._app = create_app(settings, database)
        self._listener = listener
        self._stuck_seconds = settings.stuck_seconds
        self._check: Future[None] | None = None
        self._checked_at = time.monotonic()
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._app,
                log_level="warning",
                log_config=None,
                access_log=False,
                # httptools, uvicorn's default if installed, accepts two Host headers, HTTP/0.9 and
                # headers of any size.
                http=TimedHeaders,
                # `trusted_proxies` decides; uvicorn would trust every client on this machine.
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            )
        )
        # Listen now, before the address is printed, so that no early client is refused.
        listener.listen(self._server.config.backlog)

    @property
    def visited(self) -> threading.Event:
        """Set when a person loads the page or logs in to it."""
        visited: threading.Event = self._app.state.context.visited
        return visited

    def run(self) -> None:
        self._server.run(sockets=[self._listener])

    def stuck(self) -> str | None:
        """Return why the API is stuck, as a sentence; `None` if it is not. Call it every few seconds.

        It is stuck if the event loop or all threads for requests are busy for `DASL_STUCK_SECONDS`.
        """
        loop: asyncio.AbstractEventLoop | None = self._app.state.loop
        if loop is None or loop.is_closed():
            return None
        now = time.monotonic()
        if self._check is None or self._check.done():
            self._checked_at = now
            use_a_thread = anyio.to_thread.run_sync(lambda: None)
            self._check = asyncio.run_coroutine_threadsafe(use_a_thread, loop)
        elif now - self._checked_at >= self._stuck_seconds:
            return f"The API has not begun a request for {now - self._checked_at:.0f} s"
        return None

    def stop(self) -> None:
        """End live streams, let other requests finish, and wait for the thread."""
        self._app.state.context.closing.set()
        self._server.should_exit = True
        self.join(_SHUTDOWN_SECONDS + 2)
