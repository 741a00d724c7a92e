"""Ingest runs of one data set that overlap, against the real API."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from PIL import Image
from typer.testing import CliRunner

from dasl_core.data import headers
from dasl_core.data.decode import Header, read_header
from dasl_core.data.index import DatasetIndex
from dasl_core.data.ingest import ingest_folder
from dasl_core.spec.locations import local_path
from dasl_core.vocabulary import IngestPhase
from service import credentials
from service.cli.app import app
from service.client import Client, DatasetFailed, StaleAttempt, WorkerClient
from service.datasets.ingests.repository import begin_ingest, end_ingest
from service.db.models import Dataset
from service.protocol import IngestStart
from service.runs import repository as runs
from service.wire.datasets import Changes
from tests.support.api_server import Service
from tests.support.polling import wait_for
from workers import artifacts, heartbeats, ingest


def test_superseded_ingest_run_leaves_the_index(
    service: Service, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture(tmp_path / "images" / "first.png")
    dataset = client.datasets.add(tmp_path / "images", "two-runs")
    begin(service, dataset.id, monkeypatch)
    really_upload = artifacts.upload

    def upload_late(file: Path, uri: str, **options: Any) -> None:
        """Ray forgot the run, another one came and went, and only now this one writes."""
        monkeypatch.setattr("workers.artifacts.upload", really_upload)
        picture(tmp_path / "images" / "second.png")
        token, hashed = credentials.new_token()
        with service.database.write() as session:
            assert runs.replace_token(session, dataset.id, 1, hashed)
        monkeypatch.setenv("DASL_WORKER_TOKEN", token)
        assert ingest.main() == 0
        really_upload(file, uri, **options)

    monkeypatch.setattr("workers.artifacts.upload", upload_late)
    assert ingest.main() == 0

    index = DatasetIndex.load(index_of(service, dataset.id))
    assert client.datasets.get(dataset.id).facts == index.facts().model_dump(mode="json")
    assert index.facts().num_images == 2


def test_ingest_reports_its_progress_and_stops_when_superseded(
    service: Service, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "images").mkdir()
    dataset = client.datasets.add(tmp_path / "images", "slow")
    _, run_id, *_ = begin(service, dataset.id, monkeypatch)
    worker = WorkerClient(service.url, os.environ["DASL_WORKER_TOKEN"], run_id)
    assert worker.task_start(IngestStart).heartbeat_seconds == 2

    def shown() -> tuple[object, ...] | None:
        progress = client.datasets.get(dataset.id).progress
        if progress is None:
            return None
        return progress.images_read, progress.images_total, progress.phase

    with heartbeats.Heartbeats(worker, 0.01) as report:
        reports: list[tuple[int, int, IngestPhase]] = [(0, 7, "listing"), (3, 7, "headers")]
        for expected in reports:
            report(*expected)
            wait_for(lambda expected=expected: shown() == expected)  # type: ignore[misc]
        assert "3 of 7 headers read" in dasl("show", dataset.id)
        with service.database.write() as session:
            assert end_ingest(session, dataset.id, 1, "pending")

        def is_stopped() -> bool:
            try:
                report(4, 7)
            except StaleAttempt:
                return True
            return False

        wait_for(is_stopped)
    assert shown() is None
    worker.close()


def test_ingest_main_reads_images_under_heartbeats(
    service: Service, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the dispatcher starts it, with the id of the run."""
    picture(tmp_path / "images" / "first.png")
    monkeypatch.setattr(service.settings, "heartbeat_seconds", 0.001)
    dataset = client.datasets.add(tmp_path / "images", "small")
    assert run(service, dataset.id, monkeypatch) == 0
    ready = client.datasets.get(dataset.id)
    assert (ready.state, ready.progress) == ("ready", None)
    assert (ready.facts or {})["num_images"] == 1


