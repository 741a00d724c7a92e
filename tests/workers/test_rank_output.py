"""Output of ranks under a real Ray: the stored log contains every line of each rank."""

import json
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest

from service.dispatcher.executor import ExecutorUnavailable, Submission
from service.dispatcher.ray_executor import RayExecutor
from service.embedded.local_ray import LocalRay

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray"), pytest.mark.timeout(1800)]

DRIVER = Path(__file__).parents[1] / "support" / "printing_driver.py"
LINES = 3000
ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "DASL_LOG_FORMAT": "json"}
PATIENCE_SECONDS = 400


T = TypeVar("T")


def until(ask: Callable[[], T | None], ray: LocalRay) -> T:
    """Poll until there is an answer, because Ray may be starting, or slow on a busy machine."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        with suppress(ExecutorUnavailable):
            if answer := ask():
                return answer
        assert time.monotonic() < deadline, ray.log.read_text()
        time.sleep(0.2)


def test_driver_log_contains_every_line_of_every_rank(tmp_path: Path, local_ray: LocalRay) -> None:
    executor = RayExecutor(local_ray.address, local_ray.token)
    command = f"{sys.executable} {DRIVER} {tmp_path} {LINES}"
    executor.submit("job_x-1", command, ENVIRONMENT, "hush-hush")

    def ended() -> Submission | None:
        run = executor.status("job_x-1")
        return run if run is not None and run.state.ended else None

    run = until(ended, local_ray)
    size = until(lambda: executor.logs("job_x-1", 0, 1).size, local_ray)
    log = until(lambda: executor.logs("job_x-1", 0, size).data, local_ray).decode()
    executor.close()
    assert run.exit_code == 1, log[-3000:]
    lines = set(re.sub(r"^\(RayTrainWorker pid=\d+\) ", "", log, flags=re.M).splitlines())
    for stream in ("out", "err"):
        for rank in (0, 1):
            expected = {f"{stream} rank {rank} line {line}" for line in range(LINES)}
            # If Ray reads while a rank is writing a line, it splits the line in two.
            torn = expected - lines
            assert len(torn) < LINES // 100, f"{stream} of rank {rank}"
            assert [line for line in torn if not in_two_pieces(line, lines, log)] == []
    assert log.count("what everybody says") >= 2 * LINES * 0.99
    assert len(re.findall("last words of rank", log)) == 2
    records = [json.loads(line) for line in lines if line.startswith("{") and "a record" in line]
    assert sorted(record["rank"] for record in records) == [0, 1]
    assert all((r["job"], r["attempt"], r["logger"]) == ("job_x", 1, "talk") for r in records)
    assert {record["message"] for record in records} == {"a record with ***"}
    assert "hush-hush" not in log
    # Ray Train must find its own cluster even if another Ray runs on the machine.
    assert log.count("Ray is at 127.0.0.1:") == 2
    assert "dashboard" not in log
    assert "\x1b" not in "".join(line for line in log.splitlines() if "rank" in line)


def in_two_pieces(line: str, lines: set[str], log: str) -> bool:
    """Return whether a line was split in two, or follows other output without a newline."""
    halves = ((line[:place], line[place:]) for place in range(1, len(line)))
    behind = re.search(rf"{re.escape(line)}(?!\d)", log) is not None
    return behind or any(begin in lines and end in lines for begin, end in halves)
