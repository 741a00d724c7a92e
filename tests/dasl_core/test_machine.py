"""Cores and memory of a process in control groups of both versions."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from dasl_core import machine
from dasl_core.machine import available_memory, usable_cores


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the control groups of a process that may run on eight cores."""
    monkeypatch.setattr(machine, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_PROCESS", tmp_path / "process")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(8))
    return tmp_path / "cgroup"


def write(cgroups: Path, process: str, files: dict[str, str]) -> None:
    (cgroups.parent / "process").write_text(process)
    for path, content in files.items():
        file = cgroups / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)


def test_process_without_groups_has_cores_of_its_affinity(cgroups: Path) -> None:
    assert usable_cores() == 8


@pytest.mark.parametrize(
    ("process", "quotas", "cores"),
    [
        ("0::/jobs/mine\n", {"jobs/mine/cpu.max": "250000 100000"}, 3),
        ("0::/jobs/mine\n", {"jobs/mine/cpu.max": "max 100000"}, 8),
        ("0::/jobs/mine\n", {"jobs/cpu.max": "50000 100000", "cpu.max": "max 100000"}, 1),
        ("0::/\n", {"cpu.max": "1600000 100000"}, 8),
        ("0::/../../outside\n", {"cpu.max": "200000 100000"}, 2),
        (
            "5:cpu,cpuacct:/docker/1\n2:memory:/docker/1\n",
            {"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"},
            4,
        ),
        ("5:cpu,cpuacct:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_quota_limits_cores(
    cgroups: Path, process: str, quotas: dict[str, str], cores: int
) -> None:
    write(cgroups, process, quotas)
    assert usable_cores() == cores


@pytest.mark.parametrize(
    ("process", "limit", "used"),
    [
        ("0::/mine\n", "mine/memory.max", "mine/memory.current"),
        ("2:memory:/\n", "memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ],
)
def test_limit_limits_memory(cgroups: Path, process: str, limit: str, used: str) -> None:
    write(cgroups, process, {limit: f"{1 << 20}\n", used: f"{1 << 18}\n"})
    assert available_memory() == (1 << 20) - (1 << 18)
    write(cgroups, process, {limit: "max\n"})
    assert available_memory() > 1 << 20


def test_memory_of_a_system_that_does_not_tell_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As macOS, where the first checkpoint of a training raised a ValueError."""
    monkeypatch.setattr(machine, "_MACHINE", tmp_path / "none")
    monkeypatch.setattr(machine, "_PROCESS", tmp_path / "none")
    sizes = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", lambda name: sizes[name])
    assert available_memory() == 500 * 4096


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_freed_memory_is_kept() -> None:
    script = """
import resource, sys
from dasl_core.machine import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(200_000_000)[:: 4096]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = faults()
keep_freed_memory()
faults()
print(first, faults())
"""
    output = subprocess.check_output([sys.executable, "-c", script], text=True)
    before, after = map(int, output.split())
    assert before > 10_000, "one for each page"
    assert after < 1000
