"""A task that takes too much memory is ended and reported, and ends with the process that watches it."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.polling import until
from tests.workers.test_reporter import Home
from workers import memory_limit
from workers.model_run import OnGpu

INGEST = ["ingest", "--run", "ds_1-1", "--dataset", "ds_1"]


@pytest.fixture
def home() -> Iterator[Home]:
    home = Home()
    home.up()
    yield home
    home.down()


def watched(url: str, **variables: str) -> subprocess.Popen[str]:
    environment = {"DASL_API_URL": url, "DASL_WORKER_TOKEN": "token", **variables}
    command = [sys.executable, "-m", "workers.memory_limit", *INGEST]
    return subprocess.Popen(
        command, env=os.environ | environment, stderr=subprocess.PIPE, text=True
    )


def test_task_beyond_the_limit_is_ended_and_reported(home: Home) -> None:
    with watched(home.url, DASL_TASK_MEMORY_GB="0.02") as process:
        _, log = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "ingest took more than 0.02 GB of memory and was ended" in log
    [(action, report)] = home.reports
    assert (action, report["state"], report["error"]["type"]) == (
        "finish",
        "failed",
        "out-of-memory",
    )
    assert report["error"]["message"].startswith("The run took more than 0.02 GB of memory")


def test_run_on_a_gpu_is_watched_where_it_works(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its actor is no child of the process on Ray's head, which measured only itself."""
    access = {"DASL_API_URL": home.url, "DASL_WORKER_TOKEN": "token"}
    for name, value in {**access, "DASL_TASK_MEMORY_GB": "0.02"}.items():
        monkeypatch.setenv(name, value)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        code = OnGpu().work(["--run", "mrun_1-1", "--model-run", "mrun_1"], access)
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert code == 0
    [(action, report)] = home.reports
    assert (action, report["error"]["type"]) == ("finish", "out-of-memory")


def test_task_within_the_limit_returns_its_exit_code(home: Home, tmp_path: Path) -> None:
    home.answers["start"] = {
        "uri": f"file://{tmp_path}/none",
        "artifacts_uri": f"file://{tmp_path}/store",
        "dataset_roots": [str(tmp_path)],
    }
    with watched(home.url) as process:
        process.communicate(timeout=120)
    assert process.returncode == 0
    assert [action for action, _ in home.reports] == ["start", "finish"]
    assert home.reports[1][1]["error"]["type"] == "ingest-failed"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_task_ends_with_what_watches_it(number: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with watched(url) as process:
            silent.accept()  # the task asks for its start, and gets no answer
            [task] = psutil.Process(process.pid).children()
            process.send_signal(number)
            process.communicate(timeout=60)
    until(lambda: None if task.is_running() and task.status() != "zombie" else True, "its end")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_task_that_is_ended_by_a_signal_has_the_code_of_a_shell(number: int) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        watched(f"http://127.0.0.1:{silent.getsockname()[1]}") as process,
    ):
        silent.accept()
        [task] = psutil.Process(process.pid).children()
        task.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == 128 + number


def test_tasks_that_start_together_leave_a_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each had half of what was free when it started; beyond the rest Ray ends processes of trainings."""
    free = iter([32e9, 32e9, 3e9, 3e9])  # at the start, and at each look
    limits = []

    def exceeds(_: psutil.Process, limit: float) -> bool:
        limits.append(limit)
        return len(limits) == 2

    monkeypatch.setattr(memory_limit, "available_memory", lambda: next(free))
    monkeypatch.setattr(memory_limit, "exceeds", exceeds)
    monkeypatch.setattr(memory_limit, "_EVERY_SECONDS", 0.01)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setenv("DASL_WORKER_TOKEN", "token")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("DASL_API_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(memory_limit.TooMuchMemory) as ended:
            memory_limit.run(INGEST, 16)
    assert limits == [16e9, 8e9]
    assert ended.value.limit == 8


HOLDS = """
import mmap, os, subprocess, sys
held = {}
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("held", "counts"),
    [
        ("b'x' * (64 << 20)", True),
        # The memory of a child.
        (
            "subprocess.Popen([sys.executable, '-c', 'x = b\"x\" * (64 << 20); print(flush=True); input()'],"
            " stdout=subprocess.PIPE).stdout.readline()",
            True,
        ),
        # Pages of a file, which the system can take back.
        (
            "(m := mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 0, prot=mmap.PROT_READ), m[::4096])",
            False,
        ),
    ],
)
@pytest.mark.parametrize("kernel", ["now", "before 5.3", "without smaps_rollup"])
def test_memory_is_that_of_all_processes_without_mapped_files(
    tmp_path: Path, held: str, counts: bool, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernel == "before 5.3":
        monkeypatch.setattr(memory_limit, "_KINDS", ("None_Anon:", "None_Shmem:", "SwapPss:"))
    elif kernel == "without smaps_rollup":
        monkeypatch.setattr(memory_limit, "_ROLLUP", "none")
    file = tmp_path / "file"
    file.write_bytes(b"x" * (64 << 20))
    command = [sys.executable, "-c", HOLDS.format(held), str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        watched = psutil.Process(process.pid)
        assert memory_limit.exceeds(watched, 64 << 20) == counts
        assert not memory_limit.exceeds(watched, 256 << 20)
        process.stdin.close()
    assert not memory_limit.exceeds(watched, 0), "it has ended"


@pytest.mark.parametrize("given", ["0", "-1", "nan", "inf", "much"])
def test_limit_must_be_a_positive_number(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASL_TASK_MEMORY_GB", given)
    with pytest.raises(ValueError, match="DASL_TASK_MEMORY_GB: must be a number of gigabytes"):
        memory_limit.limit_gb()
    monkeypatch.setenv("DASL_TASK_MEMORY_GB", "1.5")
    assert memory_limit.limit_gb() == 1.5
    monkeypatch.delenv("DASL_TASK_MEMORY_GB")
    assert memory_limit.limit_gb() >= 2
