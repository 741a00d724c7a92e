"""Temporary files of submissions: one download for all ranks of a node, and nothing left by killed processes."""

import fcntl
import hashlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dasl_core.locks import IN_USE, HeldFolder
from dasl_core.train.serialization import STATE_FILES
from service.wire.checkpoints import FileEntry
from workers import artifacts
from workers.scratch import SubmissionFolder, scratch_root


def killed(work: Callable[[], object]) -> None:
    """Run a function in a process that is killed after it."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def leave(root: Path, submission: str) -> Path:
    """Leave the folder of a killed process, with a file in it."""

    def work() -> None:
        folder = SubmissionFolder(root, submission).__enter__()
        (folder.path / "rank").mkdir()
        (folder.path / "rank" / "weights").write_bytes(b"many")

    killed(work)
    (left,) = root.glob(f"*{submission}")
    assert (left / "rank" / "weights").exists()
    return left


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A checkpoint in the store."""
    store = tmp_path / "store"
    store.mkdir()
    for name in ("backbone.onnx", *STATE_FILES):
        (store / name).write_bytes(name.encode() * 100)
    return store


def entries(store: Path) -> list[FileEntry]:
    return [
        FileEntry(
            name=file.name,
            size=file.stat().st_size,
            sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        )
        for file in sorted(store.iterdir())
    ]


def test_folder_of_killed_process_is_removed_at_next_start(tmp_path: Path) -> None:
    left = leave(tmp_path, "job_1-1")
    with SubmissionFolder(tmp_path, "job_1-2") as folder:
        assert not left.exists()
        assert [*tmp_path.iterdir()] == [folder.path]
    assert [*tmp_path.iterdir()] == []


def test_folder_in_use_is_kept(tmp_path: Path) -> None:
    with SubmissionFolder(tmp_path, "job_1-1") as first:
        (first.path / "weights").touch()
        with SubmissionFolder(tmp_path, "job_2-1"), SubmissionFolder(tmp_path, "job_1-1"):
            pass  # another job, and another rank
        assert (first.path / "weights").exists()
    assert [*tmp_path.iterdir()] == []


def test_other_files_below_root_are_kept(tmp_path: Path) -> None:
    """The root may be a folder such as /tmp."""
    (tmp_path / "dasl-photos").mkdir()
    (tmp_path / "thesis").mkdir()
    with SubmissionFolder(tmp_path, "job_1-1"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dasl-photos", "thesis"]


def test_ranks_share_one_download(tmp_path: Path, store: Path) -> None:
    files, chunks = entries(store), []
    with (
        SubmissionFolder(tmp_path / "scratch", "job_1-2") as first,
        SubmissionFolder(tmp_path / "scratch", "job_1-2") as second,
    ):
        folder = first.download(f"file://{store}", files, lambda: chunks.append(1))
        assert len(chunks) == 3
        kept = {file.name: file.read_bytes() for file in store.iterdir()}
        shutil.rmtree(store)
        assert second.download(f"file://{store}", files) == folder
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == kept


def test_partial_download_of_killed_rank_is_not_taken_for_whole(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "CHUNK", 64)
    files, uri = entries(store), f"file://{store}"
    chunks = 0

    def kill_in_second_file() -> None:
        nonlocal chunks
        chunks += 1
        if chunks == files[0].size // 64 + 3:
            os.kill(os.getpid(), signal.SIGKILL)

    with SubmissionFolder(tmp_path / "scratch", "job_1-2") as other:
        killed(
            lambda: (
                SubmissionFolder(tmp_path / "scratch", "job_1-2")
                .__enter__()
                .download(uri, files, kill_in_second_file)
            )
        )
        assert len([*(other.path / "resume.partial").iterdir()]) == 2
        assert not (other.path / "resume").exists()
        folder = other.download(uri, files)
        for file in store.iterdir():
            assert (folder / file.name).read_bytes() == file.read_bytes()


def test_damaged_download_is_refused_by_every_rank(tmp_path: Path, store: Path) -> None:
    files = entries(store)
    (store / files[-1].name).write_bytes(b"other")
    for _ in range(2):
        with (
            SubmissionFolder(tmp_path / "scratch", "job_1-2") as folder,
            pytest.raises(OSError, match="is damaged"),
        ):
            folder.download(f"file://{store}", files)


def test_root_is_below_cache_unless_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DASL_CACHE_DIR", "/fast/cache")
    monkeypatch.delenv("DASL_SCRATCH_DIR", raising=False)
    assert scratch_root() == Path("/fast/cache/scratch")
    monkeypatch.setenv("DASL_SCRATCH_DIR", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Set DASL_SCRATCH_DIR to a folder on a local disk"):
        SubmissionFolder(scratch_root(), "job_1-1").__enter__()


def test_file_with_a_shared_lock_is_open_for_reading(tmp_path: Path) -> None:
    """NFS, where locks are those of `lockf`, refuses it otherwise."""
    held = HeldFolder(tmp_path / "held")
    fcntl.lockf(held._use, fcntl.LOCK_SH | fcntl.LOCK_NB)
    held.close()


def test_unreadable_folder_of_another_user_is_skipped() -> None:
    """In a process that is not root's, which may read everything."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o777)
        private = root / "dasl-private"
        private.mkdir(0o700)
        (private / IN_USE).touch()
        private.chmod(0)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                if os.getuid() == 0:
                    os.setgroups([])
                    os.setgid(65534)
                    os.setuid(65534)
                with SubmissionFolder(root, "mine") as folder:
                    code = 0 if folder.path.is_dir() else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        private.chmod(0o700)