def test_refresh_reads_what_is_new_and_the_command_line_shows_it(
    service: Service, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = tmp_path / "images"
    for name in ("cat/1", "cat/2", "dog/1"):
        picture(images / f"{name}.png")
    dataset = client.datasets.add(images, "pets")
    assert run(service, dataset.id, monkeypatch) == 0
    assert client.datasets.get(dataset.id).version == 1
    assert "ready" in dasl("refresh", "pets", "--no-wait")
    assert "pending" in dasl("show", "pets")
    assert run(service, dataset.id, monkeypatch) == 0
    assert client.datasets.wait_for_refresh(dataset.id).version == 1, "nothing has changed"

    picture(images / "dog/2.png")
    (images / "cat/1.png").unlink()
    client.datasets.refresh(dataset.id)
    assert run(service, dataset.id, monkeypatch) == 0
    newest, oldest = client.datasets.versions(dataset.id, page_size=1)
    assert (newest.number, oldest.number) == (2, 1)
    assert newest.changes == Changes(added=1, removed=1, changed=0, unchanged=2, relabeled=0)
    table = [line.split() for line in dasl("versions", "pets").splitlines()]
    assert [row[0] for row in table] == ["VERSION", "2", "1"]
    assert "\n1 " not in dasl("versions", "pets", "-n", "1")
    sheet = tmp_path / "sheet.jpg"
    dasl("contact-sheet", "pets", "-o", str(sheet))
    assert Image.open(sheet).size == (3 * 132 + 4, 132 + 4)
    report = client.datasets.get("pets").report
    assert report is not None
    assert report.model_extra is not None
    assert report.model_extra["contact_sheet"]["paths"] == ["cat/2.png", "dog/1.png", "dog/2.png"]

    shutil.rmtree(images)
    client.datasets.refresh(dataset.id)
    assert run(service, dataset.id, monkeypatch) == 0
    with pytest.raises(DatasetFailed, match="does not exist"):
        client.datasets.wait_for_refresh(dataset.id)
    assert client.datasets.get("pets").version == 2


_SLOW_INGEST = """
import sys, time
from dasl_core.data import headers
from workers import heartbeats, ingest

def stop(self, read, total, phase):
    if read == 8:  # after two chunks
        print("reading", flush=True)
        time.sleep(600)

headers.CHUNK = 3
heartbeats.Heartbeats.__call__ = stop
ingest.main()
"""


@pytest.mark.slow
def test_killed_ingest_is_continued(
    service: Service, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With SIGKILL; its index is that of an undisturbed ingest."""
    images = tmp_path / "images"
    for number in range(10):
        picture(images / f"{number}.png", number)
    dataset = client.datasets.add(images, "many")
    arguments = begin(service, dataset.id, monkeypatch)
    with subprocess.Popen(
        [sys.executable, "-c", _SLOW_INGEST, *arguments], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"reading\n"
        process.kill()
    read: list[str] = []

    def record(file: BinaryIO, name: str) -> Header:
        read.append(name)
        return read_header(file, name)

    monkeypatch.setattr(headers, "read_header", record)
    assert ingest.main() == 0
    assert sorted(read) == ["6.png", "7.png", "8.png", "9.png"]
    index = index_of(service, dataset.id)
    ingest_folder(images).save(tmp_path / "undisturbed")
    assert index.read_bytes() == (tmp_path / "undisturbed").read_bytes()
    assert not (index.parents[1] / "unfinished").exists()


def begin(service: Service, dataset_id: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Start the ingest that is due, as the dispatcher does; set its process's arguments, and return them."""
    token, hashed = credentials.new_token()
    with service.database.write() as session:
        row = begin_ingest(session, dataset_id, hashed)
        assert row is not None
        arguments = ("--run", row.submission_id, "--dataset", dataset_id)
    monkeypatch.setenv("DASL_API_URL", service.url)
    monkeypatch.setenv("DASL_WORKER_TOKEN", token)
    monkeypatch.setattr("sys.argv", ["ingest", *arguments])
    return arguments


def run(service: Service, dataset_id: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the ingest that is due in this process, and return its exit code."""
    begin(service, dataset_id, monkeypatch)
    return ingest.main()


def index_of(service: Service, dataset_id: str) -> Path:
    with service.database.read() as session:
        index_uri = session.get_one(Dataset, dataset_id).index_uri
    assert index_uri is not None
    return local_path(index_uri)


def dasl(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["datasets", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def picture(path: Path, gray: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8 + gray, 8), (gray, gray, gray)).save(path)
