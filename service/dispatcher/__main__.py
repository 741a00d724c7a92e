"""`python -m service.dispatcher`: a dispatcher for a remote Ray, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import threading

from service import log_records
from service.artifacts.storage import Storage
from service.db.session import Database
from service.dispatcher.loop import Dispatcher
from service.dispatcher.ray_executor import RayExecutor
from service.settings import read_settings

logger = logging.getLogger(__name__)


def main() -> int:
    """Run a dispatcher with the settings of the environment; return the exit status."""
    try:
        settings = read_settings()
    except ValueError as error:
        print(f"The dispatcher cannot start: {error}", file=sys.stderr)
        return 1
    log_records.configure(settings.log_format, secrets=settings.secrets)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    token = settings.ray_auth_token.get_secret_value() if settings.ray_auth_token else None
    executor = RayExecutor(settings.ray_address, token)
    database = Database(settings.database_url)
    # The random part is needed: containers with the same host name may all be process 1.
    holder = f"{socket.gethostname()} process {os.getpid()} {secrets.token_hex(4)}"
    try:
        Storage(settings.artifacts_uri).check_writable()
    except ValueError as error:
        # Start nevertheless: the problem may be temporary, and running attempts must be watched.
        logger.error("%s. Attempts will fail until this is corrected.", error)
    Dispatcher(settings, database, executor, holder=holder).run(stop)
    return 0


if __name__ == "__main__":
    sys.exit(main())
