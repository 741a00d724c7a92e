"""The output folder of a run without a service: killed processes, failing disks, damaged files."""

import errno
import fcntl
import json
import math
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from dasl_core.manifest import find_damage
from dasl_core.standalone import run_dir as output
from dasl_core.standalone.run_dir import CHECKPOINTS, METRICS, RunDirectory

FILES = {"backbone.safetensors": b"w" * 3000, "training_state.json": b"{}", "model.json": b"{}"}


def add_checkpoint(folder: RunDirectory, step: int) -> Path:
    """Add a checkpoint whose files contain its step."""
    source = folder.scratch / "made"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir()
    for name, content in FILES.items():
        (source / name).write_bytes(content + str(step).encode())
    return folder.add_checkpoint(source, step)


def point(step: int) -> dict[str, Any]:
    return {"step": step, "values": {"loss": 0.5}}


def figures(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (path / METRICS).read_text().splitlines()]


@contextmanager
def full_disk(room: int) -> Iterator[None]:
    """Limit the size of every file that this process writes, in bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_attempts_of_a_run_are_counted(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "out") as folder:
        run, attempt = folder.begin_attempt(resume=False)
        assert attempt == 1
        assert folder.begin_attempt(resume=True) == (run, 2)
        assert folder.begin_attempt(resume=True) == (run, 3)
        with full_disk(0):
            assert folder.begin_attempt(resume=True) == (run, 4)
        other, attempt = folder.begin_attempt(resume=False)
        assert (other != run, attempt) == (True, 1)
        (tmp_path / "out" / "attempt.json").write_text("{")
        third, attempt = folder.begin_attempt(resume=True)
        assert (third not in (run, other), attempt) == (True, 1)


def test_run_dir_is_locked(tmp_path: Path) -> None:
    with (
        RunDirectory(tmp_path / "out"),
        pytest.raises(ValueError, match="--output: another run is writing to"),
    ):
        RunDirectory(tmp_path / "out")
    with RunDirectory(tmp_path / "out") as folder:
        assert folder.start(resume=False) is None
    assert [file.name for file in (tmp_path / "out").iterdir()] == [".dasl-run"]


def test_run_dir_keeps_hidden_files_of_others(tmp_path: Path) -> None:
    mine = [tmp_path / name for name in (".scratch/notes", ".a.partial", "checkpoints/.b.partial")]
    for file in mine:
        file.parent.mkdir(exist_ok=True)
        file.touch()
    with pytest.raises(ValueError, match="such as checkpoints"):
        RunDirectory(tmp_path)
    killed = tmp_path / ".spec.json.123.partial"
    killed.touch()
    for _ in range(2):
        with RunDirectory(tmp_path, force=True) as folder:
            assert [*folder.scratch.iterdir()] == []
            (folder.scratch / "a").touch()
    assert [file for file in (*mine, killed) if file.exists()] == mine


@pytest.mark.parametrize(("number", "fails"), [(errno.ENOLCK, False), (errno.EIO, True)])
def test_file_system_without_locks_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, fails: bool
) -> None:
    def flock(file: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    expected = pytest.raises(OSError, match="Input/output") if fails else nullcontext()
    with expected, RunDirectory(tmp_path) as folder:
        add_checkpoint(folder, 3)


def test_checkpoints_may_be_link_to_another_disk(tmp_path: Path) -> None:
    with (
        TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as other,
        RunDirectory(tmp_path) as folder,
    ):
        (tmp_path / CHECKPOINTS).symlink_to(other)
        assert folder.start(resume=False) is None
        assert find_damage(add_checkpoint(folder, 3)) is None
        assert folder.start(resume=True) == tmp_path / CHECKPOINTS / "step-000000003"


def test_dangling_link_of_checkpoints_is_refused(tmp_path: Path) -> None:
    (tmp_path / CHECKPOINTS).symlink_to(tmp_path / "not mounted")
    with RunDirectory(tmp_path) as folder:
        for resume in (True, False):
            with pytest.raises(
                ValueError, match=r"is a link to .*not mounted, which does not exist"
            ):
                folder.start(resume)


def test_non_finite_metrics_are_not_written(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as folder:
        values = {"loss": math.nan, "lr": 0.5, "gradient_norm": math.inf}
        folder.add_metrics([{"step": 1, "values": values}])
    assert json.loads(figures_text(tmp_path)) == {"step": 1, "values": {"lr": 0.5}}


def test_existing_run_is_not_overwritten(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as folder:
        folder.write_spec("{}")
        assert folder.start(resume=False) is None, "a run that died before its first step"
        folder.add_metrics([point(1)])
        with pytest.raises(ValueError, match=r"contains metrics.jsonl of a run\. Pass --resume"):
            folder.start(resume=False)
        add_checkpoint(folder, 1)
        with pytest.raises(ValueError, match=r"contains checkpoints of a run\. Pass --resume"):
            folder.start(resume=False)


def spoilt(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1] + b"x")


@pytest.mark.parametrize(
    ("name", "spoil", "damage"),
    [
        ("backbone.safetensors", spoilt, "backbone.safetensors is not as it was written"),
        ("training_state.json", lambda f: f.write_bytes(b""), "training_state.json is not as"),
        ("model.json", Path.unlink, "model.json is missing"),
        ("manifest.json", Path.unlink, "manifest.json is missing"),
        ("manifest.json", lambda f: f.write_bytes(b""), "manifest.json is damaged"),
        ("manifest.json", lambda f: f.write_text('{"sha256": [1]}'), "manifest.json is damaged"),
        (
            "manifest.json",
            lambda f: f.write_text('{"sha256": {"/dev/zero": ""}}'),
            "manifest.json is damaged",
        ),
    ],
)
def test_start_falls_back_to_previous_checkpoint(
    tmp_path: Path, name: str, spoil: Callable[[Path], Any], damage: str
) -> None:
    with RunDirectory(tmp_path) as folder:
        older, newer = add_checkpoint(folder, 3), add_checkpoint(folder, 6)
        assert folder.start(resume=True) == newer
        spoil(newer / name)
        assert folder.start(resume=True) == older
        assert damage in folder.damaged[0]
        assert find_damage(add_checkpoint(folder, 6)) is None, "its place is taken by a whole one"
        for checkpoint in (older, newer):
            spoil(checkpoint / name)
        with pytest.raises(ValueError, match=r"no checkpoint is intact: .*; "):
            folder.start(resume=True)


def test_unreadable_checkpoint_raises(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as folder:
        add_checkpoint(folder, 3)
        newer = add_checkpoint(folder, 6)
        (newer / "model.json").rename(tmp_path / "kept")
        (newer / "model.json").mkdir()
        with pytest.raises(OSError, match="Is a directory"):
            folder.start(resume=True)


def test_metrics_of_repeated_steps_are_dropped(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as folder:
        folder.add_metrics([point(step) for step in range(1, 6)])
        add_checkpoint(folder, 3)
        with (tmp_path / METRICS).open("a") as file:
            file.write('no figures\n{"step": 6, "va')
    with RunDirectory(tmp_path) as folder:
        folder.start(resume=True)
        assert figures_text(tmp_path).endswith('"va'), "a run that is refused has dropped nothing"
        folder.add_metrics([point(4)])
        folder.add_metrics([point(5)])
    assert figures(tmp_path) == [1, 2, 3, 4, 5]


def test_metrics_without_checkpoint_are_renamed(tmp_path: Path) -> None:
    """Metrics of runs that were killed before their first checkpoint, or whose checkpoints were deleted."""
    for run in range(1, 5):
        with RunDirectory(tmp_path) as folder:
            assert folder.start(resume=True) is None
            folder.add_metrics([point(run)])
    kept = [tmp_path / f"{METRICS}{suffix}" for suffix in (".old", ".old.2", ".old.3", "")]
    assert [json.loads(file.read_text())["step"] for file in kept] == [1, 2, 3, 4]


def figures_text(path: Path) -> str:
    return (path / METRICS).read_text()


def test_metrics_on_full_disk_are_written_later(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as folder:
        folder.add_metrics([point(1)])
        before = figures_text(tmp_path)
        with full_disk(len(before) + 5):
            for step in (2, 3):
                with pytest.raises(OSError, match="too large"):
                    folder.add_metrics([point(step)])
            assert figures_text(tmp_path) == before, "no half line"
            source = folder.scratch / "made"
            source.mkdir()
            with pytest.raises(OSError, match="too large"):
                folder.add_checkpoint(source, 3)  # not before the metrics of its steps
        add_checkpoint(folder, 3)
        assert figures(tmp_path) == [1, 2, 3]


def test_checkpoint_on_full_disk_leaves_nothing(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as folder:
        first = add_checkpoint(folder, 3)
        source = folder.scratch / "large"
        source.mkdir()
        (source / "model.json").write_bytes(b"{}")
        with full_disk(20), pytest.raises(OSError, match="too large"):
            folder.add_checkpoint(source, 6)  # no room for its manifest
        assert list((tmp_path / CHECKPOINTS).iterdir()) == [first]
        assert folder.start(resume=True) == first


def test_checkpoint_is_synced_before_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power failure could leave a checkpoint's name without its content."""
    done: list[str] = []
    fsync, rename, replace = os.fsync, Path.rename, Path.replace

    def synced(file: int) -> None:
        done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{file}')).name}")
        fsync(file)

    def renamed(path: Path, target: Path) -> Path:
        done.append(f"name {target.name}")
        return rename(path, target)

    def replaced(path: Path, target: Path) -> Path:
        done.append(f"name {target.name}")
        return replace(path, target)

    with RunDirectory(tmp_path) as folder:
        folder.add_metrics([point(1)])
        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(Path, "rename", renamed)
        monkeypatch.setattr(Path, "replace", replaced)
        add_checkpoint(folder, 1)
    partial, name = ".step-000000001.partial", "step-000000001"
    assert done == [
        "sync metrics.jsonl",
        f"sync {tmp_path.name}",  # which has the names of the figures and of `checkpoints`
        *(f"sync {file}" for file in sorted(FILES)),
        f"sync .manifest.json.{os.getpid()}.partial",
        "name manifest.json",
        f"sync {partial}",
        f"name {name}",
        f"sync {CHECKPOINTS}",
    ]


