"""`python -m service.api`: the API alone, beside a dispatcher and a Ray elsewhere, until SIGTERM or Ctrl-C.

It neither makes nor changes tables: `dasl db upgrade` does, before.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import threading

from service.api_thread import ApiThread, spare_what_stays
from service.db.session import Database
from service.exposure import bound, warn_of_exposure
from service.observability import logs
from service.settings import read_settings

logger = logging.getLogger(__name__)

_LOOK_EVERY_SECONDS = 0.5


def stay_on_one_core() -> None:
    """Keep this thread, and those that it starts from now on, on one of the cores that it may use.

    The API's threads pass Python's lock on at each word with the database, and only one runs at a time.
    To wake the next one on another core takes so long that above some load a request needs half as much
    time again, and a queue that has formed stays (`benchmarks/README.md`, "load"). Where the system
    knows nothing of cores, or forbids it, this does nothing.
    """
    if sys.platform == "linux":
        try:
            # By chance, as there may be several APIs on a machine.
            os.sched_setaffinity(0, {random.choice(sorted(os.sched_getaffinity(0)))})
        except OSError as error:
            logger.info("The API uses all cores, which is slower under load: %s", error)


def main() -> int:
    """Serve with the settings of the environment; the exit status."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        settings = read_settings()
        logs.configure(settings.log_format, secrets=settings.secrets)
        warn_of_exposure(settings)
        stay_on_one_core()
        with bound(settings) as listener:
            api = ApiThread(settings, Database(settings.database_url), listener)
            api.start()
            spare_what_stays()
            host, port = listener.getsockname()[:2]
            logger.info("The API listens on %s, port %d", host, port)
            while not stop.wait(_LOOK_EVERY_SECONDS):
                if not api.is_alive():
                    return 1  # Its reason is in the log.
            api.stop()
    except ValueError as error:
        print(f"The API cannot start: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
