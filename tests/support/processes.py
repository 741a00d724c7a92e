"""Processes of a running service, and the attempts that they belong to (Linux); free ports."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dasl_core.locks import IN_USE
from service.embedded.subreaper import descendants
from workers.scratch import PREFIX

Part = Literal["driver", "controller", "rank"]


@dataclass(frozen=True)
class TrainingProcess:
    """A running process of an attempt."""

    pid: int
    part: Part
    submission_id: str
    """Submission id of the attempt (`attempts.submission_id`)."""


def is_alive(pid: int) -> bool:
    """Return whether a process is alive; a zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


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
        part = part_of(words)
        submission_id = environment(pid).get("DASL_SUBMISSION") or _held_submission(pid)
        if part is not None and submission_id is not None:
            running.append(TrainingProcess(pid, part, submission_id))
    return running


def _held_submission(pid: int) -> str | None:
    """Return the submission whose scratch folder a rank holds; standby ranks have no variable for it."""
    try:
        files = [os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return None  # It ended.
    folders = [Path(file).parent.name for file in files if Path(file).name == IN_USE]
    held = [name.removeprefix(PREFIX) for name in folders if name.startswith(PREFIX)]
    return held[0] if held else None


def part_of(words: list[str]) -> Part | None:
    """Return the part that a process with this command line has in a training; None for others."""
    if words[0].startswith("ray::RayTrain") or "--rank" in words:
        return "rank"
    if words[0].startswith("ray::Controller."):
        return "controller"
    if "workers.driver" in words or "tests.support.stand_in.training" in words:
        return "driver"
    return None


def environment(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with; empty if it has ended."""
    try:
        text = Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return {}
    return dict(entry.partition("=")[::2] for entry in text.split("\0") if entry)


def free_port() -> int:
    """Return a TCP port that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
