"""What ranks print under a real Ray: every line of each is in the log that is kept."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

from service.dispatcher.executor import ExecutorUnavailable
from service.dispatcher.ray_executor import RayExecutor
from service.local_ray import LocalRay

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray"), pytest.mark.timeout(900)]

DRIVER = Path(__file__).with_name("talking_driver.py")
LINES = 3000
PATIENCE_SECONDS = 400


def test_every_line_of_every_rank_is_in_the_drivers_log(tmp_path: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    with LocalRay(tmp_path / "ray", tmp_path / "ray.log", cpus=2) as ray:
        executor = RayExecutor(ray.address, ray.token)
        while True:
            assert time.monotonic() < deadline, (tmp_path / "ray.log").read_text()
            try:
                if executor.cluster().nodes:
                    break
            except ExecutorUnavailable:
                time.sleep(0.2)
        command = f"{sys.executable} {DRIVER} {tmp_path} {LINES}"
        executor.submit("job_x-1", command, {"PYTHONUNBUFFERED": "1"})
        while (run := executor.status("job_x-1")) is None or not run.state.ended:
            assert time.monotonic() < deadline, run
            time.sleep(0.2)
        size = executor.logs("job_x-1", 0, 1).size
        log = executor.logs("job_x-1", 0, size).data.decode()
        executor.close()
    assert run.exit_code == 1, log[-3000:]
    for stream in ("out", "err"):
        for rank in (0, 1):
            said = re.findall(rf"{stream} rank {rank} line (\d+)$", log, flags=re.M)
            assert said == [str(line) for line in range(LINES)], f"{stream} of rank {rank}"
    assert log.count("what everybody says") == 2 * LINES
    assert len(re.findall("last words of rank", log)) == 2
    assert "\x1b" not in "".join(line for line in log.splitlines() if "rank" in line)
