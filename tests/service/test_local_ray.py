"""Where Ray's files go."""

from __future__ import annotations

from pathlib import Path

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


def test_a_longer_folder_is_a_link_to_a_short_one(tmp_path: Path) -> None:
    folder = tmp_path / ("r" * local_ray._LONGEST_FOLDER)
    used = local_ray._empty_folder(folder)
    assert used.is_dir()
    assert len(str(used)) <= local_ray._LONGEST_FOLDER
    assert folder.readlink() == used
    local_ray._remove_link(folder)
    assert not folder.is_symlink()
    assert not used.exists()