def test_created_folders_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(output, "sync", synced.append)
    with RunDirectory(tmp_path / "a" / "b"):
        assert sorted(synced) == [tmp_path, tmp_path / "a"]
    synced.clear()
    with RunDirectory(tmp_path / "a" / "b"):
        assert synced == []


class DiskGone(OSError):
    """An error of a disk that no longer responds."""


@pytest.mark.parametrize("operation", ["rename", "sync"])
def test_failed_replacement_keeps_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    with RunDirectory(tmp_path) as folder:
        before = add_checkpoint(folder, 3)
        source = folder.scratch / "next"
        source.mkdir()
        (source / "model.json").write_bytes(b"other")
        owner = Path if operation == "rename" else output
        original = getattr(owner, operation)

        def fails(path: Path, *target: Path) -> Any:
            taking = operation == "rename" and path.name.endswith(".partial")
            if taking or path.name == CHECKPOINTS:
                raise DiskGone
            return original(path, *target)

        monkeypatch.setattr(owner, operation, fails)
        with pytest.raises(DiskGone):
            folder.add_checkpoint(source, 3)
        monkeypatch.undo()
        assert [each.name for each in (tmp_path / CHECKPOINTS).iterdir()] == [before.name]
        assert find_damage(before) is None, "the one or the other, and whole"
        assert folder.start(resume=True) == before


