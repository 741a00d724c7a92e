"""Removal of Ray's log files: old ones of ended processes only."""

import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest

from service.ids import new_id
from workers.ray_logs import KEEP_SECONDS, remove_local_logs, remove_old_logs

OURS = new_id("job")
ID = "1c1a6ec5e876e9fab1c7e9d4040618041e269a48152752f2b768a857"


def write(folder: Path, name: str, seconds: float) -> None:
    """Write a file that was last changed so many seconds ago."""
    (folder / name).write_text("line\n")
    changed = time.time() - seconds
    os.utime(folder / name, (changed, changed))


@pytest.fixture(scope="module")
def ended() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_only_old_files_of_ended_processes_are_removed(tmp_path: Path, ended: int) -> None:
    running = os.getpid()
    removed = [
        f"job-driver-demand-{uuid4().hex}.log",
        f"job-driver-{OURS}-1-0a1b2c3d.log",
        f"worker-{ID}-ffffffff-{ended}.out",
        f"worker-{ID}-03000000-{ended}.err.2",
        f"python-core-worker-{ID}_{ended}.log",
        f"python-core-driver-02000000{'f' * 48}_{ended}.log",
    ]
    kept = [
        "job-driver-raysubmit_RSjB5aN2wQ7yQv1q.log",
        f"worker-{ID}-ffffffff-{running}.out",
        f"python-core-worker-{ID}_{running}.log",
        "raylet.out",
        "gcs_server.err",
        "dashboard_JobHead.log",
        "runtime_env_setup-ffffffff.log",
    ]
    for name in (*removed, *kept):
        write(tmp_path, name, KEEP_SECONDS + 3600)
    recent = [f"job-driver-{OURS}-2-0a1b2c3d.log", f"worker-{ID}-04000000-{ended}.out"]
    for name in recent:
        write(tmp_path, name, KEEP_SECONDS - 3600)
    (tmp_path / "old").mkdir()
    remove_old_logs(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([*kept, *recent, "old"])


def test_failure_to_remove_logs_fails_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from ray._private import worker

    monkeypatch.setattr(worker, "_global_node", None)
    remove_local_logs()
    assert not caplog.records
    node = SimpleNamespace(get_logs_dir_path=lambda: str(tmp_path / "missing"))
    monkeypatch.setattr(worker, "_global_node", node)
    with caplog.at_level(logging.WARNING):
        remove_local_logs()
    assert "old log files of Ray are not removed" in caplog.text
