"""Deletion, retention and adoption with artifacts on a real S3 server."""

import logging
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from service.artifacts.attempt_log import AttemptLog
from service.artifacts.storage import Storage
from service.checkpoints import repository as checkpoints
from service.db.models import Job, Run
from service.db.session import Database
from service.dispatcher.context import utc_now
from service.dispatcher.garbage import Garbage
from service.object_store import open_store
from service.scheduling import repository as scheduling
from service.scheduling.repository import Ended
from service.settings import Settings
from tests.support import s3_server as support
from tests.support.api_under_test import Api, Worker, served
from workers.artifacts import upload_checkpoint

AWAY = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}


@pytest.fixture
def api(database: Database, database_url: str, tmp_path: Path, s3_root: str) -> Iterator[Api]:
    """An API on each database whose artifacts are on S3."""
    settings = Settings(home=tmp_path / "home", database_url=database_url, artifacts_uri=s3_root)
    with served(settings, database) as api:
        yield api


class Later:
    """A clock that the test advances."""

    ahead = timedelta()

    def __call__(self) -> datetime:
        return utc_now() + self.ahead


@pytest.fixture
def clock() -> Later:
    return Later()


def put(uri: str, content: bytes) -> None:
    fs, path = open_store(uri)
    fs.pipe_file(path, content)


def ended(api: Api, tmp_path: Path) -> Worker:
    """A job that succeeded, with two checkpoints, an artifact and a log of several objects."""
    worker = api.running()
    source = tmp_path / worker.job_id
    source.mkdir()
    (source / "weights").write_bytes(b"weights")
    for step in (1, 2):
        uri = f"{worker.uri}/checkpoints/step-{step:09d}"
        about = {"job": worker.job_id, "attempt": 1, "step": step, "epoch": 1.0, "final": step == 2}
        files = [
            file.model_dump() for file in upload_checkpoint(source, uri, about | {"metrics": {}})
        ]
        report: dict[str, Any] = {
            "step": step,
            "epoch": 1.0,
            "uri": uri,
            "files": files,
            "metrics": {},
        }
        assert worker.post("checkpoints", final=step == 2, **report).status_code < 300
    put(f"{worker.uri}/artifacts/plot.png", b"12345")
    about = {"name": "plot.png", "uri": f"{worker.uri}/artifacts/plot.png", "size": 5}
    worker.post("artifacts", content_type="image/png", sha256="0" * 64, **about)
    log = AttemptLog(Storage(api.settings.artifacts_uri), worker.job_id, 1)
    for line in range(5):
        log.append(10 * line, b"a line of\n", 1 << 20)
    assert worker.post("finish", outcome="succeeded").status_code == 204
    with api.database.write() as session:
        for run in session.scalars(select(Run).where(Run.owner == worker.job_id)):
            run.settled = True
    return worker


def objects(api: Api, worker: Worker) -> list[str]:
    """Keys of all objects of a job, below its first attempt."""
    fs, path = open_store(worker.uri)
    return sorted(name.removeprefix(f"{path}/") for name in fs.find(path))


def test_deleted_job_leaves_no_object_and_others_keep_theirs(
    api: Api, garbage: Garbage, tmp_path: Path
) -> None:
    worker, other = ended(api, tmp_path), ended(api, tmp_path)
    before = objects(api, other)
    assert {name.split("/")[0] for name in before} > {"checkpoints", "artifacts"}
    put(f"{api.settings.artifacts_uri}/jobs/{worker.job_id}-other/kept", b"1")
    assert api.client.delete(f"/v1/jobs/{worker.job_id}").status_code == 204
    garbage.round()
    assert objects(api, worker) == []
    assert objects(api, other) == before
    store = Storage(api.settings.artifacts_uri)
    assert store.file_sizes(f"{store.root}/jobs/{worker.job_id}-other") == {"kept": 1}
    with api.database.read() as session:
        assert session.get(Job, worker.job_id) is None


def test_removal_waits_for_a_store_that_is_away(
    api: Api, garbage: Garbage, clock: Later, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = ended(api, tmp_path)
    assert api.client.delete(f"/v1/jobs/{worker.job_id}").status_code == 204
    monkeypatch.setattr("service.object_store._RETRY", timedelta(seconds=0.2))
    with support.environment(AWAY):
        garbage.round()
    with api.database.read() as session:
        assert session.get(Job, worker.job_id) is not None
    garbage.round()
    assert objects(api, worker), "it was tried just now"
    clock.ahead = timedelta(minutes=6)
    garbage._context.take_lease()
    garbage.round()
    assert objects(api, worker) == []
    with api.database.read() as session:
        assert session.get(Job, worker.job_id) is None


def test_retention_removes_objects_and_keeps_the_final_checkpoint(
    api: Api,
    garbage: Garbage,
    clock: Later,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = ended(api, tmp_path)
    retention = garbage._retention
    monkeypatch.setattr("service.object_store._RETRY", timedelta(seconds=0.2))
    with support.environment(AWAY), pytest.raises(OSError, match="error sending request"):
        retention.remove_artifacts(worker.job_id)
    path = f"/v1/jobs/{worker.job_id}"
    assert len(api.client.get(f"{path}/artifacts").json()["data"]) == 1
    clock.ahead = timedelta(days=2)
    garbage._context.take_lease()
    with support.environment(AWAY):
        assert retention._remove([worker.job_id], retention.remove_logs)
    warnings = [each for each in caplog.records if each.levelno >= logging.WARNING]
    [record] = [each for each in warnings if worker.job_id in each.getMessage()]
    assert record.getMessage().startswith(f"The files of {worker.job_id} cannot be removed now: ")
    assert record.exc_info is None, "it is no defect"
    retention.remove_artifacts(worker.job_id)
    retention.remove_logs(worker.job_id)
    garbage.round()
    names = objects(api, worker)
    assert {name.rpartition("/")[0] for name in names} == {"checkpoints/step-000000002"}
    assert [each["step"] for each in api.client.get(f"{path}/checkpoints").json()["data"]] == [2]
    assert api.client.get(f"{path}/artifacts").json()["data"] == []
    assert api.client.get(f"{path}/logs").content == b""


def test_sweep_adopts_a_whole_checkpoint_and_removes_a_part_of_one(
    api: Api, garbage: Garbage, tmp_path: Path
) -> None:
    """What an attempt leaves that was killed while a checkpoint was written beside its training."""
    worker = ended(api, tmp_path)
    folder = f"{worker.uri}/checkpoints"
    source = tmp_path / worker.job_id
    about = {"job": worker.job_id, "attempt": 1, "epoch": 2.0, "final": False, "metrics": {}}
    upload_checkpoint(source, f"{folder}/step-000000003", {**about, "step": 3})
    put(f"{folder}/step-000000004/weights", b"weights")
    with api.database.write() as session:
        long_ago = utc_now() - timedelta(days=2)
        session.execute(update(Run).where(Run.owner == worker.job_id).values(finished_at=long_ago))
    with api.database.read() as session:
        [attempt] = scheduling.finalized_attempts(
            session, after=Ended(utc_now() - timedelta(days=30)), before=utc_now(), limit=20
        )
    garbage._adoption.sweep_attempt(attempt)
    with api.database.read() as session:
        uris = checkpoints.attempt_uris(session, worker.job_id, 1)
    assert sorted(uri.rpartition("/")[2] for uri in uris) == [
        f"step-{step:09d}" for step in (1, 2, 3)
    ]
    store = Storage(api.settings.artifacts_uri)
    assert len(store.file_sizes(f"{folder}/step-000000003")) == 2
    assert store.file_sizes(f"{folder}/step-000000004") == {}
