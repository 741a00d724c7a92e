"""`python -m service.dispatcher`: a dispatcher for a remote Ray, until SIGTERM or Ctrl-C.

Attempts run on without it, and the next dispatcher adopts them. With `--save-on-stop`, they save a checkpoint
and stop: for deployments that stop Ray, too.
"""

import argparse
import os
import secrets
import signal
import socket
import sys
import threading
from pathlib import Path
from types import FrameType

from service import log_records
from service.db.session import Database
from service.dispatcher.loop import Dispatcher
from service.dispatcher.ray_executor import RayExecutor
from service.settings import read_settings, warn_of_misspelled_variables
from service.watchdog import Watchdog


def main() -> int:
    """Run a dispatcher with the settings of the environment; return the exit status."""
    parser = argparse.ArgumentParser(description="Dispatcher for a remote Ray.")
    parser.add_argument(
        "--save-on-stop",
        action="store_true",
        help="on SIGTERM, let attempts save a checkpoint for up to DASL_SHUTDOWN_SECONDS",
    )
    parser.add_argument(
        "--alive-file",
        type=Path,
        metavar="FILE",
        help="touch this file every few seconds while the dispatcher is not stuck, for health checks",
    )
    arguments = parser.parse_args()
    save_on_stop: bool = arguments.save_on_stop
    try:
        settings = read_settings()
    except ValueError as error:
        print(f"The dispatcher cannot start: {error}", file=sys.stderr)
        return 1
    log_records.configure(settings.log_format, secrets=settings.secrets)
    warn_of_misspelled_variables()
    stop = threading.Event()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if stop.is_set():  # The second signal exits at once.
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    token = settings.ray_auth_token.get_secret_value() if settings.ray_auth_token else None
    executor = RayExecutor(settings.ray_address, token)
    database = Database(settings.database_url)
    # The random part is needed: containers with the same host name may all be process 1.
    holder = f"{socket.gethostname()} process {os.getpid()} {secrets.token_hex(4)}"
    seconds = settings.shutdown_seconds if save_on_stop else 0.0
    dispatcher = Dispatcher(settings, database, executor, holder=holder)
    Watchdog(dispatcher.stuck, arguments.alive_file).start()
    dispatcher.run(stop, save_seconds=lambda: seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
