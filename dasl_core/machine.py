"""The CPU cores and the memory that this process may use, which are fewer than the machine's in a container."""

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
    """Number of cores: those that the process may run on, and at most the quota of its control groups."""
    try:
        cores = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # macOS has no affinity
        cores = os.cpu_count() or 1
    for group in _groups("cpu"):
        # Version 2 has one file, "max" or the quota before the period; version 1 has two, -1 for no quota.
        words = _words(group / "cpu.max") or [
            *_words(group / "cpu.cfs_quota_us"),
            *_words(group / "cpu.cfs_period_us"),
        ]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            cores = min(cores, -(-int(words[0]) // int(words[1])))
    return max(1, cores)


def usable_memory() -> int:
    """Bytes of memory: the machine's, and at most the limit of the process's control groups."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for group in _groups("memory"):
        words = _words(group / "memory.max") or _words(group / "memory.limit_in_bytes")
        if len(words) == 1 and words[0].isdigit():
            memory = min(memory, int(words[0]))
    return memory


def available_memory() -> int:
    """Bytes of memory that are not in use, by the machine or the process's control groups.

    Cached files do not count as used, as the system gives up their memory when it is needed.
    """
    memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    machine = _pairs(_MACHINE)
    memory = machine.get("MemAvailable:", memory >> 10) << 10
    for group in _groups("memory"):
        limit = _words(group / "memory.max") or _words(group / "memory.limit_in_bytes")
        used = _words(group / "memory.current") or _words(group / "memory.usage_in_bytes")
        if len(limit) == len(used) == 1 and limit[0].isdigit() and used[0].isdigit():
            statistics = _pairs(group / "memory.stat")
            cached = statistics.get("file", statistics.get("cache", 0))
            memory = min(memory, int(limit[0]) - int(used[0]) + cached)
    return max(0, memory)


def decoding_budget() -> int:
    """Bytes of memory that images which are decoded at the same time may take: a quarter of what is available.

    Other ingests, and the drivers of trainings, which an exhausted memory would end, run on the same node.
    """
    return available_memory() // 4


def keep_freed_memory() -> None:
    """Let this process keep memory that it frees, up to 2 GiB, for its next allocations.

    glibc returns large blocks to the kernel at once, which then clears every page of each large tensor in every step.
    With another C library this has no effect.
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
    """Folders of the process's control group and of those around it."""
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
        # In a container, the path may be that of another namespace; its own group is the root then.
        while folder.is_relative_to(root) and folder != root:
            yield folder
            folder = folder.parent
        yield root


def _words(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").split()
    except OSError:
        return []
