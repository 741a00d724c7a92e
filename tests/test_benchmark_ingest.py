"""Parts of the benchmark of ingest."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.ingest.__main__ import kill_points
from benchmarks.ingest.slow_disk import slowed
from benchmarks.ingest.watched import growth


def test_kills_are_spread_evenly_over_both_phases() -> None:
    points = kill_points(5)
    assert [phase for phase, _ in points] == ["index", "index", "prepare", "prepare", "prepare"]
    assert [share for _, share in points] == pytest.approx([0.2, 0.6, 0.0, 0.4, 0.8])


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([9, 9, 50, 40, 50, 45, 50, 48], 0.0),  # flat, after imports
        ([9, 9, 10, 20, 30, 40, 50, 60], 40.0),  # what is written piles up
        ([9, 9, 50, 40, 30, 30, 20, 20], -30.0),
        ([5, 7], 0.0),  # too short to tell
    ],
)
def test_growth_compares_the_last_quarter_with_the_second(
    samples: list[int], expected: float
) -> None:
    assert growth(samples) == expected


_WRITES_AND_READS = """
import os, sys, time
began = time.perf_counter()
file = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
os.pwrite(file, bytes(100_000), 0)
os.pread(file, 100_000, 0)
print(time.perf_counter() - began)
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_slow_disk_takes_its_time_for_writes_and_reads(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-c", _WRITES_AND_READS, str(tmp_path / "file")]
    environment = os.environ | slowed(tmp_path, megabytes_per_second=1)
    seconds = subprocess.run(command, env=environment, capture_output=True, check=True).stdout
    assert float(seconds) >= 0.2
