"""Process-wide tuning of the API: one core, many open files, and garbage collection without long-lived objects."""

import contextlib
import gc
import logging
import os
import random
import resource
import socket
import sys
from collections.abc import Collection

logger = logging.getLogger(__name__)


def stay_on_one_core() -> None:
    """Pin this thread, and the threads that it starts later, to one core.

    The API's threads pass the GIL at each database call, and only one runs at a time. Waking the next thread on
    another core is slow: above some load a request takes 50 % longer, and a queue does not drain
    (`benchmarks/README.md`, "load"). Does nothing on systems without CPU affinity, or where setting it is forbidden.
    """
    if sys.platform == "linux":
        try:
            os.sched_setaffinity(0, {_reserve_core(os.sched_getaffinity(0))})
        except OSError as error:
            logger.info("The API uses all cores, which is slower under load: %s", error)


_reservations: list[socket.socket] = []


def _reserve_core(cores: Collection[int]) -> int:
    """Return a core that no other API of this machine uses, or any core if all are used."""
    shuffled = random.sample(sorted(cores), k=len(cores))
    for core in shuffled:
        name = socket.socket(socket.AF_UNIX)
        try:
            # An abstract name, which the kernel frees when the process ends. Each container has separate names.
            name.bind(f"\0dasl-api-core-{core}")
        except OSError:
            name.close()
            continue
        _reservations.append(name)
        return core
    return shuffled[0]


def open_more_files() -> None:
    """Raise the number of open files to what the system allows; usually 1024, which a thousand connections take."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS names more than it allows
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def freeze_garbage_collection() -> None:
    """Exempt all existing objects from garbage collection.

    Scanning them takes a seventh of the API's time under load and delays requests by up to
    0.15 s.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
