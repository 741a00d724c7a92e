"""Standby processes: which are started, which attempts get them, and that no process serves two."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from service.client.attempt_token import METADATA_KEY, RAY_JOB_CONFIG, read_attempt_token
from service.embedded.local_ray import LocalRay
from tests.support.polling import until
from tests.support.processes import commands
from workers import standby, standby_keeper
from workers.driver import drop_job_environment
from workers.settings import RAY_SETTINGS
from workers.standby_keeper import waiting


@pytest.mark.parametrize(("given", "expected"), [(None, 0), ("", 0), ("0", 0), ("3", 3)])
def test_number_of_standby_ranks(
    monkeypatch: pytest.MonkeyPatch, given: str | None, expected: int
) -> None:
    monkeypatch.delenv(standby.COUNT_VARIABLE, raising=False)
    if given is not None:
        monkeypatch.setenv(standby.COUNT_VARIABLE, given)
    assert standby.standby_ranks() == expected


@pytest.mark.parametrize("given", ["-1", "two", "1.5"])
def test_wrong_number_of_standby_ranks(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv(standby.COUNT_VARIABLE, given)
    with pytest.raises(ValueError, match=standby.COUNT_VARIABLE):
        standby.standby_ranks()
    assert standby_keeper.main() == 2


def test_keeper_without_standby_ranks_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(standby.COUNT_VARIABLE, "0")
    assert standby_keeper.main() == 0


def test_keeper_outlives_a_request_without_answer(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        standby_keeper.start(f"127.0.0.1:{closed.getsockname()[1]}", "{}", 1, 1)
    assert "start later" in caplog.text


def test_environment_has_nothing_of_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DASL_SUBMISSION", "DASL_API_URL", "RAY_ADDRESS"):
        monkeypatch.setenv(name, "of one attempt")
    environment = standby.job_environment()
    assert environment["env_vars"].keys() == {*RAY_SETTINGS, "PYTHONUNBUFFERED"}
    assert "of one attempt" not in json.dumps(environment)


def test_environment_has_the_settings_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S", "17")
    variables = standby.job_environment()["env_vars"]
    assert variables["RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S"] == "17"
    [supervisors, ranks, controllers] = standby_keeper.build_pools(1, is_head=True)
    assert '"RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S":"17"' in controllers.environment
    assert '"RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S":"17"' in ranks.environment
    assert "RAY_TRAIN" not in supervisors.environment


def test_pools_of_a_node() -> None:
    def sizes(ranks: int, is_head: bool) -> list[int]:
        return [pool.size for pool in standby_keeper.build_pools(ranks, is_head=is_head)]

    assert sizes(2, is_head=True) == [1, 2, 1]
    assert sizes(2, is_head=False) == [1, 2, 1], "drivers of attempts run where ranks do"
    assert sizes(0, is_head=True) == [1], "the head of a cluster runs no driver of an attempt"
    assert sizes(0, is_head=False) == []


def test_driver_drops_the_environment_of_its_submission_and_keeps_the_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DASL_WORKER_TOKEN", raising=False)
    config = {
        "runtime_env": {"env_vars": {"DASL_SUBMISSION": "job-1"}},
        "metadata": {METADATA_KEY: "secret"},
    }
    monkeypatch.setenv(RAY_JOB_CONFIG, json.dumps(config))
    drop_job_environment()
    assert json.loads(os.environ[RAY_JOB_CONFIG]) == {"metadata": {METADATA_KEY: "secret"}}
    assert read_attempt_token() == "secret"


def test_module_that_fails_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "standby_broken.py").write_text("1 / 0")
    (tmp_path / "standby_intact.py").write_text("")
    standby.import_all(("standby_absent", "standby_broken", "standby_intact"))
    assert sys.modules.pop("standby_intact")
    said = capsys.readouterr().err
    assert "standby_absent was not imported in advance: ModuleNotFoundError" in said
    assert "standby_broken was not imported in advance: ZeroDivisionError" in said


@pytest.mark.slow
@pytest.mark.parametrize("modules", ["_CONTROLLER_MODULES", "_RANK_MODULES"])
def test_modules_exist_and_only_ranks_import_torch(modules: str) -> None:
    code = (
        "import sys; from workers import standby; "
        f"standby.import_all(standby.{modules}); print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert "was not imported" not in done.stderr, done.stderr
    assert done.stdout.split() == [str(modules == "_RANK_MODULES")]


@pytest.fixture
def worker() -> Iterator[Any]:
    """Start child processes that look like Ray's."""
    running = []

    def run(title: str, role: str = "", *words: str) -> None:
        code = "import signal; print(flush=True); signal.pause()"
        process = subprocess.Popen(
            [title, "-c", code, *words],
            executable=sys.executable,
            env={standby.ROLE_VARIABLE: role} if role else {},
            stdout=subprocess.PIPE,
        )
        running.append(process)
        assert process.stdout is not None
        process.stdout.readline()

    yield run
    for process in running:
        process.kill()
        process.communicate()


