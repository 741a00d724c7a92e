"""Conformance suite of executors, run on the fake and on a real local Ray."""

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self
from uuid import uuid4

import pytest

from service.dispatcher.executor import (
    Executor,
    ExecutorUnavailable,
    LogPiece,
    Submission,
    SubmissionState,
)
from service.dispatcher.ray_executor import RayExecutor
from service.embedded.local_ray import LocalRay
from tests.support.fake_executor import FakeExecutor
from tests.support.polling import wait_for

TOKEN = "secret-of-no-test"


@pytest.fixture(
    params=["fake", pytest.param("ray", marks=[pytest.mark.slow, pytest.mark.xdist_group("ray")])]
)
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    if request.param == "fake":
        fake = FakeExecutor()
        yield fake
        fake.close()
    else:
        ray = request.getfixturevalue("local_ray")
        adapter = RayExecutor(ray.address, ray.token)
        yield adapter
        adapter.close()


@pytest.fixture
def name() -> str:
    return f"job_{uuid4().hex}-1"


def until(executor: Executor, name: str, wanted: Callable[[Submission], bool]) -> Submission:
    deadline = time.monotonic() + 200
    while True:
        run = executor.status(name)
        assert run is not None
        if wanted(run):
            return run
        assert time.monotonic() < deadline, run
        time.sleep(0.05)


def ended(run: Submission) -> bool:
    return run.state.ended


def log_of(executor: Executor, name: str) -> list[str]:
    """Return the lines of a driver's log. Ray puts some of its own between them."""
    return executor.logs(name, 0, 1_000_000).data.decode().splitlines()


def test_submit_runs_command_with_environment(executor: Executor, name: str) -> None:
    executor.submit(
        name,
        f"{sys.executable} -c \"import os; print(os.environ['WORD'])\"",
        {"WORD": "ünder 'quotes' $HOME"},
        TOKEN,
    )
    run = until(executor, name, ended)
    assert (run.state, run.exit_code) == (SubmissionState.SUCCEEDED, 0)
    assert "ünder 'quotes' $HOME" in log_of(executor, name)


def test_command_has_its_own_token(executor: Executor, name: str) -> None:
    script = (
        "from service.client.attempt_token import read_attempt_token; print(read_attempt_token())"
    )
    executor.submit(name, f'{sys.executable} -c "{script}"', {}, token := uuid4().hex)
    assert until(executor, name, ended).state == SubmissionState.SUCCEEDED
    assert token in log_of(executor, name)


class Onlooker(threading.Thread):
    """Thread that repeatedly reads the command lines of all processes, as any user may."""

    def __init__(self, secret: str) -> None:
        super().__init__(daemon=True)
        self._secret, self._stop_soon = secret.encode(), threading.Event()
        self.pids: set[int] = set()
        self.found: set[bytes] = set()

    def run(self) -> None:
        while not self._stop_soon.is_set():
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    line = (process / "cmdline").read_bytes()
                except OSError:
                    continue  # The process has ended.
                self.pids.add(int(process.name))
                if self._secret in line:
                    self.found.add(line)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop_soon.set()
        self.join()


# Prints the environment of a Ray task, which runs in a process of its own.
ASKS_A_TASK = """
import json, os, ray

@ray.remote(num_cpus=0)
def look():
    return os.getpid(), dict(os.environ)

ray.init(log_to_driver=False)
print(json.dumps(ray.get(look.remote())), flush=True)
"""


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ray_does_not_show_token(local_ray: LocalRay, name: str, tmp_path: Path) -> None:
    (tmp_path / "driver.py").write_text(ASKS_A_TASK)
    executor, token = RayExecutor(local_ray.address, local_ray.token), uuid4().hex
    with Onlooker(token) as onlooker:
        command = f"{sys.executable} {tmp_path / 'driver.py'}"
        executor.submit(name, command, {"WORD": "not secret"}, token)
        run = until(executor, name, ended)
    log = log_of(executor, name)
    executor.close()
    assert run.state == SubmissionState.SUCCEEDED, log
    pid, environment = next(json.loads(line) for line in log if line.startswith("["))
    assert pid in onlooker.pids, "it looked while the task's process lived"
    assert onlooker.found == set()
    # Ray logs a job's command in files that every user may read.
    files = [
        file for file in (local_ray.log.parent / "ray").resolve().rglob("*.log") if file.is_file()
    ]
    logged = {file.name: file.read_bytes() for file in files}
    assert [name for name, content in logged.items() if b"not secret" in content]
    assert [name for name, content in logged.items() if token.encode() in content] == []
    assert "WORD" not in environment, "it would keep standby processes from this job"
    assert token not in str(environment)


def test_status_has_exit_code_of_failed_command(executor: Executor, name: str) -> None:
    executor.submit(name, "echo on stdout; echo on stderr >&2; exit 3", {}, TOKEN)
    run = until(executor, name, ended)
    assert (run.state, run.exit_code) == (SubmissionState.FAILED, 3)
    lines = log_of(executor, name)
    assert lines.index("on stdout") < lines.index("on stderr")


