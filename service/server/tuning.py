"""Process-wide settings that make the API faster: one core, and a garbage collector that skips what stays."""

from __future__ import annotations

import gc
import logging
import os
import random
import sys

logger = logging.getLogger(__name__)


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


def spare_what_stays() -> None:
    """Tell Python's garbage collector that what is loaded by now stays for good.

    To look through all of it again and again takes a seventh of the API's time under load, and lets
    requests wait for up to 0.15 s.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
