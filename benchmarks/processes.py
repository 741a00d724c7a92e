"""What runs below a process of ours, and for which attempt (Linux)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from service.embedded.subreaper import descendants

Part = Literal["driver", "rank"]


@dataclass(frozen=True)
class TrainingProcess:
    """A process of an attempt that runs now."""

    pid: int
    part: Part
    submission_id: str
    """The attempt's, as `attempts.submission_id` has it: whose process this is."""


def commands(ancestor: int) -> dict[int, list[str]]:
    """Command lines of all processes below one."""
    found = {}
    for pid in descendants(ancestor):
        try:
            found[pid] = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
        except OSError:
            continue  # It ended between the listing and the reading.
    return found


def training(ancestor: int) -> list[TrainingProcess]:
    """Drivers and ranks of attempts below a process."""
    found = []
    for pid, words in commands(ancestor).items():
        part: Part
        if words[0].startswith("ray::RayTrain") or "--rank" in words:
            part = "rank"
        elif "workers.run" in words or "benchmarks.standin.training" in words:
            part = "driver"
        else:
            continue
        submission_id = environment(pid).get("DASL_SUBMISSION")
        if submission_id is not None:
            found.append(TrainingProcess(pid, part, submission_id))
    return found


def environment(pid: int) -> dict[str, str]:
    """The variables that a process was started with; none if it has ended."""
    try:
        text = Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return {}
    return dict(entry.partition("=")[::2] for entry in text.split("\0") if entry)


def cpu_seconds(pid: int) -> float:
    """User and system time that a process has used; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
