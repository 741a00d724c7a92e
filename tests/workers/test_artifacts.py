"""Uploads to a store that fails temporarily, and to a full disk."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from dasl_core.manifest import MANIFEST, damage_of
from service.protocol import FileEntry
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
    assert damage_of(store) is None
    manifest = json.loads((store / "manifest.json").read_text())
    assert (manifest["step"], manifest["size"]) == (3, {"metrics.json": 2, "weights": 7})


def test_persistent_upload_failure_raises_and_leaves_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    (store / "weights").mkdir(parents=True)
    monkeypatch.setattr("workers.artifacts.time.sleep", lambda seconds: None)
    with pytest.raises(IsADirectoryError):
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
    with pytest.raises(OSError, match="No space left") as full:
        artifacts.upload_checkpoint(folder, f"file://{store}", {})
    assert full.value.errno == errno.ENOSPC
    assert not store.exists()


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
    assert damage_of(store) is None
    assert (store / "weights").read_bytes() == b"WEIGHTS"
