"""`python -m service.dispatcher`: a dispatcher for a Ray elsewhere, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import os
import signal
import socket
import threading

from service.db.session import Database
from service.dispatcher.loop import Dispatcher
from service.dispatcher.ray_executor import RayExecutor
from service.observability import logs
from service.settings import Settings


def main() -> None:
    """Dispatch with the settings of the environment."""
    settings = Settings()
    logs.configure(settings.log_format, secrets=settings.secrets)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    token = settings.ray_auth_token.get_secret_value() if settings.ray_auth_token else None
    executor = RayExecutor(settings.ray_address, token)
    database = Database(settings.database_url)
    holder = f"{socket.gethostname()} process {os.getpid()}"
    Dispatcher(settings, database, executor, holder=holder).run(stop)


if __name__ == "__main__":
    main()
