"""Caches of several data sets: bounded in size, and never evicted while in use."""

import os
from pathlib import Path

import pytest

from dasl_core.data.cache import MAX_BYTES, MAX_BYTES_VARIABLE, CacheFolder, hold_folder, max_bytes

SIZE = 1000


def filled(root: Path, name: str, used_at: float) -> Path:
    """Create an unlocked cache folder of a data set, last used at this time."""
    folder = CacheFolder(root / name)
    folder.reserve(folder.path / "canvases-1.partial", SIZE)
    (folder.path / "canvases-1.partial").rename(folder.path / "canvases-1.npy")
    folder.close()
    os.utime(folder.path / "in-use", (used_at, used_at))
    return folder.path


def test_only_the_account_can_read_the_images(tmp_path: Path) -> None:
    assert CacheFolder(tmp_path / "a").path.stat().st_mode & 0o077 == 0


@pytest.fixture(autouse=True)
def _bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MAX_BYTES_VARIABLE, str(3 * SIZE))


def reserve(folder: CacheFolder, size: int = SIZE) -> Path:
    file = folder.path / "canvases-2.partial"
    folder.reserve(file, size)
    assert file.stat().st_size == size
    return file


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Cache folders that fill the limit, the second of which was used least recently."""
    return [filled(tmp_path, name, at) for name, at in (("a", 200.0), ("b", 100.0), ("c", 300.0))]


def left(paths: list[Path], size: int = SIZE) -> list[bool]:
    """Reserve this size for another data set; return which cache folders are left."""
    new = CacheFolder(paths[0].parent / "new")
    reserve(new, size)
    new.close()
    return [path.exists() for path in paths]


def test_eviction_is_least_recently_used_first(paths: list[Path]) -> None:
    assert left(paths) == [True, False, True]


def test_opening_folder_counts_as_use(paths: list[Path]) -> None:
    CacheFolder(paths[1]).close()
    assert left(paths) == [False, True, True]


def test_held_folder_is_not_evicted(paths: list[Path]) -> None:
    with hold_folder(paths[1]):
        os.utime(paths[1] / "in-use", (0, 0))
        assert left(paths) == [False, True, True]
    with hold_folder(paths[0] / "in-use" / "file"):  # cannot be created
        pass


def test_folder_in_use_is_not_evicted(paths: list[Path]) -> None:
    user = CacheFolder(paths[1])
    assert left(paths, 2 * SIZE) == [False, True, False]
    user.close()


def test_too_large_file_evicts_nothing(tmp_path: Path) -> None:
    path = filled(tmp_path, "a", 100.0)
    new = CacheFolder(tmp_path / "new")
    with pytest.raises(OSError, match=MAX_BYTES_VARIABLE):
        reserve(new, 3 * SIZE + 1)
    assert (path / "canvases-1.npy").exists()
    new.close()


def test_other_files_are_never_removed(tmp_path: Path) -> None:
    path = filled(tmp_path, "a", 100.0)
    (path / "thesis.txt").write_text("all of it")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"x" * 10 * SIZE)
    new = CacheFolder(tmp_path / "new")
    reserve(new, 3 * SIZE)
    assert [file.name for file in path.iterdir()] == ["thesis.txt"]
    assert (tmp_path / "photos" / "cat.jpg").exists()
    new.close()


def test_reserved_file_counts_before_it_is_written(tmp_path: Path) -> None:
    first, second = CacheFolder(tmp_path / "first"), CacheFolder(tmp_path / "second")
    reserve(first, 2 * SIZE)
    with pytest.raises(OSError, match="in use"):
        reserve(second, 2 * SIZE)
    first.close()
    second.close()


def test_size_limit_comes_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert max_bytes() == 3 * SIZE
    monkeypatch.delenv(MAX_BYTES_VARIABLE)
    assert max_bytes() == MAX_BYTES
    monkeypatch.setenv(MAX_BYTES_VARIABLE, "100 GB")
    with pytest.raises(ValueError, match="must be a number of bytes; given '100 GB'"):
        max_bytes()
