"""A full disk when a checkpoint is written: the run continues, and its history is kept."""

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

from dasl_core.data.index import DatasetIndex
from dasl_core.train import checkpointing
from dasl_core.train.checkpointing import CheckpointFailed
from dasl_core.train.serialization import StateCopy
from dasl_core.train.trainer import Trainer
from dasl_core.vocabulary import Desired
from tests.support.gloo_pool import GlooPool
from tests.support.training_world import Recorder, families_first, resolved, run, skip_plots

pytestmark = pytest.mark.usefixtures("without_plots")
STEPS, TOTAL = 3, 9  # of `training_world.settings` on `pictures`: 24 images, batch 8, 3 epochs


class FullDisk(Recorder):
    """A reporter without space for the checkpoints of some steps."""

    def __init__(self, folder: Path, *full: int, stop_at: int | None = None) -> None:
        super().__init__(folder, lambda started: "pause" if started == stop_at else "run")
        self.full = full

    def checkpoint(self, folder: Path, step: int, *arguments: Any) -> None:
        if step in self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().checkpoint(folder, step, *arguments)

    @property
    def failures(self) -> list[str]:
        return [message for type, message, _ in self.events if type == "checkpoint_failed"]


def test_failed_save_is_reported_and_retried(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    undisturbed, disk = Recorder(tmp_path / "undisturbed"), FullDisk(tmp_path / "full", 3)
    spec = resolved(pictures)
    run(spec, pictures, cache, undisturbed)
    assert run(spec, pictures, cache, disk) == "succeeded"
    assert [step for step, _, _ in disk.checkpoints] == [6, 9]
    [message] = disk.failures
    assert message.startswith("The checkpoint of step 3 could not be written")
    assert "No space left on device" in message
    assert disk.curve() == undisturbed.curve()


def test_full_scratch_is_reported_and_retried(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = StateCopy.write, []

    def full_once(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*arguments)

    monkeypatch.setattr(StateCopy, "write", full_once)
    reporter = FullDisk(tmp_path)
    assert run(resolved(pictures), pictures, cache, reporter) == "succeeded"
    assert len(reporter.failures) == 1


@pytest.mark.parametrize(("full", "stop_at"), [(TOTAL, None), (4, 4)], ids=["end", "pause"])
def test_failed_required_save_fails_run(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, full: int, stop_at: int | None
) -> None:
    reporter = FullDisk(tmp_path, full, stop_at=stop_at)
    with pytest.raises(CheckpointFailed, match="No space left") as failed:
        run(resolved(pictures), pictures, cache, reporter)
    assert failed.value.cause is not None
    assert failed.value.cause.errno == errno.ENOSPC
    assert [step for step, _, _ in reporter.checkpoints] == [s for s in (3, 6) if s < full]


def test_pause_after_failed_save_saves_again(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    reporter = FullDisk(tmp_path, 3, stop_at=3)
    with pytest.raises(OSError, match="No space left"):
        run(resolved(pictures), pictures, cache, reporter)


def with_a_full_disk(root: str) -> list[int]:
    folder = Path(root)
    index = DatasetIndex.load(folder / "index")
    import torch.distributed as dist

    reporter = FullDisk(folder / "out", 3) if dist.get_rank() == 0 else None
    spec = resolved(index, resources={"workers": dist.get_world_size()})
    with pytest.MonkeyPatch.context() as patch:
        skip_plots(patch)
        assert run(spec, index, folder / "cache", reporter) == "succeeded"
    return [] if reporter is None else [step for step, _, _ in reporter.checkpoints]


def test_failed_save_is_known_on_all_ranks(
    pool: GlooPool, pictures: DatasetIndex, tmp_path: Path
) -> None:
    pictures.save(tmp_path / "index")
    assert pool.call(2, with_a_full_disk, str(tmp_path)) == [[6, 9], []]


class SlowStore(Recorder):
    """A reporter whose store takes a checkpoint only once `steps` more steps have started, or none may follow."""

    def __init__(self, folder: Path, steps: int) -> None:
        super().__init__(folder)
        self.steps, self.in_flight, self.most_in_flight = steps, 0, 0
        self.started = threading.Condition()
        self.training = threading.current_thread()
        self.in_background: list[bool] = []

    def desired(self) -> Desired:
        answer = super().desired()
        with self.started:
            self.started.notify_all()
        return answer

    def checkpoint(self, folder: Path, step: int, *arguments: Any) -> None:
        self.in_background.append(threading.current_thread() is not self.training)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        if self.in_background[-1]:
            with self.started:
                enough = step + self.steps
                assert self.started.wait_for(lambda: self._started_steps > enough, timeout=60)
        self.in_flight -= 1
        super().checkpoint(folder, step, *arguments)


def contents(reporter: Recorder) -> list[dict[str, bytes]]:
    return [
        {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
        for _, folder, _ in reporter.checkpoints
    ]


@pytest.mark.parametrize("method", families_first(["simclr", "byol", "proxy_anchor"], ["byol"]))
def test_files_written_beside_the_training_are_those_written_before_it_continues(
    pictures: DatasetIndex,
    cache: Path,
    tmp_path: Path,
    method: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store waits until two further steps have changed the weights."""
    spec = resolved(pictures, method={"name": method})
    beside, before = SlowStore(tmp_path / "beside", 2), SlowStore(tmp_path / "before", 2)
    run(spec, pictures, cache, beside)
    assert beside.in_background == [True, True, False]
    monkeypatch.setattr(checkpointing, "available_memory", lambda: 0)
    run(spec, pictures, cache, before)
    assert before.in_background == [False, False, False]
    assert contents(beside) == contents(before)
    assert beside.curve() == before.curve()
    assert beside.most_in_flight == 1


class BrokenStore(Recorder):
    """A reporter with an error that no full disk explains."""

    def checkpoint(self, *arguments: Any) -> None:
        raise KeyError("a defect")


def fail_after_save(patch: pytest.MonkeyPatch) -> threading.Event:
    """Let the second step after the first save fail; return an event that is set just before."""
    released, step = threading.Event(), Trainer.step

    def fail(trainer: Trainer, batch: Any) -> None:
        if trainer.run.progress.step == STEPS + 1:
            released.set()
            raise ArithmeticError("diverged")
        step(trainer, batch)

    patch.setattr(Trainer, "step", fail)
    return released


def test_failing_run_waits_for_the_checkpoint_that_is_being_written(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process ends afterwards, and the checkpoint must not be lost."""
    reporter = Recorder(tmp_path)
    released, store = fail_after_save(monkeypatch), reporter.checkpoint

    def slow(*arguments: Any) -> None:
        assert released.wait(60)
        store(*arguments)

    monkeypatch.setattr(reporter, "checkpoint", slow)
    with pytest.raises(ArithmeticError):
        run(resolved(pictures), pictures, cache, reporter)
    assert [step for step, _, _ in reporter.checkpoints] == [STEPS]


def test_error_beside_a_failing_run_is_logged(
    pictures: DatasetIndex,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The run raises its own error, and the other one would be lost."""
    released = fail_after_save(monkeypatch)

    class LateBrokenStore(BrokenStore):
        def checkpoint(self, *arguments: Any) -> None:
            assert released.wait(60)
            super().checkpoint(*arguments)

    with pytest.raises(ArithmeticError):
        run(resolved(pictures), pictures, cache, LateBrokenStore(tmp_path))
    [record] = [each for each in caplog.records if "failed, too" in each.getMessage()]
    assert "a defect" in str(record.exc_info)


def test_unexpected_error_beside_the_training_is_raised_once(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(KeyError, match="a defect"):
        run(resolved(pictures), pictures, cache, BrokenStore(tmp_path))
    assert "failed, too" not in caplog.text


def wait_for_writes(patch: pytest.MonkeyPatch) -> list[int]:
    """Let each step wait until the save before it has ended; return the list of the steps run."""
    step, steps = Trainer.step, []

    def waiting(trainer: Trainer, batch: Any) -> None:
        write = trainer.checkpointer._write
        if write is not None:
            write.exception(60)
        step(trainer, batch)
        steps.append(trainer.run.progress.step)

    patch.setattr(Trainer, "step", waiting)
    return steps


def test_unexpected_error_beside_the_training_ends_the_run_before_its_next_step(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at the next save, which may be hours away."""
    steps = wait_for_writes(monkeypatch)
    with pytest.raises(KeyError, match="a defect"):
        run(resolved(pictures), pictures, cache, BrokenStore(tmp_path))
    assert steps == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("full", "settings", "saved"),
    [
        pytest.param(
            (4,), {"every_minutes": 5, "every_epochs": 3}, [5, 8, 9], marks=pytest.mark.slow
        ),
        ((4, 5), {"every_minutes": 5, "every_epochs": 3}, [7, 9]),
        ((3,), {"every_minutes": None, "every_epochs": 1}, [4, 6, 9]),
    ],
    ids=["one", "two, the pause grows", "only by epochs"],
)
@pytest.mark.parametrize("memory", [0, 1 << 40], ids=["training waits", "beside the training"])
def test_save_after_a_failed_one_comes_soon(
    full: tuple[int, ...],
    settings: dict[str, int | None],
    saved: list[int],
    memory: int,
    pictures: DatasetIndex,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store that was away for a moment must not double the work at risk. A step takes 100 s by this clock."""
    monkeypatch.setattr(checkpointing, "available_memory", lambda: memory)
    steps = wait_for_writes(monkeypatch)
    monkeypatch.setattr(checkpointing, "monotonic", lambda: 100.0 * len(steps))
    spec = resolved(
        pictures,
        checkpoints={"every_minutes": settings["every_minutes"]},
        train={"checkpoint_every_epochs": settings["every_epochs"]},
    )
    disk = FullDisk(tmp_path, *full)
    assert run(spec, pictures, cache, disk) == "succeeded"
    assert len(disk.failures) == len(full)
    assert [step for step, _, _ in disk.checkpoints] == saved
