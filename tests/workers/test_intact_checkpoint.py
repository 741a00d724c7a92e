"""A driver resumes from the newest checkpoint whose files are undamaged."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dasl_core.spec import DatasetFacts, JobSpec, resolve
from service.client import StaleAttempt
from service.client.worker import WorkerClient
from service.object_store import StoreError
from service.protocol import AttemptStart
from tests.workers.test_reporter import STALE, Home
from workers import driver
from workers.artifacts import upload_checkpoint
from workers.driver import report_ranks_starting, with_intact_checkpoint

FACTS = DatasetFacts(num_images=100, num_classes=2, median_size=32)


@pytest.fixture
def home() -> Iterator[Home]:
    api = Home()
    api.up()
    yield api
    api.down()


@pytest.fixture
def client(home: Home) -> Iterator[WorkerClient]:
    client = WorkerClient(home.url, "token", "job_1-2-00000000", patience=10)
    yield client
    client.close()


class Store:
    """Checkpoints of a job, and the API's answers about them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "index").touch()
        self.resumes = {step: self._checkpoint(step) for step in (1, 2)}

    def _checkpoint(self, step: int, branch: bool = False) -> dict[str, Any]:
        written = self.folder / f"written-{step}"
        written.mkdir()
        for name in ("model", "state"):
            (written / name).write_text(f"{name} of step {step}")
        uri = f"file://{self.folder}/{step}"
        files = [entry.model_dump() for entry in upload_checkpoint(written, uri, {})]
        return {
            "checkpoint_id": f"ckpt_{step}",
            "uri": uri,
            "files": files,
            "step": step,
            "branch": branch,
        }

    def start(self, step: int | None, branch: bool = False) -> dict[str, Any]:
        resume = None if step is None else self.resumes[step] | {"branch": branch}
        dataset = {
            "id": "ds_1",
            "name": "birds",
            "uri": "/birds",
            "version": 1,
            "index_uri": f"file://{self.folder}/index",
            "facts": FACTS.model_dump(),
        }
        return {
            "spec": resolve(JobSpec(dataset="birds"), FACTS).model_dump(mode="json"),
            "dataset": dataset,
            "evaluate_dataset": None,
            "dataset_roots": [],
            "resume": resume,
            "artifacts_uri": f"file://{self.folder}/own",
            "heartbeat_seconds": 1.0,
        }


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def sound(client: WorkerClient, answer: dict[str, Any]) -> int | None:
    """Return the step of the checkpoint from which the attempt resumes."""
    start = with_intact_checkpoint(client, AttemptStart.model_validate(answer))
    return None if start.resume is None else start.resume.step


@pytest.mark.parametrize("refusal", [None, (500, {}), (422, {"detail": "not like this"})])
def test_start_of_ranks_is_announced_best_effort(
    client: WorkerClient,
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
    refusal: tuple[int, dict[str, Any]] | None,
) -> None:
    monkeypatch.setattr(driver, "BEST_EFFORT_SECONDS", 0.1)
    if refusal is not None:
        home.refusals["events"] = refusal
    report_ranks_starting(client, 2)
    event = {
        "type": "phase",
        "message": "Starting 2 ranks; loading PyTorch takes some seconds",
        "data": {"phase": "ranks"},
    }
    assert home.reports == ([("events", event)] if refusal is None else [])
    home.down()
    report_ranks_starting(client, 1)
    home.up()
    home.refusals["events"] = STALE
    with pytest.raises(StaleAttempt):
        report_ranks_starting(client, 1)


def test_undamaged_checkpoint_is_used(client: WorkerClient, home: Home, store: Store) -> None:
    assert sound(client, store.start(2)) == 2
    assert sound(client, store.start(None)) is None
    assert home.reports == []


@pytest.mark.parametrize("how", ["changed", "cut", "missing"])
def test_damaged_checkpoint_is_reported_and_previous_one_used(
    client: WorkerClient, home: Home, store: Store, how: str
) -> None:
    file = store.folder / "2" / "state"
    if how == "missing":
        file.unlink()
    else:
        file.write_text("state of step 3" if how == "changed" else "state")
    home.answers["damaged-checkpoint"] = store.start(1)
    assert sound(client, store.start(2)) == 1
    damage = {
        "changed": "the sha256 of state is not the registered one",
        "cut": "the sha256 of state is not the registered one",
        "missing": "state is missing",
    }[how]
    report = {"checkpoint_id": "ckpt_2", "damage": damage}
    assert home.reports == [("damaged-checkpoint", report)]


def test_clone_of_damaged_checkpoint_fails(client: WorkerClient, home: Home, store: Store) -> None:
    (store.folder / "2" / "model").unlink()
    home.answers["damaged-checkpoint"] = store.start(2, branch=True)
    with pytest.raises(ValueError, match="ckpt_2 that this job was cloned from is damaged"):
        sound(client, store.start(2, branch=True))
    assert len(home.reports) == 1, "the damage is reported all the same"


def test_missing_store_does_not_mark_checkpoint_damaged(
    client: WorkerClient, home: Home, store: Store
) -> None:
    away = store.folder.rename(store.folder.with_name("unmounted"))
    store.folder.mkdir()
    with pytest.raises(StoreError, match="check that the artifact store is mounted"):
        sound(client, store.start(2))
    assert home.reports == []
    store.folder.rmdir()
    away.rename(store.folder)
    assert sound(client, store.start(2)) == 2
