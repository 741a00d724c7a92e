"""Uploads of the SDK and the command line: the packed folder, resuming, and the way to a data set that is ready."""

import io
import os
import random
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

from service import credentials
from service.cli.app import app
from service.client import ApiError, Client, ConnectionFailed, UploadFailed
from service.client.packing import FileContent, FolderContent, open_content
from service.client.sync import uploads as client_uploads
from service.datasets.ingests.repository import begin_ingest
from service.dispatcher.uploads import Uploads
from tests.dasl_core.image_files import as_dicom, ramp
from tests.support.api_server import Service
from tests.support.command_line import run as dasl
from tests.support.uploads import dispatcher_of
from workers import ingest


@pytest.fixture(scope="module")
def finisher(service: Service) -> Uploads:
    return dispatcher_of(service.settings, service.database)


@pytest.fixture
def client(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("DASL_URL", service.url)
    monkeypatch.setenv("DASL_TOKEN", service.token)
    monkeypatch.setattr(client_uploads, "CHUNK_BYTES", 5000)
    with Client() as client:
        yield client


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images in two classes, with names that a tar header does not hold, and files to leave out."""
    folder = tmp_path_factory.mktemp("data") / "birds"
    names = ("owl/a.png", "owl/2023/b.png", "wren/c.PNG", f"wren/{'ö' * 90}.png", "wren/d.png")
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20 + number, 16), (number, 0, 0)).save(folder / name, "PNG")
    (folder / "owl" / "scan.dcm").write_bytes(as_dicom(ramp(1, "uint8", 255)[..., 0]))
    (folder / "owl" / "notes.txt").write_text("no image")
    (folder / ".hidden.png").write_bytes(b"hidden")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "e.png").write_bytes(b"hidden")
    (folder / "wren" / "link.png").symlink_to(folder / "owl" / "a.png")
    (folder / "wren" / "out.png").symlink_to(folder.parent / "elsewhere.png")
    (folder.parent / "elsewhere.png").write_bytes(b"elsewhere")
    return folder


def test_packed_folder_is_a_tar_of_its_images(folder: Path) -> None:
    content = FolderContent(folder)
    packed = content.read(0, content.size)
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as archive:
        members = {each.name: archive.extractfile(each) for each in archive.getmembers()}
        read = {name: file.read() for name, file in members.items() if file is not None}
    assert sorted(read) == [
        "owl/2023/b.png",
        "owl/a.png",
        "owl/scan.dcm",
        "wren/c.PNG",
        "wren/d.png",
        "wren/link.png",
        f"wren/{'ö' * 90}.png",
    ]
    for name, stored in read.items():
        assert stored == (folder / name).read_bytes()
    assert [each.path for each in content.skipped] == ["wren/out.png"]
    assert FolderContent(folder).fingerprint == content.fingerprint


def test_what_a_folder_leaves_out_has_its_reason(tmp_path: Path) -> None:
    folder = tmp_path / "birds"
    folder.mkdir()
    for name in (b"a.png", b"bad\xff\xfe.png"):
        (folder / os.fsdecode(name)).write_bytes(b"image")
    (tmp_path / "out.png").write_bytes(b"image")
    (folder / "out.png").symlink_to(tmp_path / "out.png")
    (folder / "dangling.png").symlink_to("nothing.png")
    assert {each.path: each.reason for each in FolderContent(folder).skipped} == {
        "bad\\xff\\xfe.png": "its name is not valid UTF-8",
        "dangling.png": "it is a link to something that does not exist",
        "out.png": "it is a link that leads out of the data set's folder",
    }


@given(st.data())
def test_packed_folder_reads_the_same_from_any_offset(folder: Path, data: st.DataObject) -> None:
    content = FolderContent(folder)
    whole = content.read(0, content.size)
    assert len(whole) == content.size
    start = data.draw(st.integers(0, content.size))
    stop = data.draw(st.integers(start, content.size))
    assert content.read(start, stop) == whole[start:stop]


def test_changed_file_ends_the_upload(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(bytes(1000))
    content, single = FolderContent(tmp_path), FileContent(tmp_path / "b.png")
    os.utime(tmp_path / "b.png", ns=(1, 1))
    assert content.read(0, 1000)
    for changed in (content, single):
        with pytest.raises(UploadFailed, match=r"b\.png changed while it was uploaded"):
            changed.read(0, changed.size)
    assert FolderContent(tmp_path).fingerprint != content.fingerprint
    (tmp_path / "a.png").unlink()
    with pytest.raises(UploadFailed, match=r"a\.png cannot be read: No such file"):
        content.read(0, content.size)


def test_names_of_files_become_names_that_the_server_takes(tmp_path: Path) -> None:
    for name, sent in (("my bïrds.tar", "my_b_rds.tar"), ("-x.zip", "x.zip")):
        (tmp_path / name).write_bytes(b"x")
        assert open_content(tmp_path / name).filename == sent
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "none"):
        with pytest.raises(UploadFailed):
            open_content(path)


def test_uploaded_folder_becomes_ready_with_its_classes(
    service: Service,
    client: Client,
    finisher: Uploads,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    added = CliRunner().invoke(
        app, ["datasets", "add", str(folder), "--upload", "--no-wait", "--json"]
    )
    assert added.exit_code == 0, added.output
    assert "Packing 7 images" in added.stderr
    assert "left out: wren/out.png (it is a link that leads out of the" in " ".join(
        added.stderr.split()
    )
    dataset = client.datasets.get("birds")
    assert dataset.upload is not None
    assert dataset.upload.received == dataset.upload.size > 5000
    finisher.round()
    token, hashed = credentials.new_token()
    with service.database.write() as session:
        run = begin_ingest(session, dataset.id, hashed)
        assert run is not None
    monkeypatch.setenv("DASL_API_URL", service.url)
    monkeypatch.setenv("DASL_WORKER_TOKEN", token)
    monkeypatch.setattr("sys.argv", ["ingest", "--run", run.submission_id, "--dataset", dataset.id])
    assert ingest.main() == 0
    ready = client.datasets.get("birds")
    assert (ready.state, ready.error_message) == ("ready", "")
    assert ready.facts is not None
    assert (ready.facts["num_images"], ready.facts["num_classes"]) == (7, 2)
    shown = dasl("datasets", "show", "birds")
    assert "upload" in shown.stdout
    again = dasl("datasets", "add", str(folder), "--upload", code=1)
    assert "exists" in again.stderr
    removed = dasl("datasets", "rm", "birds", "--yes")
    assert "The upload is removed" in removed.stdout


def test_removal_of_an_upload_asks_first(
    client: Client, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploaded = client.datasets.upload(folder, "birds")
    remove = ["datasets", "rm", "birds"]
    refused = CliRunner().invoke(app, remove)
    assert refused.exit_code == 2
    assert "add --yes" in refused.stderr
    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("service.cli.inputs.sys", terminal)
    declined = CliRunner().invoke(app, remove, input="n\n")
    assert declined.exit_code == 1
    assert "of which the server has no other copy? [y/N]" in declined.stderr
    assert client.datasets.get("birds").id == uploaded.id
    confirmed = CliRunner().invoke(app, remove, input="y\n")
    assert "The upload is removed" in confirmed.stdout
    client.datasets.add(str(folder), "birds")
    assert CliRunner().invoke(app, remove).exit_code == 0, "a registered folder stays"


class Interrupted(Exception):
    pass


def test_repeated_command_resumes(client: Client, tmp_path: Path) -> None:
    archive = tmp_path / "owls.tar"
    archive.write_bytes(random.Random(0).randbytes(23_000))

    def interrupt(received: int, _: int) -> None:
        if received >= 10_000:
            raise Interrupted

    with pytest.raises(Interrupted):
        client.datasets.upload(archive, "owls", on_bytes=interrupt)
    other = tmp_path / "other.tar"
    other.write_bytes(bytes(23_000))
    shutil.copystat(archive, other)
    assert FileContent(other).fingerprint == FileContent(archive).fingerprint
    with pytest.raises(UploadFailed, match="has other files, or they changed"):
        client.datasets.upload(other, "owls")
    with pytest.raises(UploadFailed, match="was begun with other options: none"):
        client.datasets.upload(archive, "owls", {"labels": "none"})
    resumed = CliRunner().invoke(
        app, ["datasets", "add", str(archive), "--name", "owls", "--upload", "--no-wait"]
    )
    assert resumed.exit_code == 0, resumed.output
    assert "Resuming: the server has 10.0 kB of 23.0 kB" in resumed.stderr
    assert dict(client.datasets.get("owls").upload or ()) == {
        "filename": "owls.tar",
        "size": 23_000,
        "received": 23_000,
        "sha256": None,
        "fingerprint": FileContent(archive).fingerprint,
    }


def test_lost_connections_and_answers_do_not_stop_an_upload(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "wrens.tar"
    archive.write_bytes(content := random.Random(1).randbytes(40_000))
    really_send = client._transport.json
    monkeypatch.setattr("service.client.sync.uploads.time.sleep", lambda _: None)
    calls = 0

    def send(method: str, path: str, **options: Any) -> Any:
        nonlocal calls
        if method != "PUT":
            return really_send(method, path, **options)
        calls += 1
        if calls % 3 == 1:  # the request is lost
            raise ConnectionFailed("http://x", "reset")
        if calls == 5:  # damaged on the way
            options["body"] = bytes(len(options["body"]))
        answer = really_send(method, path, **options)
        if calls % 3 == 0:  # the answer is lost
            raise ConnectionFailed("http://x", "reset")
        return answer

    monkeypatch.setattr(client._transport, "json", send)
    dataset = client.datasets.upload(archive, "wrens")
    assert calls > 12
    part = Path(dataset.uri).with_name(".wrens.tar.part")
    assert part.read_bytes() == content


def test_refused_upload_is_reported_at_once(client: Client, tmp_path: Path) -> None:
    (tmp_path / "birds.csv").write_text("path\n")
    with pytest.raises(ApiError, match=r"cannot be uploaded.*birds\.csv"):
        client.datasets.upload(tmp_path / "birds.csv", "list")
    for arguments in (["s3://bucket/birds"], [str(tmp_path), "--follow-links"]):
        dasl("datasets", "add", *arguments, "--name", "x", "--upload", code=2)
