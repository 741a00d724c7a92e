"""Short versions of `tests.chaos.crashes` and `tests.chaos.recovery`: kill -9 of real processes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def run(folder: Path, *command: str) -> Any:
    """Run a command in a process of its own, so that leftovers are visible; return its results."""
    output = folder / "results.json"
    done = subprocess.run(
        [sys.executable, "-m", *command, "--output", str(output)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert output.exists(), done.stdout
    return json.loads(output.read_text())


# With a stand-in for Ray, where an attempt costs half a minute of CPU time. `test_failures` kills drivers, ranks and
# controllers of a real one, `test_two_nodes` API and dispatcher.
def test_random_kills_lose_and_repeat_nothing(tmp_path: Path) -> None:
    options = ("--standin", "--width", "2", "--seed", "14", "--kills", "4", "--mean-wait", "3")
    runs = run(tmp_path, "tests.chaos.crashes", "--database", "postgresql", *options)["runs"]
    result = runs[0]["result"]
    assert result["violations"] == []
    assert result["kills_by_target"] == {"api": 1, "dispatcher": 1, "driver": 1, "worker": 1}
    assert result["attempts"]["succeeded"] == result["jobs"]


def test_killed_dispatcher_loses_no_step(tmp_path: Path) -> None:
    words = ("--only", "dispatcher", "--standin", "--lease-seconds", "4")
    result = run(tmp_path, "tests.chaos.recovery", *words)["dispatcher"]["result"]
    # The time until adoption is not checked, because the machine may be busy; the command measures it.
    assert (result["status"], result["attempt"], result["restarts"]) == ("running", 1, 0), result
    assert result["every_step_once_and_in_order"], result
    assert result["left_behind"] == []


def test_rank_ends_although_its_driver_ended_before_the_rank_began() -> None:
    command = [sys.executable, "-m", "tests.support.stand_in.training", "--rank", "0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as rank:
        assert rank.wait(120) == 1
