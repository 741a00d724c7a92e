"""Short versions of `tests.chaos.crashes` and `tests.chaos.recovery`: kill -9 of real processes."""

from __future__ import annotations

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


OPTIONS = ("--seed", "14", "--width", "2", "--mean-wait", "3")


# With a stand-in for Ray a kill costs little, so there can be more of them.
@pytest.mark.parametrize(
    ("kills", "options"),
    [
        pytest.param(4, ("--database", "sqlite"), id="ray", marks=pytest.mark.xdist_group("ray")),
        pytest.param(8, ("--database", "sqlite", "--standin"), id="sqlite"),
        pytest.param(8, ("--database", "postgresql", "--standin"), id="postgresql"),
    ],
)
def test_random_kills_lose_and_repeat_nothing(
    tmp_path: Path, kills: int, options: tuple[str, ...]
) -> None:
    words = ("--kills", str(kills), *OPTIONS, *options)
    result = run(tmp_path, "tests.chaos.crashes", *words)["runs"][0]["result"]
    assert result["violations"] == []
    assert result["kills"] == kills
    assert set(result["kills_by_target"]) == {"api", "dispatcher", "driver", "worker"}
    assert result["attempts"]["succeeded"] == result["jobs"]


def test_killed_dispatcher_loses_no_step(tmp_path: Path) -> None:
    words = ("--only", "dispatcher", "--standin")
    result = run(tmp_path, "tests.chaos.recovery", *words)["dispatcher"]["result"]
    # The time until adoption is not checked, because the machine may be busy; the command measures it.
    assert (result["status"], result["attempt"], result["restarts"]) == ("running", 1, 0), result
    assert result["every_step_once_and_in_order"], result
    assert result["left_behind"] == []
