"""The folder of Ray's files, and what Ray's processes inherit from the service's environment."""

import errno
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ray.dashboard.subprocesses.module import SubprocessModule
from ray.dashboard.utils import get_all_modules

from service.dispatcher.context import Entrypoints
from service.embedded import local_ray


def test_longest_ray_folder_fits_every_ray_socket() -> None:
    modules = [module.__name__ for module in get_all_modules(SubprocessModule)]
    assert "MetricsHead" in modules
    names = ["plasma_store", "raylet", *(f"dash_{module}" for module in modules)]
    longest_pid = 2**22
    session = f"session_2026-11-21_08-30-37_786744_{longest_pid}"
    longest = max(len(f"/{session}/sockets/{name}") for name in names)
    assert local_ray._MAX_FOLDER_BYTES + longest == 107
    page = Path(__file__).parents[2] / "docs" / "operations.md"
    assert f"more than {local_ray._MAX_FOLDER_BYTES} bytes" in page.read_text(encoding="utf-8")


def test_link_to_a_folder_of_a_person_loses_only_the_link(tmp_path: Path) -> None:
    disk, folder = tmp_path / "scratch", tmp_path / "ray"
    (disk / "ray").mkdir(parents=True)
    (disk / "photo.jpg").touch()
    folder.symlink_to(disk / "ray")
    local_ray._remove_link(folder)
    assert not folder.is_symlink()
    assert [path.name for path in sorted(disk.iterdir())] == ["photo.jpg", "ray"]


def test_full_disk_leaves_no_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(local_ray, "_TEMPORARY", tmp_path)
    monkeypatch.setattr(Path, "symlink_to", full)
    with pytest.raises(OSError, match="no space left"):
        local_ray._empty_folder(tmp_path / "with space")
    assert list(tmp_path.iterdir()) == []


def test_need_is_shown_before_the_first_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    local_ray.LocalRay(tmp_path / "ray", tmp_path / "logs" / "ray.log").show_need()
    assert (tmp_path / "logs" / "ray-needed").exists()
    assert caplog.text == ""


@pytest.mark.parametrize("name", ["with space", "höhe"])
def test_folder_name_that_ray_refuses_becomes_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(local_ray, "_MAX_FOLDER_BYTES", 4096)
    assert local_ray._empty_folder(tmp_path / "plain") == tmp_path / "plain"
    used = local_ray._empty_folder(tmp_path / name)
    assert used.is_dir()
    assert str(used).isascii()
    assert " " not in str(used)
    assert (tmp_path / name).readlink() == used
    local_ray._remove_link(tmp_path / name)
    assert not used.exists()


def test_serve_refuses_installation_path_with_a_space(tmp_path: Path) -> None:
    moved = "import sys; sys.executable = '/opt/my tools/bin/python'"
    code = f"{moved}; from service.embedded.serve import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"DASL_HOME": str(tmp_path / "home"), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("dasl serve: Ray cannot start from a folder with a space")
    assert "/opt/my tools/bin/python" in done.stderr
    assert not (tmp_path / "home").exists()


def test_folder_that_is_too_long_becomes_a_link(tmp_path: Path) -> None:
    folder = tmp_path / ("r" * local_ray._MAX_FOLDER_BYTES)
    used = local_ray._empty_folder(folder)
    assert used.is_dir()
    assert len(str(used)) <= local_ray._MAX_FOLDER_BYTES
    assert folder.readlink() == used
    used.chmod(0o1777)  # as Ray does
    assert used.parent.stat().st_mode & 0o077 == 0, "others may read what Ray logs"
    local_ray._remove_link(folder)
    assert not folder.is_symlink()
    assert not used.parent.exists()


ROOT = Path(__file__).parents[2]
PLANTED = "raise SystemExit(f'{__file__} was run')"


