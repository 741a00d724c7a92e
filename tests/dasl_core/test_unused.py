"""Decoded images that no run has used for long are removed, and nothing else."""

import fcntl
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dasl_core.data import shards, unused
from dasl_core.data.cache import MAX_BYTES_VARIABLE, CacheFolder
from dasl_core.data.shard_store import USED, VARIABLE, FolderStore, shared_sets, shared_store
from dasl_core.data.unused import KEEP_VARIABLE, begin_removal, keep_seconds, remove_unused
from tests.support.small_shards import IMAGES, make_small, opened
from tests.support.training_world import image_folder, ingest

OLD, NEW = "0" * 32, "1" * 32
HOUR = 3600.0


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def age(path: Path, hours: float) -> None:
    at = time.time() - hours * HOUR
    os.utime(path, (at, at))


def write_set(folder: CacheFolder, name: str, hours: float) -> list[Path]:
    """Write the files of a set that was last used some hours ago."""
    ends = ("-00000.shard", ".manifest", ".lock", ".npy", ".used")
    files = [folder.path / f"canvases-{name}{end}" for end in ends]
    for file in files:
        file.write_bytes(b"x")
    age(files[-1], hours)
    return files


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def test_old_set_goes_and_recent_held_and_other_files_stay(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path / "data")
    old = write_set(folder, OLD, 3)
    recent = write_set(folder, NEW, 0)
    others = [folder.path / "canvases-of-mine.txt", folder.path / "index.safetensors"]
    for file in others:
        file.write_bytes(b"x")
        age(file, 9)
    folder.use(OLD)
    age(old[-1], 3)
    remove_unused(tmp_path, keep=2 * HOUR)
    assert {file.name for file in (*old, *recent, *others)} <= names(folder.path)
    folder.close()  # it was in use until now
    remove_unused(tmp_path, keep=2 * HOUR)
    assert old[0].exists()
    age(old[-1], 3)
    remove_unused(tmp_path, keep=2 * HOUR)
    assert names(folder.path) == {file.name for file in (*recent, *others)} | {"in-use"}


def test_set_without_a_mark_has_the_age_of_its_newest_file(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path / "data")
    files = write_set(folder, OLD, 0)[:-1]
    (folder.path / f"canvases-{OLD}.used").unlink()
    for file in files[1:]:
        age(file, 3)
    remove_unused(tmp_path, keep=2 * HOUR)
    assert files[1].exists()
    age(files[0], 3)
    remove_unused(tmp_path, keep=2 * HOUR)
    assert names(folder.path) == {"in-use"}
    folder.close()


def test_folder_of_a_data_set_goes_as_a_whole(tmp_path: Path) -> None:
    folder, held = CacheFolder(tmp_path / "data"), CacheFolder(tmp_path / "held")
    for each in (folder, held):
        write_set(each, NEW, 0)
        (each.path / "index.safetensors").write_bytes(b"x")
    folder.close()
    for each in (folder, held):
        age(each.path / "in-use", 3)
    remove_unused(tmp_path, keep=2 * HOUR)
    assert names(tmp_path) == {"held"}
    assert (held.path / "index.safetensors").exists()
    held.close()


class Now:
    """In place of a thread: runs at once."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], **_: object) -> None:
        self.start = partial(target, *args)


def test_removal_begins_once_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[Path] = []
    monkeypatch.setattr(unused, "remove_unused", lambda root, keep: rounds.append(root))
    monkeypatch.setattr("threading.Thread", Now)
    begin_removal(tmp_path)
    begin_removal(tmp_path)
    assert rounds == [tmp_path]
    age(tmp_path / ".checked", 25)
    begin_removal(tmp_path)
    begin_removal(tmp_path)
    assert rounds == [tmp_path] * 2


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "a month"])
def test_days_are_a_positive_number(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEEP_VARIABLE, value)
    with pytest.raises(ValueError, match="DASL_KEEP_CACHE_DAYS must be a positive number of days"):
        keep_seconds()


def test_only_what_killed_writers_left_is_removed_from_a_shared_folder(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    left, fresh, written = (tmp_path / f".00000.shard.{name}.partial" for name in "abc")
    for file in (left, fresh, written):
        file.write_bytes(b"x")
    for file in (left, written):
        age(file, 2)
    with open(written, "ab") as writer:  # one that was suspended
        fcntl.flock(writer, fcntl.LOCK_EX)
        store.remove_abandoned()
        assert names(tmp_path) == {fresh.name, written.name}
    store.remove_abandoned()
    assert names(tmp_path) == {fresh.name}


@pytest.mark.parametrize("first", ["sizes", "write"])
def test_only_the_account_can_read_shared_images(first: str, tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "shared" / "set")
    before = os.umask(0o022)
    try:
        if first == "sizes":
            store.sizes()
        store.write("00000.shard", b"pixels")
    finally:
        os.umask(before)
    assert (tmp_path / "shared" / "set").stat().st_mode & 0o777 == 0o700


def test_writer_holds_its_lock_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderStore(tmp_path / "set")
    replace = Path.replace

    def check_and_replace(partial: Path, target: Path) -> Path:
        age(partial, 2)
        store.remove_abandoned()
        return replace(partial, target)

    monkeypatch.setattr(Path, "replace", check_and_replace)
    store.write("manifest.json", b"[]")
    assert store.sizes() == {"manifest.json": 2}
    assert names(tmp_path / "set") == {"manifest.json"}


def test_reader_renews_the_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = ingest(image_folder(tmp_path / "pictures"))
    make_small(monkeypatch)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "shared"))
    monkeypatch.setenv(MAX_BYTES_VARIABLE, "0")
    with opened(pictures, tmp_path / "cache" / "data") as canvases:
        [name] = shared_sets()
        store = shared_store(name)
        assert store is not None
        store.write(USED, b"1")
        canvases.read(range(IMAGES))
        assert store.read(USED, 0, 9) == b"1"
        monkeypatch.setattr(shards, "MARK_SECONDS", 0.0)
        canvases.read([0])
        assert abs(float(store.read(USED, 0, 20)) - time.time()) < 60
