"""Where Ray's files go."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ray.dashboard.subprocesses.module import SubprocessModule
from ray.dashboard.utils import get_all_modules

from service import local_ray


def test_the_longest_folder_leaves_room_for_every_socket_of_ray() -> None:
    modules = [module.__name__ for module in get_all_modules(SubprocessModule)]
    assert "MetricsHead" in modules
    names = ["plasma_store", "raylet", *(f"dash_{module}" for module in modules)]
    longest_pid = 2**22
    session = f"session_2026-11-21_08-30-37_786744_{longest_pid}"
    longest = max(len(f"/{session}/sockets/{name}") for name in names)
    assert local_ray._LONGEST_FOLDER + longest == 107
    page = Path(__file__).parents[2] / "docs" / "operations.md"
    assert f"more than {local_ray._LONGEST_FOLDER} bytes" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["with space", "höhe"])
def test_a_folder_that_ray_refuses_is_a_link_to_a_plain_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(local_ray, "_LONGEST_FOLDER", 4096)
    assert local_ray._empty_folder(tmp_path / "plain") == tmp_path / "plain"
    used = local_ray._empty_folder(tmp_path / name)
    assert used.is_dir()
    assert str(used).isascii()
    assert " " not in str(used)
    assert (tmp_path / name).readlink() == used
    local_ray._remove_link(tmp_path / name)
    assert not used.exists()


def test_an_installation_below_a_space_is_refused_in_a_sentence(tmp_path: Path) -> None:
    moved = "import sys; sys.executable = '/opt/my tools/bin/python'"
    code = f"{moved}; from service.serve import main; sys.exit(main())"
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


def test_a_longer_folder_is_a_link_to_a_short_one(tmp_path: Path) -> None:
    folder = tmp_path / ("r" * local_ray._LONGEST_FOLDER)
    used = local_ray._empty_folder(folder)
    assert used.is_dir()
    assert len(str(used)) <= local_ray._LONGEST_FOLDER
    assert folder.readlink() == used
    local_ray._remove_link(folder)
    assert not folder.is_symlink()
    assert not used.exists()
