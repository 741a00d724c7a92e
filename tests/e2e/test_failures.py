"""Killed processes, diverging runs, cancelled jobs, and invalid requests."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from dasl_core.train.serialization import load_state
from service.client import ApiError, Client, JobFailed
from service.client.errors import DatasetFailed
from service.client.sync.models import Job
from service.wire.checkpoints import CheckpointView
from tests.support.polling import PATIENCE_SECONDS, until
from tests.support.running_service import Served, spec

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray"), pytest.mark.timeout(1800)]

STEPS = 20


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """Suspend processes, so that a slow observer sees them where they are."""

    def send(number: signal.Signals) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    send(signal.SIGSTOP)
    try:
        yield
    finally:
        send(signal.SIGCONT)


def until_training(served: Served, job: Job, attempt: int) -> None:
    """Wait until the ranks of an attempt train; they stand still while the service answers."""

    def starts() -> int:
        with stopped(served.ranks()):
            events = [each for each in served.client.jobs.events(job.id) if each.type == "phase"]
        return len([each for each in events if each.data and each.data["phase"] == "training"])

    # Between two answers they start, for which they need the CPUs.
    until(lambda: starts() == attempt or None, f"the training of attempt {attempt}", pause=0.25)


@contextmanager
def mid_epoch(served: Served, job: Job, attempt: int) -> Iterator[None]:
    """Suspend the ranks of an attempt at a reported step early in an epoch that follows a checkpoint of it."""
    jobs = served.client.jobs

    def is_early() -> bool:
        assert not (now := job.refresh()).done, now
        saved = [each.step for each in jobs.checkpoints(job.id) if each.attempt == attempt]
        step = max(jobs.metrics(job.id, max_points=10_000).step, default=0)
        return bool(saved) and 0 < step - max(saved) <= STEPS // 2

    until_training(served, job, attempt)
    while True:
        # On a fast machine an epoch takes less than a second, and on a busy one an answer takes longer.
        with stopped(served.ranks()):
            if is_early():
                yield
                return
        time.sleep(0.02)  # The ranks train only here.


def weights(checkpoints: Sequence[CheckpointView]) -> dict[str, str]:
    """Return hashes of the final weights: the exported ones and those for resuming the training."""
    [final] = [checkpoint for checkpoint in checkpoints if checkpoint.final]
    return {file.name: file.sha256 for file in final.files if file.name.endswith(".safetensors")}


def test_pause_kill_and_damaged_checkpoint_do_not_change_result(
    served: Served, client: Client, main_job: Job
) -> None:
    job = client.jobs.submit(spec(served.dataset, name="disturbed"))

    with mid_epoch(served, job, attempt=1):
        assert served.exposed() == [], "somebody else could reach what trains"
        job.pause()
    until(lambda: job.refresh().status == "paused" or None, "the pause")
    until(lambda: not served.drivers(job.id) or None, "the driver's end")
    assert not served.ranks()
    _, paused = client.jobs.checkpoints(job.id)
    step = client.jobs.metrics(job.id, max_points=10_000).step[-1]
    assert (paused.step, paused.attempt) == (step, 1), "it is saved where it stopped"
    job.resume()

    with mid_epoch(served, job, attempt=2):
        damaged = client.jobs.checkpoints(job.id)[-1]
        assert (damaged.step, damaged.attempt) == (2 * STEPS, 2)
        folder = served.artifacts / "jobs" / job.id / "attempts" / "2" / "checkpoints"
        state = folder / f"step-{damaged.step:09d}" / "training_state.safetensors"
        os.truncate(state, state.stat().st_size // 2)
        os.kill(served.ranks()[0], signal.SIGKILL)

    job = job.wait(timeout=PATIENCE_SECONDS, poll=0.5)
    assert (job.attempt, job.restarts) == (3, 1)
    attempts = client.jobs.attempts(job.id)
    assert [attempt.state for attempt in attempts] == ["paused", "failed", "succeeded"]
    sources = [attempt.resume_checkpoint_id for attempt in attempts]
    assert sources == [None, paused.id, paused.id]
    events = list(client.jobs.events(job.id))
    moves = [event.data["to"] for event in events if event.type == "status" and event.data]
    pause = moves.index("pausing")
    assert moves[pause - 1 : pause + 3] == ["running", "pausing", "paused", "queued"]
    [event] = [event for event in events if event.type == "checkpoint_damaged"]
    assert f"{damaged.id} is damaged: the sha256 of training_state" in event.message
    assert f"resumes from step {paused.step} (checkpoint {paused.id})" in event.message
    every = client.jobs.checkpoints(job.id)
    checkpoints = [checkpoint for checkpoint in every if checkpoint.id != paused.id]
    # Within an epoch, that of the pause is no longer among the two newest; a slow machine pauses at its end.
    assert (len(every) > len(checkpoints)) == (paused.step % STEPS == 0)
    assert [(c.step, c.attempt) for c in checkpoints] == [
        (STEPS, 1),
        (2 * STEPS, 3),
        (3 * STEPS, 3),
    ]
    assert damaged.id not in [checkpoint.id for checkpoint in checkpoints]

    assert weights(checkpoints) == weights(client.jobs.checkpoints(main_job.id))
    # Lost steps were repeated: one value per step, equal to that of the undisturbed run.
    again = client.jobs.metrics(job.id, name="loss", max_points=10_000)
    undisturbed = client.jobs.metrics(main_job.id, name="loss", max_points=10_000)
    assert (again.step, again.values) == (undisturbed.step, undisturbed.values)


def test_diverging_run_fails_with_its_cause(served: Served, client: Client) -> None:
    train = {
        "epochs": 3,
        "batch_size": 8,
        "optimizer": {"name": "sgd", "lr": 1e4, "weight_decay": 100},
    }
    job = client.jobs.submit(spec(served.dataset, train=train, resources={"workers": 1}))
    with pytest.raises(JobFailed, match=r"train\.optimizer\.lr"):
        job.wait(timeout=PATIENCE_SECONDS, poll=0.5)

    def job_with_log() -> Job | None:
        # The end of the log arrives after the driver's report, which it sends before it ends.
        now = job.refresh()
        return now if now.error is not None and now.error.log_lines() else None

    job = until(job_with_log, "the log's end")
    assert job.error is not None
    assert (job.status, job.attempt, job.restarts) == ("failed", 1, 0)
    assert job.error.type == "DivergedError"
    assert any("train.optimizer.lr" in line for line in job.error.log_lines())
    assert len(job.error.log_lines()) <= 50


def test_clone_continues_with_changed_settings_until_cancelled(
    served: Served, client: Client, main_job: Job, tmp_path: Path
) -> None:
    changes = {
        "train": {
            "epochs": 100_000,
            "checkpoint_every_epochs": 100_000,
            "optimizer": {"name": "adamw", "lr": 0.0001},
        },
        "evaluate": {"every_epochs": 50_000},
        "resources": {"workers": 1},
    }
    job = client.jobs.clone(main_job.id, changes)
    [*_, newest] = client.jobs.checkpoints(main_job.id)
    assert job.start_checkpoint_id == newest.id
    until(lambda: client.jobs.metrics(job.id).step or None, "the first step")
    assert job.cancel().status in ("running", "cancelling")
    job = until(lambda: ((now := job.refresh()).done and now) or None, "the end")
    assert (job.status, job.restarts, job.error) == ("cancelled", 0, None)
    moves = [e.data["to"] for e in client.jobs.events(job.id) if e.type == "status" and e.data]
    assert moves[-2:] == ["cancelling", "cancelled"]

    steps = client.jobs.metrics(job.id, max_points=1_000_000).step
    assert steps == list(range(newest.step + 1, steps[-1] + 1))
    assert job.progress is not None
    assert job.progress.total_steps == 100_000 * STEPS
    [attempt] = client.jobs.attempts(job.id)
    assert attempt.state == "cancelled"
    # The checkpoint contains every trained step, and training could resume from it.
    [checkpoint] = client.jobs.checkpoints(job.id)
    assert (checkpoint.final, checkpoint.step) == (False, steps[-1])
    client.checkpoints.download(checkpoint.id, tmp_path)
    assert load_state(tmp_path)["progress"]["step"] == checkpoint.step
    until(lambda: not served.drivers(job.id) or None, "the driver's end")


def test_death_of_driver_or_controller_ends_ranks_and_frees_their_cpus(
    served: Served, client: Client
) -> None:
    train = {"epochs": 100_000, "batch_size": 8, "checkpoint_every_epochs": 100_000}
    evaluate = {"every_epochs": 50_000}
    resources = {"workers": 1, "max_restarts": 0}
    job = client.jobs.submit(
        spec(served.dataset, train=train, evaluate=evaluate, resources=resources)
    )
    until_training(served, job, attempt=1)
    os.kill(served.drivers(job.id)[0], signal.SIGKILL)

    until_training(served, job, attempt=2)
    [controller] = served.controllers()
    os.kill(controller, signal.SIGKILL)
    job = until(lambda: ((now := job.refresh()).done and now) or None, "the end")
    # Only the death of the driver is one of the infrastructure.
    assert (job.status, job.restarts) == ("failed", 0)
    attempts = client.jobs.attempts(job.id)
    assert [attempt.state for attempt in attempts] == ["failed", "failed"]
    assert attempts[0].error is not None
    assert "SIGKILL" in attempts[0].error.message
    assert attempts[1].error is not None
    assert attempts[1].error.type == "controller-died"
    until(lambda: not (served.ranks() or served.drivers(job.id)) or None, "the processes' end")
    until(lambda: client.cluster().used_cpus == 0 or None, "free CPUs")


def test_folders_without_usable_images_are_refused(client: Client, tmp_path: Path) -> None:
    with pytest.raises(ApiError, match="does not exist on the server") as refused:
        client.datasets.add(tmp_path / "nowhere", "nowhere")
    assert refused.value.status == 422
    assert refused.value.errors[0].field == "uri"

    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "notes.txt").write_text("No images here.\n")
    (folder / "broken.png").touch()
    dataset = client.datasets.add(folder, "notes")
    with pytest.raises(DatasetFailed, match=r"holds no usable image; 1 skipped.*broken\.png"):
        dataset.wait(timeout=PATIENCE_SECONDS)
    with pytest.raises(ApiError, match="notes"):
        client.jobs.submit(spec("notes"))


def test_batch_larger_than_dataset_is_refused(served: Served, client: Client) -> None:
    with pytest.raises(ApiError, match="165 images") as refused:
        client.jobs.submit(spec(served.dataset, train={"batch_size": 512}))
    assert refused.value.status == 422
    assert [error.field for error in refused.value.errors] == ["train.batch_size"]


def test_job_larger_than_cluster_is_refused(served: Served, client: Client) -> None:
    workers = int(client.cluster().total_cpus) + 1
    train = {"epochs": 1, "batch_size": 2 * workers}
    message = f"{workers} workers with 1 CPU each: the cluster has room for {workers - 1}"
    with pytest.raises(ApiError, match=message) as refused:
        client.jobs.submit(spec(served.dataset, train=train, resources={"workers": workers}))
    assert refused.value.status == 422
    assert [error.field for error in refused.value.errors] == ["resources.workers"]