def printed_by_ray(home: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> Any:
    """Run Python code in place of `ray start` and return the JSON that it prints."""
    monkeypatch.setattr(local_ray, "_command", lambda *_: [sys.executable, "-c", code])
    log = home / "logs" / "ray.log"
    ray = local_ray.LocalRay(home / "ray", log)
    ray.start()
    assert ray._guard is not None
    status = ray._guard.wait(60)
    ray.stop()
    assert status == 0, log.read_text()
    return json.loads(log.read_text())


def test_ray_imports_nothing_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, started_in = tmp_path / "home", tmp_path / "downloads"
    (home / "logs").mkdir(parents=True)
    started_in.mkdir()
    for module in ("ctypes", "queue", "service"):
        (started_in / f"{module}.py").write_text(PLANTED)
    # The subreaper imports nothing from its working folder either.
    (home / "logs" / "ctypes.py").write_text(PLANTED)
    monkeypatch.chdir(started_in)
    code = "import json, os, queue; print(json.dumps(os.getcwd()))"
    # Ray puts a driver's working folder first on the import path of its ranks.
    assert printed_by_ray(home, monkeypatch, code) == str(home / "logs")


@pytest.mark.parametrize("command", ["job", pytest.param("ingest", marks=pytest.mark.slow)])
def test_entrypoint_imports_nothing_from_the_working_folder(tmp_path: Path, command: str) -> None:
    for module in ("argparse", "workers"):
        (tmp_path / f"{module}.py").write_text(PLANTED)
    entrypoint = getattr(Entrypoints.for_local_python(), command)
    line = entrypoint.format(run="job_1-1", owner="job_1", attempt=1) + " --help"
    done = subprocess.run(
        line, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")


def test_ray_environment_has_only_settings_that_workers_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DASL_DATABASE_URL", "postgresql+psycopg://dasl:hunter2@host/dasl")
    monkeypatch.setenv("DASL_METRICS_TOKEN", "hunter2")
    monkeypatch.setenv("DASL_TOKEN", "hunter2")
    monkeypatch.setenv("DASL_CACHE_DIR", "cache")
    monkeypatch.setenv("DASL_CACHE_MAX_BYTES", "5")
    monkeypatch.setenv("DASL_SCRATCH_DIR", "scratch")
    monkeypatch.setenv("DASL_STANDBY_RANKS", "2")
    monkeypatch.setenv("RAY_ADDRESS", "http://another:8265")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    monkeypatch.chdir(tmp_path)
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    environment = printed_by_ray(tmp_path / "home", monkeypatch, code)
    assert {name: value for name, value in environment.items() if name.startswith("DASL_")} == {
        # Relative to the service's working folder, not to Ray's.
        "DASL_CACHE_DIR": str(tmp_path / "cache"),
        "DASL_CACHE_MAX_BYTES": "5",
        "DASL_SCRATCH_DIR": str(tmp_path / "scratch"),
        "DASL_STANDBY_RANKS": "2",
    }
    assert "hunter2" not in str(environment)
    assert "RAY_ADDRESS" not in environment
    assert environment["HTTPS_PROXY"] == "http://proxy"


@pytest.mark.parametrize(
    ("available_bytes", "ranks"), [(16 * 10**9, 1), (4 * 10**9, 1), (4 * 10**9 - 1, 0), (0, 0)]
)
def test_little_memory_is_left_to_jobs(available_bytes: int, ranks: int) -> None:
    assert local_ray.default_standby_ranks(available_bytes) == ranks


def test_standby_ranks_depend_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DASL_STANDBY_RANKS", raising=False)
    assert local_ray._environment("token", list(range(9)))["DASL_STANDBY_RANKS"] in ("0", "1")


def test_every_setting_that_workers_read_is_passed_on() -> None:
    def variables(*files: Path) -> set[str]:
        quoted = r"[\"'](DASL_[A-Z_]+)[\"']"
        return {name for file in files for name in re.findall(quoted, file.read_text("utf-8"))}

    read = variables(*(ROOT / "workers").rglob("*.py"), *(ROOT / "dasl_core").rglob("*.py"))
    passed_on = variables(ROOT / "service" / "dispatcher" / "context.py")
    assert {"DASL_API_URL", "DASL_CACHE_DIR"} <= read
    assert read - passed_on == set(local_ray._WORKER_VARIABLES)
