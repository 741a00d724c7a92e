"""Ingest runs of one data set that overlap, against the real API."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from dasl_core.data.index import DatasetIndex
from dasl_core.spec.locations import local_path
from service import credentials
from service.client import Client
from service.datasets.repository import begin_ingest
from service.db.models import Dataset
from service.runs import repository as runs
from tests.support.api_server import running_service
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
        assert client.datasets.get(dataset.id).facts == index.facts().model_dump()
        assert index.facts().num_images == 2