CONTROLLER = standby.CONTROLLER_VARIABLES
RANK = standby.RANK_VARIABLES


def test_only_unused_processes_of_the_pool_count(worker: Any) -> None:
    here = psutil.Process()
    worker("ray::IDLE")  # of another user of the cluster
    worker("ray::Controller.fit", standby.CONTROLLER)
    worker("ray::RayTrainWorker.execute", standby.RANK)
    assert (waiting(here, CONTROLLER), waiting(here, RANK)) == (0, 0)
    worker("ray::IDLE", standby.CONTROLLER)
    worker("ray::IDLE", standby.RANK)
    worker("python", standby.RANK, "default_worker.py")  # still starting
    assert (waiting(here, CONTROLLER), waiting(here, RANK)) == (1, 2)


def test_processes_are_needed_for_a_while_after_each_touch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    always, need = standby_keeper.Need(None), standby_keeper.Need(tmp_path / "needed")
    assert always.exists()
    assert not need.exists()
    # The clock of the file's system may be wrong, and may jump.
    for touched in (5e9, 0.0):
        (tmp_path / "needed").touch()
        os.utime(tmp_path / "needed", (touched, touched))
        assert need.exists()
        now += need.keep_seconds - 1
        assert need.exists()
        now += 1
        assert not need.exists()
    assert always.exists()
    assert always.keep_seconds > 365 * 24 * 3600


class _Ended(Exception):
    pass


def test_file_of_the_need_that_cannot_be_read_means_none(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    assert not standby_keeper.Need(tmp_path / "logs" / "needed").exists()


@pytest.mark.parametrize("touched", [True, False])
def test_keeper_starts_only_needed_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, touched: bool
) -> None:
    parent, started = psutil.Process(), []
    node = SimpleNamespace(
        resources_total={"CPU": 1},
        is_head_node=False,
        node_manager_address="a",
        node_manager_port=1,
    )

    def start(*given: object) -> None:
        started.append(given)

    def end(_seconds: float) -> None:
        raise _Ended

    monkeypatch.setattr(
        standby_keeper, "find_raylet", lambda _: standby_keeper.Raylet(parent, "", "")
    )
    monkeypatch.setattr(standby_keeper, "_node", lambda _: node)
    monkeypatch.setattr(standby_keeper, "start", start)
    monkeypatch.setattr(time, "sleep", end)
    if touched:
        (tmp_path / "needed").touch()
    need = standby_keeper.Need(tmp_path / "needed")
    with pytest.raises(_Ended):
        standby_keeper.keep(parent, 2, need)
    pools = standby_keeper.build_pools(2, is_head=False)
    expected = [("a:1", pool.environment, pool.size, need.keep_seconds) for pool in pools]
    assert started == (expected if touched else [])


