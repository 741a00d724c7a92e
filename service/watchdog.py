"""End a stuck process, so that its supervisor restarts it.

Docker restarts a container whose process ends, but not an unhealthy one.
"""

import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)

STUCK_EXIT_CODE = 70
"""Exit code of a stuck process (EX_SOFTWARE)."""

_CHECK_EVERY_SECONDS = 5.0


class Watchdog(threading.Thread):
    """Ends this process once `stuck` gives a reason; until then it touches a file, for health checks.

    Args:
        stuck: returns why the process is stuck, or `None`.
        alive_file: file to touch at each check; `None`: no file.
    """

    def __init__(
        self,
        stuck: Callable[[], str | None],
        alive_file: Path | None,
        *,
        every: float = _CHECK_EVERY_SECONDS,
    ) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._stuck, self._alive_file, self._every = stuck, alive_file, every
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(self._every):
            reason = self._stuck()
            if reason is not None:
                logger.critical("%s. This process ends, to be started again", reason)
                faulthandler.dump_traceback(sys.stderr)
                # A stuck thread can be neither ended nor joined.
                os._exit(STUCK_EXIT_CODE)
            if self._alive_file is not None:
                try:
                    self._alive_file.touch()
                except OSError as error:  # Only the health check suffers.
                    logger.warning("%s cannot be touched: %s", self._alive_file, error)

    def stop(self) -> None:
        self._stopped.set()
