"""`python -m service.server`: the API alone, until SIGTERM or Ctrl-C; dispatcher and Ray run elsewhere.

It does not change the database schema: run `dasl db upgrade` first.
"""

import logging
import signal
import sys
import threading

from service import log_records
from service.db.session import Database
from service.server.listener import bind_listener, warn_if_exposed
from service.server.thread import ApiThread
from service.server.tuning import freeze_garbage_collection, open_more_files, stay_on_one_core
from service.settings import read_settings, warn_of_misspelled_variables
from service.watchdog import Watchdog

logger = logging.getLogger(__name__)

_CHECK_EVERY_SECONDS = 0.5


def main() -> int:
    """Serve with the settings of the environment; return the exit status."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        settings = read_settings()
        log_records.configure(settings.log_format, secrets=settings.secrets)
        warn_of_misspelled_variables()
        warn_if_exposed(settings)
        stay_on_one_core()
        open_more_files()
        with bind_listener(settings) as listener:
            api = ApiThread(settings, Database(settings.database_url), listener)
            api.start()
            watchdog = Watchdog(api.stuck, None)
            watchdog.start()
            freeze_garbage_collection()
            host, port = listener.getsockname()[:2]
            logger.info("The API listens on %s, port %d", host, port)
            while not stop.wait(_CHECK_EVERY_SECONDS):
                if not api.is_alive():
                    return 1  # The reason is in the log.
            watchdog.stop()
            api.stop()
    except ValueError as error:
        print(f"The API cannot start: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