class Died(BaseException):
    """Simulates the end of the process at this point."""


def test_kill_between_operations_keeps_intact_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = 0

    def mortal(operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise Died
            return operation(*arguments, **named)

        return run

    for owner, names in (
        (os, ("fsync",)),
        (Path, ("rename", "replace", "mkdir")),
        (shutil, ("rmtree", "move")),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, mortal(getattr(owner, name)))
    monkeypatch.setattr(output, "open", mortal(open), raising=False)

    for again in (3, 6):  # a new step; and one whose folder was found damaged
        died = 0
        while True:
            path = tmp_path / f"{again}-{died}"
            left = 0
            folder = RunDirectory(path)
            folder.add_metrics([point(step) for step in (1, 2, 3)])
            kept = add_checkpoint(folder, 3)
            if again == 6:
                spoilt(add_checkpoint(folder, 6) / "model.json")
            folder.add_metrics([point(step) for step in (4, 5, 6)])
            source = folder.scratch / "next"
            source.mkdir()
            (source / "model.json").write_bytes(b"{}")
            left = died + 1
            try:
                folder.add_checkpoint(source, 6)
            except Died:
                os.close(folder._lock)  # as the operating system does
            else:
                break
            left = 0
            with RunDirectory(path) as after:
                start = after.start(resume=True)
                assert start is not None
                assert start == kept or find_damage(start) is None
                assert not list((path / CHECKPOINTS).glob(".*")), "no half checkpoint stays"
                assert find_damage(add_checkpoint(after, 6)) is None
            assert figures(path) == [1, 2, 3, 4, 5, 6]
            died += 1
        assert died >= 8, "operations to die before"
