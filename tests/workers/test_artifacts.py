"""Uploads to a store that fails temporarily, and to a full disk."""

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any, BinaryIO

import pytest

from dasl_core.manifest import MANIFEST, find_damage
from service.artifacts.storage import Storage
from service.object_store import StoreError, open_store
from service.wire.checkpoints import FileEntry
from tests.support.s3_server import S3Server
from workers import artifacts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint folder to upload."""
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metrics.json").write_bytes(b"{}")
    (checkpoint / "weights").write_bytes(b"weights")
    return checkpoint


def test_failed_upload_is_retried(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    obstacle = store / "weights"
    obstacle.mkdir(parents=True)  # in the place of a file
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            obstacle.rmdir()

    monkeypatch.setattr("workers.artifacts.time.sleep", wait)
    manifest = artifacts.upload_checkpoint(folder, f"file://{store}", {})
    assert waits == [1.0, 2.0]
    back = tmp_path / "back"
    back.mkdir()
    artifacts.download(f"file://{store}", manifest, back)
    assert (back / "weights").read_bytes() == b"weights"


def test_manifest_is_written_last_and_only_of_a_whole_checkpoint(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    write = artifacts._write

    def note(source: BinaryIO, uri: str, *on_chunk: Callable[[], None]) -> tuple[int, str]:
        written.append(uri.rpartition("/")[2])
        return write(source, uri, *on_chunk)

    monkeypatch.setattr(artifacts, "_write", note)
    store = tmp_path / "store"
    entries = artifacts.upload_checkpoint(folder, f"file://{store}", {"step": 3})
    assert written == ["metrics.json", "weights", "manifest.json"]
    assert [entry.name for entry in entries] == ["metrics.json", "weights"]
    assert find_damage(store) is None
    manifest = json.loads((store / "manifest.json").read_text())
    assert (manifest["step"], manifest["size"]) == (3, {"metrics.json": 2, "weights": 7})


def test_persistent_upload_failure_raises_and_leaves_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    (store / "weights").mkdir(parents=True)
    monkeypatch.setattr("workers.artifacts.time.sleep", lambda seconds: None)
    with pytest.raises(StoreError, match="Is a directory"):
        artifacts.upload_checkpoint(folder, f"file://{store}", {})
    assert not store.exists()


def test_full_disk_raises_at_once_and_leaves_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (store / "weights").symlink_to("/dev/full")

    def wait(seconds: float) -> None:
        raise AssertionError("waiting makes no room")

    monkeypatch.setattr("workers.artifacts.time.sleep", wait)
    with pytest.raises(StoreError, match="No space left") as full:
        artifacts.upload_checkpoint(folder, f"file://{store}", {})
    assert full.value.errno == errno.ENOSPC
    assert not store.exists()


def test_only_errors_of_the_store_count_as_its_own(folder: Path, tmp_path: Path) -> None:
    uri, here = f"file://{tmp_path}/store", tmp_path / "here"
    entries = artifacts.upload_checkpoint(folder, uri, {})
    here.mkdir()
    (here / "weights").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as full:
        artifacts.download(uri, entries, here)
    assert not isinstance(full.value, StoreError), "the disk of the node is full"
    with pytest.raises(FileNotFoundError):
        artifacts.upload(here / "missing", f"{uri}/missing")
    (tmp_path / "store").rename(tmp_path / "unmounted")
    with pytest.raises(StoreError) as away:
        artifacts.fetch(f"{uri}/weights", here / "copy")
    assert away.value.errno == errno.ENOENT
    with pytest.raises(StoreError):
        artifacts.download(uri, entries, here)


def test_replaced_checkpoint_has_no_manifest_until_it_is_whole(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restored database repeats an attempt, whose process is then killed between two files."""
    store = tmp_path / "store"
    artifacts.upload_checkpoint(folder, f"file://{store}", {})
    (folder / "weights").write_bytes(b"WEIGHTS")
    upload = artifacts.upload

    class Killed(BaseException):
        """Ends the process."""

    def kill(file: Path, *arguments: Any) -> FileEntry:
        if file.name == "weights":
            raise Killed
        return upload(file, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(artifacts, "upload", kill)
        with pytest.raises(Killed):
            artifacts.upload_checkpoint(folder, f"file://{store}", {})
    assert not (store / MANIFEST).exists()
    artifacts.upload_checkpoint(folder, f"file://{store}", {})
    assert find_damage(store) is None
    assert (store / "weights").read_bytes() == b"WEIGHTS"


BIG = bytes(range(256)) * 120_000  # 30 MB: four parts of an upload


def test_files_come_back_from_the_store_whole(
    folder: Path, tmp_path: Path, store_root: str
) -> None:
    (folder / "weights").write_bytes(BIG)
    (folder / "empty").touch()
    uri = f"{store_root}/checkpoints/10"
    entries = artifacts.upload_checkpoint(folder, uri, {})
    assert artifacts.find_damage(uri, entries) is None
    assert artifacts.exists(f"{uri}/manifest.json")
    assert not artifacts.exists(f"{uri}/other")
    back = tmp_path / "back"
    back.mkdir()
    artifacts.download(uri, entries, back)
    assert {file.name: file.read_bytes() for file in back.iterdir()} == {
        "weights": BIG,
        "empty": b"",
        "metrics.json": b"{}",
    }
    system, path = open_store(uri)
    system.pipe_file(f"{path}/weights", b"other")
    assert artifacts.find_damage(uri, entries) == "the sha256 of weights is not the registered one"
    system.rm_file(f"{path}/weights")
    assert artifacts.find_damage(uri, entries) == "weights is missing"


@pytest.mark.slow
def test_upload_survives_a_restart_of_the_object_store(
    folder: Path, tmp_path: Path, s3_server: S3Server, s3_root: str
) -> None:
    (folder / "weights").write_bytes(BIG)
    uri = f"{s3_root}/checkpoints/10"
    restarts: list[Thread] = []

    def restart_once() -> None:
        if not restarts and artifacts.exists(f"{uri}/metrics.json"):  # weights is being uploaded
            s3_server.kill()
            restarts.append(Thread(target=s3_server.start))
            restarts[0].start()

    try:
        entries = artifacts.upload_checkpoint(folder, uri, {}, restart_once)
    finally:
        restarts[0].join()
    back = tmp_path / "back"
    back.mkdir()
    artifacts.download(uri, entries, back)
    assert (back / "weights").read_bytes() == BIG


UPLOADER = """
import sys
from pathlib import Path
from workers import artifacts

count = 0
def on_chunk():
    global count
    count += 1
    if count == 20:  # two parts of the file are stored
        print("in the middle", flush=True)
        sys.stdin.read()
artifacts.upload_checkpoint(Path(sys.argv[1]), sys.argv[2], {}, on_chunk)
"""


def test_killed_upload_leaves_no_object_and_no_manifest(folder: Path, s3_root: str) -> None:
    (folder / "metrics.json").unlink()
    (folder / "weights").write_bytes(BIG)
    uri = f"{s3_root}/checkpoints/10"
    with subprocess.Popen(
        [sys.executable, "-c", UPLOADER, folder, uri],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in the middle\n"
        process.kill()
    assert Storage(s3_root).file_sizes(uri) == {}
    entries = artifacts.upload_checkpoint(folder, uri, {})
    assert artifacts.find_damage(uri, entries) is None