def test_status_of_killed_command_is_failed(executor: Executor, name: str) -> None:
    executor.submit(name, "kill -9 $$", {}, TOKEN)
    run = until(executor, name, ended)
    assert run.state == SubmissionState.FAILED
    assert run.exit_code in (-9, 137)


def test_repeated_submission_runs_once(executor: Executor, name: str, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    with ThreadPoolExecutor(4) as pool:
        submissions = [
            pool.submit(executor.submit, name, f"echo x >> {ran}", {}, TOKEN) for _ in range(4)
        ]
    assert [submission.result() for submission in submissions] == [None] * 4
    until(executor, name, ended)
    executor.submit(name, f"echo again >> {ran}", {}, TOKEN)  # Idempotent after the end, too.
    assert until(executor, name, ended).state == SubmissionState.SUCCEEDED
    assert ran.read_text() == "x\n"


def test_unknown_submission_has_no_status_and_no_log(executor: Executor, name: str) -> None:
    assert executor.status(name) is None
    assert executor.logs(name, 0, 10) == LogPiece(b"", 0)
    executor.stop(name)


def test_logs_grow_while_it_runs_and_stop_ends_it(executor: Executor, name: str) -> None:
    executor.submit(name, "echo first; exec sleep 1000", {}, TOKEN)
    until(executor, name, lambda run: run.state == SubmissionState.RUNNING)
    deadline = time.monotonic() + 120
    while "first" not in log_of(executor, name):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    executor.stop(name)
    assert until(executor, name, ended).state == SubmissionState.STOPPED
    executor.stop(name)  # A repeated stop is no error.
    assert "first" in log_of(executor, name)


def test_delete_removes_the_record_of_an_ended_submission(executor: Executor, name: str) -> None:
    executor.submit(name, "exec sleep 1000", {}, TOKEN)
    until(executor, name, lambda run: run.state == SubmissionState.RUNNING)
    assert executor.delete(name) is False
    assert executor.status(name) is not None
    executor.stop(name)
    until(executor, name, ended)
    # Ray's monitor of a submission may record its end once more, just after the record was removed.
    wait_for(lambda: executor.delete(name) and executor.status(name) is None)
    assert executor.logs(name, 0, 10) == LogPiece(b"", 0)
    assert executor.delete(name) is True
    assert executor.delete(f"{name}-unknown") is True


@pytest.mark.parametrize("way", ["agent", "head"])
def test_logs_are_read_by_byte_range(executor: Executor, name: str, way: str) -> None:
    # Bytes of no encoding, all kinds of line ends, and more than one answer's block.
    script = "import sys; [sys.stdout.buffer.write(b'\\xff\\r\\n%d\\r' % n) for n in range(60_000)]"
    executor.submit(name, f'{sys.executable} -c "{script}"', {}, TOKEN)
    until(executor, name, ended)
    if way == "head" and isinstance(executor, RayExecutor):
        # Simulates a dispatcher that can reach only Ray's head.
        executor._unreachable[executor._drivers[name].agent] = float("inf")
    expected = b"".join(b"\xff\r\n%d\r" % n for n in range(60_000))
    size = executor.logs(name, 0, 1).size
    assert size >= len(expected)
    whole = b"".join(executor.logs(name, start, 100_000).data for start in range(0, size, 100_000))
    assert len(whole) == size
    # Ray's job manager and supervisor write into the same file at any time; the supervisor logs its
    # command after starting it.
    of_ray = rb"\d{4}-\d\d-\d\d [^\n]*job_manager\.py[^\n]*\n|Running entrypoint for job [^\n]*\n"
    assert expected in re.sub(of_ray, b"", whole)
    middle = executor.logs(name, size // 2, 7)
    assert middle == LogPiece(whole[size // 2 : size // 2 + 7], size)
    assert executor.logs(name, size - 3, 7) == LogPiece(whole[-3:], size)
    assert executor.logs(name, size, 7) == LogPiece(b"", size)
    assert executor.logs(name, size + 9, 7) == LogPiece(b"", size)


def test_cluster_lists_nodes(executor: Executor) -> None:
    cluster = executor.cluster()
    assert len(cluster.nodes) == 1
    assert (cluster.total_cpus, cluster.used_cpus) == (2, 0)
    assert cluster.used_gpus <= cluster.total_gpus


def test_unreachable_ray_raises_executor_unavailable() -> None:
    executor = RayExecutor("http://127.0.0.1:9", None)
    with pytest.raises(ExecutorUnavailable, match=r"does not answer at http://127\.0\.0\.1:9"):
        executor.status("job_x-1")


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
@pytest.mark.parametrize("token", [None, "not-the-token"])
def test_ray_requires_token(local_ray: LocalRay, token: str | None) -> None:
    with pytest.raises(ExecutorUnavailable, match="RAY_AUTH_TOKEN"):
        RayExecutor(local_ray.address, token).submit("job_x-1", "true", {}, TOKEN)
