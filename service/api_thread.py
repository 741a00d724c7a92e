"""The API in a thread of this process."""

from __future__ import annotations

import gc
import logging
import os
import random
import socket
import sys
import threading

import uvicorn

from service.app import create_app
from service.db.session import Database
from service.settings import Settings

logger = logging.getLogger(__name__)

_SHUTDOWN_SECONDS = 3


def spare_what_stays() -> None:
    """Tell Python's garbage collector that what is loaded by now stays for good.

    To look through all of it again and again takes a seventh of the API's time under load, and lets
    requests wait for up to 0.15 s.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


def stay_on_one_core() -> None:
    """Keep this thread, and those that it starts from now on, on one of the process's cores.

    They pass Python's lock on at each word with the database, and only one runs at a time. To wake the
    next one on another core takes so long that above some load a request needs half as much time again,
    and a queue that has formed stays: at 100 submissions a second to PostgreSQL the 99th percentile was
    20 ms in one burst and 1,500 in the next, and is 20 on one core (`benchmarks/load`). Where the system
    knows nothing of cores, or forbids it, this does nothing.
    """
    if sys.platform == "linux":
        # By chance, as there may be several APIs on a machine.
        core = random.choice(sorted(os.sched_getaffinity(0)))
        try:
            os.sched_setaffinity(0, {core})
        except OSError as error:
            logger.info("The API uses all cores, which is slower under load: %s", error)


class ApiThread(threading.Thread):
    """Serves the API on a bound socket until `stop`.

    The socket listens as soon as this object exists: a request that comes before the thread is ready
    waits for it.
    """

    def __init__(self, settings: Settings, database: Database, listener: socket.socket) -> None:
        super().__init__(name="api", daemon=True)
        # With SQLite, whose work is done in these very threads, nothing was seen to be gained by it.
        self._one_core = database.engine.dialect.name != "sqlite"
        self._app = create_app(settings, database)
        self._listener = listener
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._app,
                log_level="warning",
                log_config=None,
                access_log=False,
                # httptools, which uvicorn takes where it is installed, lets two Host headers, HTTP/0.9
                # and headers of any size pass.
                http="h11",
                # `trusted_proxies` decides; uvicorn would believe everybody on this machine.
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            )
        )
        # Else whoever reads the printed address at once could be refused.
        listener.listen(self._server.config.backlog)

    def run(self) -> None:
        """See `threading.Thread.run`."""
        if self._one_core:
            stay_on_one_core()
        self._server.run(sockets=[self._listener])

    def stop(self) -> None:
        """End live streams, let other requests finish, and return when it is over."""
        self._app.state.context.closing.set()
        self._server.should_exit = True
        self.join(_SHUTDOWN_SECONDS + 2)
