"""Process-wide tuning of the API: one core, and a garbage collector that skips long-lived objects."""

from __future__ import annotations

import gc
import logging
import os
import random
import sys

logger = logging.getLogger(__name__)


def stay_on_one_core() -> None:
    """Pin this thread, and the threads that it starts from now on, to one core.

    The API's threads hand over the GIL at each database call, and only one runs at a time. Waking the
    next thread on another core is slow: above some load a request takes half as long again, and a queue
    that has formed stays (`benchmarks/README.md`, "load"). Does nothing on systems without
    CPU affinity, or where setting it is forbidden.
    """
    if sys.platform == "linux":
        try:
            # Random, as several APIs may share the machine.
            os.sched_setaffinity(0, {random.choice(sorted(os.sched_getaffinity(0)))})
        except OSError as error:
            logger.info("The API uses all cores, which is slower under load: %s", error)


def freeze_garbage_collection() -> None:
    """Exempt all existing objects from garbage collection.

    Scanning them takes a seventh of the API's time under load and delays requests by up to
    0.15 s.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
