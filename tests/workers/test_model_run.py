"""Runs of finished models and searches, on a real artifact store, with the reports that the API gets."""

import base64
import errno
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dasl_core.data.index import DatasetIndex
from dasl_core.embedding import files, read_parts
from service.client.worker import WorkerClient
from service.object_store import StoreError
from service.protocol import (
    ModelRunStart,
    Query,
    SearchStart,
    StoredFolder,
    TaskReport,
    WorkerDataset,
)
from service.wire.checkpoints import FileEntry
from tests.support.checkpoint_folder import write_checkpoint
from tests.support.training_world import image_folder, ingest
from workers import model_run
from workers.artifacts import upload
from workers.model_run import carry_out
from workers.search import Search


class Reports(WorkerClient):
    """A client that keeps what the API would get."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9", "token", run="run", patience=0)
        self.ended: list[Any] = []

    def heartbeat(self, progress: Any = None, *, patience: float | None = None) -> Any:
        return "run"

    def task_succeeded(self, report: type[TaskReport], /, **result: Any) -> None:
        self.ended.append(("succeeded", result["result"], result["uri"], result["files"]))

    def task_failed(self, report: type[TaskReport], type: str, message: str) -> None:
        self.ended.append(("failed", type, message))


class World:
    """A data set, a checkpoint, and a store."""

    def __init__(self, folder: Path) -> None:
        self.root = image_folder(folder / "pictures")
        self.index = ingest(self.root)
        self.index.save(folder / "index.safetensors")
        write_checkpoint(self.index, folder / "checkpoint")
        self.store = f"file://{folder}/store"
        entries = [
            upload(file, f"{self.store}/checkpoint/{file.name}")
            for file in sorted((folder / "checkpoint").iterdir())
        ]
        self.checkpoint = StoredFolder(uri=f"{self.store}/checkpoint", files=entries)
        self.dataset = WorkerDataset(
            id="ds_1",
            name="pictures",
            uri=str(self.root),
            version=1,
            index_uri=(folder / "index.safetensors").as_uri(),
            facts={},
        )

    def start(self, kind: str, settings: dict[str, Any]) -> ModelRunStart:
        return ModelRunStart.model_validate(
            {
                "dataset_roots": [],
                "kind": kind,
                "settings": settings,
                "checkpoint": self.checkpoint,
                "dataset": None if kind == "export" else self.dataset,
                "artifacts_uri": f"{self.store}/model-runs/mrun_1",
            }
        )

    def run(self, kind: str, settings: dict[str, Any]) -> Any:
        client = Reports()
        carry_out(client, self.start(kind, settings), use_gpu=False)
        client.close()
        [ended] = client.ended
        return ended


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("DASL_CACHE_DIR", str(tmp_path / "cache"))
    return World(tmp_path)


def path_of(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


@pytest.mark.parametrize("format", ["parquet", "safetensors"])
def test_run_killed_in_its_middle_gives_the_same_files_again(
    world: World, format: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"format": format}
    # Each batch of 256 images is a part; these are one.
    state, result, uri, entries = world.run("embedding", settings)
    assert (state, result["images"], result["unreadable"]) == ("succeeded", len(world.index), 0)
    assert result["images_per_second"] > 0
    [entry] = entries
    content = (path_of(uri) / entry.name).read_bytes()
    assert (entry.size, entry.sha256) == (len(content), hashlib.sha256(content).hexdigest())

    class Killed(BaseException):
        pass

    def kill(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(model_run, "upload", kill)
        with pytest.raises(Killed):
            world.run("embedding", settings)
    _, _, other, again = world.run("embedding", settings)
    assert other != uri
    assert again == entries
    batches = list(read_parts([path_of(uri) / entry.name]))
    assert [key for batch in batches for key in batch.keys] == list(world.index.paths)


def test_large_embedding_is_written_in_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(files.PART_BYTES, "parquet", 1)
    monkeypatch.setattr("dasl_core.embedding.features.FEATURE_BATCH", 10)
    monkeypatch.setattr("dasl_core.train.features.FEATURE_BATCH", 10)
    _, result, uri, entries = world.run("embedding", {"normalize": True})
    assert len(entries) == 3
    batches = list(read_parts([path_of(uri) / entry.name for entry in entries]))
    features = np.concatenate([batch.features for batch in batches])
    assert len(features) == result["images"] == len(world.index)
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, rtol=1e-5)


def test_files_of_an_embedding_that_fails_are_removed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row names them, so nothing would remove them before the checkpoint is deleted."""
    monkeypatch.setitem(files.PART_BYTES, "parquet", 1)
    monkeypatch.setattr("dasl_core.embedding.features.FEATURE_BATCH", 10)
    monkeypatch.setattr("dasl_core.train.features.FEATURE_BATCH", 10)
    stored: list[Path] = []

    def store_one(file: Path, uri: str, **options: Any) -> FileEntry:
        if stored:
            raise StoreError(errno.ENOSPC, "no space left")
        stored.append(path_of(uri))
        return upload(file, uri, **options)

    monkeypatch.setattr(model_run, "upload", store_one)
    with pytest.raises(StoreError):
        world.run("embedding", {})
    assert not stored[0].parent.exists()


def test_evaluation_and_export(world: World) -> None:
    evaluate = {
        "on": "backbone",
        "crop_pct": 1.0,
        "every_epochs": 1,
        "holdout": {"fraction": 0.4},
        "clustering": False,
        "linear": False,
        "finetune": False,
    }
    state, result, uri, entries = world.run("evaluation", evaluate)
    assert (state, uri, entries) == ("succeeded", None, [])
    assert set(result["metrics"]) == {"raw", "backbone"}
    assert 0 <= result["metrics"]["backbone"]["knn_top1"] <= 1
    state, result, _, entries = world.run("export", {"format": "hf"})
    assert (state, result) == ("succeeded", {"format": "hf"})
    assert {entry.name for entry in entries} == {"README.md", "config.json", "model.safetensors"}


def test_what_a_user_can_repair_is_a_failure(world: World) -> None:
    state, type, message = world.run("export", {"format": "transformers"})
    assert (state, type) == ("failed", "ExportError")
    assert message
    for path in world.index.paths:
        (world.root / path).unlink()
    state, _, message = world.run("embedding", {})
    assert state == "failed"
    assert "of the data set 'pictures' can no longer be read" in message


def test_search_answers_for_keys_and_files(world: World, tmp_path: Path) -> None:
    _, _, uri, entries = world.run("embedding", {"format": "safetensors"})
    start = SearchStart.model_validate(
        {
            "embedding": {"uri": uri, "files": entries},
            "settings": {"format": "safetensors"},
            "checkpoint": world.checkpoint,
            "facts": DatasetIndex.load(tmp_path / "index.safetensors").facts().model_dump(),
        }
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    search = Search(start, scratch)
    key = world.index.paths[4]
    near = search.answer(Query(id="q", key=key, k=3)).neighbors
    assert len(near) == 3
    # A question for an image of the embedding needs no network.
    assert not (scratch / "checkpoint").exists()
    content = base64.b64encode((world.root / key).read_bytes()).decode()
    found = search.answer(Query(id="q", image=content, k=4)).neighbors
    assert (found[0].key, found[0].label) == (key, "class-0")
    assert found[0].similarity == pytest.approx(1, abs=1e-5)
    assert [each.key for each in found[1:]] == [each.key for each in near]
    assert search.answer(Query(id="q", key="x", k=3)).problem == "is not an image of this embedding"
    damaged = search.answer(Query(id="q", image=base64.b64encode(b"no image").decode(), k=3))
    assert damaged.problem == "the content is not an image of a known format"
