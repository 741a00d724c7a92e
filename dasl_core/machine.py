"""CPU cores and memory available to this process, as limited by a container."""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

_PROCESS = Path("/proc/self/cgroup")
_MACHINE = Path("/proc/meminfo")
_CGROUPS = Path("/sys/fs/cgroup")
# Parameters of glibc's mallopt, and the largest value that one can have: 2 GiB.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_LARGEST = 2**31 - 1


def usable_cores() -> int:
    """Return the number of cores that the process may use by its affinity and control groups."""
    try:
        cores = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # macOS has no affinity
        cores = os.cpu_count() or 1
    for group in _groups("cpu"):
        # cgroups v2 have one file with "max" or quota and period; v1 have two files, with -1 for no quota.
        words = _words(group / "cpu.max") or [
            *_words(group / "cpu.cfs_quota_us"),
            *_words(group / "cpu.cfs_period_us"),
        ]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            cores = min(cores, -(-int(words[0]) // int(words[1])))
    return max(1, cores)


def available_memory() -> int:
    """Return the free memory in bytes of the machine or the process's control groups.

    Cached files do not count as used, because the system frees their memory when needed.
    """
    machine = _pairs(_MACHINE)
    if "MemAvailable:" in machine:
        memory = machine["MemAvailable:"] << 10
    else:  # macOS only tells how much there is
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    for group in _groups("memory"):
        limit = _words(group / "memory.max") or _words(group / "memory.limit_in_bytes")
        used = _words(group / "memory.current") or _words(group / "memory.usage_in_bytes")
        if len(limit) == len(used) == 1 and limit[0].isdigit() and used[0].isdigit():
            statistics = _pairs(group / "memory.stat")
            cached = statistics.get("file", statistics.get("cache", 0))
            memory = min(memory, int(limit[0]) - int(used[0]) + cached)
    return max(0, memory)


def decoding_budget() -> int:
    """Return the memory budget in bytes for parallel decoding: a quarter of the available memory.

    The rest is for other processes on the node, such as ingests and the drivers of trainings.
    """
    return available_memory() // 4


def keep_freed_memory() -> None:
    """Make glibc keep up to 2 GiB of freed memory for later allocations.

    By default it returns large blocks to the kernel at once, which then clears every page of each large tensor in every
    step. With another C library this has no effect.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, _LARGEST)


def _pairs(file: Path) -> dict[str, int]:
    """Read the lines `name number` of a file."""
    try:
        lines = [line.split() for line in file.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdigit()}


def _groups(controller: str) -> Iterator[Path]:
    """Yield the folders of the process's control group and its parents."""
    try:
        lines = _PROCESS.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = _CGROUPS / controller if controllers else _CGROUPS
        folder = Path(os.path.normpath(root / path.lstrip("/")))
        # In a container, the path may belong to another namespace; then the own group is the root.
        while folder.is_relative_to(root) and folder != root:
            yield folder
            folder = folder.parent
        yield root


def _words(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").split()
    except OSError:
        return []