JOB = """
import builtins, json, logging, os, sys
import ray
from ray.train import RunConfig, ScalingConfig
from workers.settings import RAY_SETTINGS
from workers.standby import RANK_VARIABLES, job_environment
from workers.trainer import LeanTrainer

def train(config):
    import psutil
    modules = sorted({"torch", "dasl_core.train.build"} & set(sys.modules))
    found = [hasattr(builtins, "MARK"), "MARK" in os.environ]
    builtins.MARK = os.environ["MARK"] = config["job"]
    print("of the rank", config["job"])
    me = psutil.Process()
    names = [p.cmdline()[0] for p in me.parent().children() if p.pid != me.pid]
    busy = [n for n in names if n.startswith("ray::") and "IDLE" not in n and "Agent" not in n]
    facts = {"pid": me.pid, "busy": busy, "born": me.create_time(), "modules": modules, "found": found}
    open(config["output"], "w").write(json.dumps(facts | {"address": os.environ["RAY_ADDRESS"]}))

os.environ.update({k: v for k, v in RAY_SETTINGS.items() if k not in os.environ})
ray.init(logging_level=logging.WARNING, runtime_env=job_environment())
folder, job = sys.argv[1:]
ranks = {"env_vars": RANK_VARIABLES}

class Attempt:
    def fit(self):
        LeanTrainer(
            train,
            train_loop_config={"output": f"{folder}/{job}.json", "job": job},
            scaling_config=ScalingConfig(num_workers=1),
            run_config=RunConfig(
                name=job, storage_path=f"{folder}/storage", worker_runtime_env=ranks
            ),
        ).fit()

attempt = ray.remote(Attempt).options(num_cpus=0).remote()
ray.get(attempt.fit.remote())
"""


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
@pytest.mark.timeout(600)
def test_each_job_gets_its_own_standby_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(standby.COUNT_VARIABLE, "1")
    ray = LocalRay(tmp_path / "ray", tmp_path / "logs" / "ray.log", cpus=1)
    with ExitStack() as stack:
        stack.callback(ray.stop)
        ray.start()
        # This process may have another Ray, for other tests.
        guard = ray._guard
        assert guard is not None

        def raylet() -> psutil.Process | None:
            found = commands(guard.pid).items()
            return next((psutil.Process(p) for p, w in found if w[0].endswith("/raylet")), None)

        node = until(raylet, "the raylet")
        options = dict(word.partition("=")[::2] for word in node.cmdline())
        # With the setting that keeps this Ray on its loopback address.
        settings = {k: v for k, v in node.environ().items() if k.startswith("RAY_")}
        access = settings | {"RAY_ADDRESS": options["--gcs-address"]}

        def standby_ranks() -> set[int]:
            idle = [p for p in node.children() if p.cmdline()[:1] == ["ray::IDLE"]]
            return {p.pid for p in idle if p.environ().get(standby.ROLE_VARIABLE) == standby.RANK}

        def run(job: str) -> dict[str, Any]:
            command = [sys.executable, "-P", "-c", JOB, str(tmp_path), job]
            done = subprocess.run(
                command, env=os.environ | access, capture_output=True, text=True, timeout=240
            )
            assert done.returncode == 0, done.stderr
            # On a busy machine Ray may forward a line in two parts, each with the name of the process.
            log = re.sub(r"\n\(\S+ pid=\d+\) ", "", done.stdout + done.stderr)
            assert f"of the rank {job}" in log, "ranks write to its log"
            facts: dict[str, Any] = json.loads((tmp_path / f"{job}.json").read_text())
            return facts

        [first_standby] = until(lambda: standby_ranks() or None, "a standby rank", 240)
        first = run("first")
        [second_standby] = until(lambda: standby_ranks() or None, "another standby rank", 240)
        second = run("second")

    # Without standby processes, attempts start as in all other tests.
    assert (first["pid"], second["pid"]) == (first_standby, second_standby)
    assert (first["pid"], first["born"]) != (second["pid"], second["born"])
    for facts in (first, second):
        assert facts["modules"] == ["dasl_core.train.build", "torch"]
        assert facts["found"] == [False, False], "something of another job"
        assert facts["address"] == access["RAY_ADDRESS"]
        assert facts["busy"] == ["ray::Attempt.fit"], "one process of Ray Train beside the ranks"
