"""The files of ingests in stores, also in one that is away."""

import errno
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from dasl_core.data.decode import Header
from dasl_core.data.headers import HeaderTable, identify
from dasl_core.data.ingest import ingest
from dasl_core.data.sources import Entry
from service.protocol import CONTACT_SHEET
from service.wire.checkpoints import FileEntry
from tests.support.s3_server import S3Server
from workers import artifacts, ingest_files


@pytest.fixture
def index(tmp_path: Path) -> Path:
    file = tmp_path / "index.safetensors"
    file.write_bytes(b"an index")
    return file


@pytest.mark.slow
def test_index_is_uploaded_once_the_store_is_back(
    index: Path, tmp_path: Path, s3_server: S3Server, s3_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.object_store._RETRY", timedelta(seconds=0.2))
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 6:
            s3_server.start()

    uri = f"{s3_root}/datasets/ds_1/1/{index.name}"
    s3_server.kill()
    # Only the pauses of the uploads: other code sleeps, too.
    monkeypatch.setattr(artifacts, "time", SimpleNamespace(sleep=wait))
    try:
        ingest_files.upload_index(index, uri)
    finally:
        if len(waits) < 6:
            s3_server.start()
    assert waits == [1, 2, 4, 8, 15, 30]
    assert artifacts.fetch(uri, tmp_path / "back").read_bytes() == b"an index"


def test_index_for_which_no_store_is_left_fails_with_its_setting(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store").write_text("a file where a folder must be")
    waits: list[float] = []
    monkeypatch.setattr(artifacts, "time", SimpleNamespace(sleep=waits.append))
    with pytest.raises(
        OSError, match=r"\(DASL_ARTIFACTS_URI\) does not take the index: .*Not a directory"
    ):
        ingest_files.upload_index(index, f"file://{tmp_path}/store/ds_1/{index.name}")
    assert sum(waits) == 300


@pytest.mark.parametrize("store", ["local", "s3"])
def test_contact_sheet_that_was_not_uploaded_is_made_by_the_next_ingest(
    tmp_path: Path, s3_root: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"file://{tmp_path}/store/ds_1" if store == "local" else f"{s3_root}/ds_1"
    images = tmp_path / "images"
    images.mkdir()
    Image.new("RGB", (8, 8)).save(images / "a.png")
    really_upload = artifacts.upload

    def upload(file: Path, uri: str, **options: Any) -> FileEntry:
        if file.name == CONTACT_SHEET:
            (tmp_path / "part").write_bytes(file.read_bytes()[:100])
            really_upload(tmp_path / "part", uri)
            raise OSError(errno.ENOSPC, "No space left on device")
        return really_upload(file, uri, **options)

    unfinished = ingest_files.UnfinishedHeaders(f"{uri}/unfinished")
    with monkeypatch.context() as full:
        full.setattr(artifacts, "upload", upload)
        index_uri = ingest_files.save_results(ingest(images), f"{uri}/1")
    sheet = ingest_files.contact_sheet_uri(index_uri)
    assert not artifacts.exists(sheet), "a part of it would pass for the whole"
    previous = ingest_files.load_previous(index_uri, unfinished)
    again = ingest(images, previous=previous)
    assert again.is_unchanged
    ingest_files.save_contact_sheet(again, index_uri)
    assert artifacts.fetch(sheet, tmp_path / "sheet").read_bytes().startswith(b"\xff\xd8")
    assert (
        ingest(images, previous=ingest_files.load_previous(index_uri, unfinished)).contact_sheet
        is None
    )


def known(*names: str) -> HeaderTable:
    entries = [Entry(name, 1, 1) for name in names]
    return HeaderTable.build(identify(entries, []), [Header(1, 1, 3, "uint8")] * len(names))


@pytest.mark.parametrize("store", ["local", "s3"])
def test_headers_of_killed_ingests_are_found_and_removed(
    tmp_path: Path, s3_root: str, store: str
) -> None:
    uri = f"file://{tmp_path}/unfinished" if store == "local" else f"{s3_root}/ds_1/unfinished"
    first, second = (ingest_files.UnfinishedHeaders(uri) for _ in range(2))
    assert first.load() == []
    first.remove()
    first.save(known("a"))
    first.save(known("b", "c"))
    second.save(known("d"))
    (tmp_path / "cut-off").write_bytes(b"\x40")
    artifacts.upload(tmp_path / "cut-off", f"{uri}/x.safetensors")
    assert len(HeaderTable.merged(second.load())) == 4
    second.remove()
    assert first.load() == []
