"""Descendants of a process, and the attempts that they belong to (Linux)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from service.embedded.subreaper import descendants

Part = Literal["driver", "rank"]


@dataclass(frozen=True)
class TrainingProcess:
    """A running process of an attempt."""

    pid: int
    part: Part
    submission_id: str
    """Submission id of the attempt (`attempts.submission_id`)."""


def commands(ancestor: int) -> dict[int, list[str]]:
    """Return the command lines of all descendants, by process id."""
    lines = {}
    for pid in descendants(ancestor):
        try:
            lines[pid] = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
        except OSError:
            continue  # It ended between the listing and the reading.
    return lines


def training(ancestor: int) -> list[TrainingProcess]:
    """Return the drivers and ranks of attempts among the descendants."""
    running = []
    for pid, words in commands(ancestor).items():
        part: Part
        if words[0].startswith("ray::RayTrain") or "--rank" in words:
            part = "rank"
        elif "workers.driver" in words or "tests.support.stand_in.training" in words:
            part = "driver"
        else:
            continue
        submission_id = environment(pid).get("DASL_SUBMISSION")
        if submission_id is not None:
            running.append(TrainingProcess(pid, part, submission_id))
    return running


def environment(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with; empty if it has ended."""
    try:
        text = Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return {}
    return dict(entry.partition("=")[::2] for entry in text.split("\0") if entry)


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
