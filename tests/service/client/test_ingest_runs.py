"""Ingest runs of one data set that overlap, against the real API."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from dasl_core.data.index import DatasetIndex
from dasl_core.spec.locations import local_path
from service import credentials
from service.cli.app import app
from service.client import Client, StaleAttempt, WorkerClient
from service.datasets.repository import begin_ingest, end_ingest
from service.db.models import Dataset
from service.runs import repository as runs
from tests.support.api_server import running_service
from tests.support.polling import wait_for
from workers import artifacts, ingest


def test_superseded_ingest_run_leaves_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    Image.new("RGB", (8, 8)).save(images / "first.png")
    with (
        running_service(tmp_path / "home") as service,
        Client(service.url, service.token) as client,
    ):
        dataset = client.datasets.add(images, "two-runs")
        monkeypatch.setenv("DASL_API_URL", service.url)
        monkeypatch.setattr("sys.argv", ["ingest", "--dataset", dataset.id])

        first_token, first_hash = credentials.new_token()
        with service.database.write() as session:
            first = begin_ingest(session, dataset.id, first_hash)
        assert first is not None
        number = first.number
        really_upload = artifacts.upload

        def upload_late(file: Path, uri: str) -> None:
            """Ray forgot the run, another one came and went, and only now this one writes."""
            monkeypatch.setattr("workers.ingest.upload", really_upload)
            Image.new("RGB", (8, 8)).save(images / "second.png")
            token, hashed = credentials.new_token()
            with service.database.write() as session:
                assert runs.replace_token(session, dataset.id, number, hashed)
            monkeypatch.setenv("DASL_WORKER_TOKEN", token)
            assert ingest.main() == 0
            really_upload(file, uri)

        monkeypatch.setattr("workers.ingest.upload", upload_late)
        monkeypatch.setenv("DASL_WORKER_TOKEN", first_token)
        assert ingest.main() == 0

        with service.database.read() as session:
            row = session.get(Dataset, dataset.id)
            assert row is not None
            assert row.index_uri is not None
            index = DatasetIndex.load(local_path(row.index_uri))
        assert client.datasets.get(dataset.id).facts == index.facts().model_dump(mode="json")
        assert index.facts().num_images == 2


def test_ingest_reports_its_progress_and_stops_when_superseded(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    with (
        running_service(tmp_path / "home") as service,
        Client(service.url, service.token) as client,
    ):
        dataset = client.datasets.add(images, "slow")
        token, hashed = credentials.new_token()
        with service.database.write() as session:
            run = begin_ingest(session, dataset.id, hashed)
            assert run is not None
            run_id, number = run.submission_id, run.number
        worker = WorkerClient(service.url, token, run=run_id)
        assert worker.dataset_start(dataset.id).heartbeat_seconds == 2

        def shown() -> tuple[int | None, int | None] | None:
            progress = client.datasets.get(dataset.id).progress
            return None if progress is None else (progress.images_read, progress.images_total)

        with ingest.ProgressReports(worker, 0.01) as report:
            for read, total in ((0, 7), (3, 7)):
                report(read, total)
                wait_for(lambda expected=(read, total): shown() == expected)  # type: ignore[misc]
            result = CliRunner().invoke(
                app,
                ["datasets", "show", dataset.id],
                env={"DASL_URL": service.url, "DASL_TOKEN": service.token},
            )
            assert "3 of 7 images read" in result.stdout
            with service.database.write() as session:
                assert end_ingest(session, dataset.id, number, "pending")

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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the dispatcher starts it, with the id of the run."""
    images = tmp_path / "images"
    images.mkdir()
    Image.new("RGB", (8, 8)).save(images / "first.png")
    with (
        running_service(tmp_path / "home") as service,
        Client(service.url, service.token) as client,
    ):
        service.settings.heartbeat_seconds = 0.001
        dataset = client.datasets.add(images, "small")
        token, hashed = credentials.new_token()
        with service.database.write() as session:
            run = begin_ingest(session, dataset.id, hashed)
            assert run is not None
        monkeypatch.setenv("DASL_API_URL", service.url)
        monkeypatch.setenv("DASL_WORKER_TOKEN", token)
        arguments = ["ingest", "--run", run.submission_id, "--dataset", dataset.id]
        monkeypatch.setattr("sys.argv", arguments)
        assert ingest.main() == 0
        ready = client.datasets.get(dataset.id)
        assert (ready.state, ready.progress) == ("ready", None)
        assert (ready.facts or {})["num_images"] == 1
