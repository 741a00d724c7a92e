"""Processor time of this process and its children, also of those that still run."""

import os
import time
from contextlib import suppress

import psutil


def processor_seconds() -> float:
    """Return user and system seconds so far."""
    ended = os.times()
    total = time.process_time() + ended.children_user + ended.children_system
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            total += sum(child.cpu_times()[:4])  # user, system, and those of its ended children
    return total


def use_cores(count: int) -> int:
    """Keep this process and its future children on `count` cores; return how many there are of them."""
    cores = sorted(os.sched_getaffinity(0))[:count]
    os.sched_setaffinity(0, cores)
    return len(cores)
