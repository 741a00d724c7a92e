"""What every executor owes the dispatcher: one suite over the fake and over a real local Ray."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest
from fake_executor import FakeExecutor

from service.dispatcher.executor import (
    Executor,
    ExecutorUnavailable,
    LogPiece,
    Run,
    RunState,
)
from service.dispatcher.ray_executor import RayExecutor
from service.local_ray import LocalRay


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRay]:
    folder = tmp_path_factory.mktemp("ray")
    with LocalRay(folder / "ray", folder / "ray.log", cpus=2) as ray:
        executor = RayExecutor(ray.address, ray.token)
        deadline = time.monotonic() + 250
        while True:
            assert ray.running, (folder / "ray.log").read_text()
            try:
                if executor.cluster().nodes:
                    break
            except ExecutorUnavailable:
                assert time.monotonic() < deadline, (folder / "ray.log").read_text()
            time.sleep(0.1)
        executor.close()
        yield ray


@pytest.fixture(
    params=[
        "fake",
        pytest.param("ray", marks=[pytest.mark.slow, pytest.mark.xdist_group("ray")]),
    ]
)
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    if request.param == "fake":
        fake = FakeExecutor()
        yield fake
        fake.close()
    else:
        ray = request.getfixturevalue("ray")
        adapter = RayExecutor(ray.address, ray.token)
        yield adapter
        adapter.close()


@pytest.fixture
def name() -> str:
    return f"job_{uuid4().hex}-1"


def until(executor: Executor, name: str, wanted: Callable[[Run], bool]) -> Run:
    deadline = time.monotonic() + 200
    while True:
        run = executor.status(name)
        assert run is not None
        if wanted(run):
            return run
        assert time.monotonic() < deadline, run
        time.sleep(0.05)


def ended(run: Run) -> bool:
    return run.state.ended


def log_of(executor: Executor, name: str) -> list[str]:
    """The lines of a driver's log. Ray puts some of its own between them."""
    return executor.logs(name, 0, 1_000_000).data.decode().splitlines()


def test_runs_a_command_with_its_environment(executor: Executor, name: str) -> None:
    executor.submit(
        name, f"{sys.executable} -c \"import os; print(os.environ['WORD'])\"", {"WORD": "ünder"}
    )
    run = until(executor, name, ended)
    assert (run.state, run.exit_code) == (RunState.SUCCEEDED, 0)
    assert "ünder" in log_of(executor, name)


def test_tells_how_a_command_failed(executor: Executor, name: str) -> None:
    executor.submit(name, "echo on stdout; echo on stderr >&2; exit 3", {})
    run = until(executor, name, ended)
    assert (run.state, run.exit_code) == (RunState.FAILED, 3)
    lines = log_of(executor, name)
    assert lines.index("on stdout") < lines.index("on stderr")


def test_tells_that_a_command_was_killed(executor: Executor, name: str) -> None:
    executor.submit(name, "kill -9 $$", {})
    run = until(executor, name, ended)
    assert run.state == RunState.FAILED
    assert run.exit_code in (-9, 137)


def test_one_id_runs_once_however_often_it_is_submitted(
    executor: Executor, name: str, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    with ThreadPoolExecutor(4) as pool:
        submissions = [pool.submit(executor.submit, name, f"echo x >> {ran}", {}) for _ in range(4)]
    assert [submission.result() for submission in submissions] == [None] * 4
    until(executor, name, ended)
    executor.submit(name, f"echo again >> {ran}", {})  # Also when it is over.
    assert until(executor, name, ended).state == RunState.SUCCEEDED
    assert ran.read_text() == "x\n"


def test_knows_nothing_of_what_was_never_submitted(executor: Executor, name: str) -> None:
    assert executor.status(name) is None
    assert executor.logs(name, 0, 10) == LogPiece(b"", 0)
    executor.stop(name)


def test_logs_grow_while_it_runs_and_stop_ends_it(executor: Executor, name: str) -> None:
    executor.submit(name, "echo first; exec sleep 1000", {})
    until(executor, name, lambda run: run.state == RunState.RUNNING)
    deadline = time.monotonic() + 120
    while "first" not in log_of(executor, name):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    executor.stop(name)
    assert until(executor, name, ended).state == RunState.STOPPED
    executor.stop(name)  # Again is no error.
    assert "first" in log_of(executor, name)


@pytest.mark.parametrize("way", ["agent", "head"])
def test_logs_come_in_parts_byte_by_byte(executor: Executor, name: str, way: str) -> None:
    # Not text in any encoding, line ends of all kinds, and more than fits into one answer's block.
    script = "import sys; [sys.stdout.buffer.write(b'\\xff\\r\\n%d\\r' % n) for n in range(60_000)]"
    executor.submit(name, f'{sys.executable} -c "{script}"', {})
    until(executor, name, ended)
    if way == "head" and isinstance(executor, RayExecutor):
        # As if the dispatcher could reach nothing but Ray's head.
        executor._unreachable[executor._drivers[name].agent] = float("inf")
    expected = b"".join(b"\xff\r\n%d\r" % n for n in range(60_000))
    size = executor.logs(name, 0, 1).size
    assert size >= len(expected)
    whole = b"".join(executor.logs(name, start, 100_000).data for start in range(0, size, 100_000))
    assert len(whole) == size
    # Ray's job manager and supervisor write into the same file, at moments of their own: the latter
    # says what it runs when it has started it.
    of_ray = rb"\d{4}-\d\d-\d\d [^\n]*job_manager\.py[^\n]*\n|Running entrypoint for job [^\n]*\n"
    assert expected in re.sub(of_ray, b"", whole)
    middle = executor.logs(name, size // 2, 7)
    assert middle == LogPiece(whole[size // 2 : size // 2 + 7], size)
    assert executor.logs(name, size - 3, 7) == LogPiece(whole[-3:], size)
    assert executor.logs(name, size, 7) == LogPiece(b"", size)
    assert executor.logs(name, size + 9, 7) == LogPiece(b"", size)


def test_shows_the_cluster(executor: Executor) -> None:
    cluster = executor.cluster()
    assert len(cluster.nodes) == 1
    assert (cluster.total_cpus, cluster.used_cpus) == (2, 0)
    assert cluster.used_gpus <= cluster.total_gpus


def test_nobody_answers() -> None:
    executor = RayExecutor("http://127.0.0.1:9", None)
    with pytest.raises(ExecutorUnavailable, match=r"does not answer at http://127\.0\.0\.1:9"):
        executor.status("job_x-1")


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
@pytest.mark.parametrize("token", [None, "not-the-token"])
def test_ray_asks_for_its_token(ray: LocalRay, token: str | None) -> None:
    with pytest.raises(ExecutorUnavailable, match="RAY_AUTH_TOKEN"):
        RayExecutor(ray.address, token).submit("job_x-1", "true", {})
