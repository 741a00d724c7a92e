"""Downloads: resumed, verified, and kept in their folder."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.cli.app import app
from service.cli.verify import report
from service.client import Client, DaslError, DownloadFailed
from service.client.models import Preview
from service.wire.checkpoints import CheckpointView, Verification
from service.wire.datasets import DatasetView
from service.wire.jobs import JobView
from service.wire.previews import PreviewFile
from tests.support.answers import answer_of
from tests.support.scripted_server import Answer, Request, answer_json, answer_range, scripted

CONTENT = bytes(range(256)) * 40
SHA = hashlib.sha256(CONTENT).hexdigest()
NAME = "backbone.safetensors"


def _server(
    send: Callable[[Request], Answer], *, name: str = NAME, sha: str = SHA, size: int = len(CONTENT)
) -> Callable[[Request], Answer]:
    file = {"name": name, "size": size, "sha256": sha}
    manifest = answer_of(CheckpointView, id="ckpt_1", files=[file])

    def handler(request: Request) -> Answer:
        return send(request) if "/files/" in request.path else answer_json(manifest)

    return handler


def _partial(folder: Path) -> Path:
    return folder / f".{NAME}.{SHA[:16]}.part"


def _fetches(requests: list[Request]) -> list[str | None]:
    """The Range of each request for the file."""
    return [r.headers.get("range") for r in requests if "/files/" in r.path]


def test_download_is_complete_and_not_repeated(tmp_path: Path) -> None:
    with scripted(_server(lambda request: answer_range(CONTENT, request))) as server:
        client = Client(server.url)
        [place] = client.checkpoints.download("ckpt_1", tmp_path / "new" / "folder")
        assert place.read_bytes() == CONTENT
        client.checkpoints.download("ckpt_1", place.parent)
    assert _fetches(server.requests) == [None]
    assert [path.name for path in place.parent.iterdir()] == [NAME]


def test_download_does_not_mix_two_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "backbone.onnx").touch()
    (tmp_path / NAME).write_bytes(b"of another job")
    with (
        scripted(_server(lambda request: answer_range(CONTENT, request))) as server,
        pytest.raises(DownloadFailed, match="which checkpoint ckpt_1 lacks"),
    ):
        Client(server.url).checkpoints.download("ckpt_1", tmp_path)
    assert (tmp_path / NAME).read_bytes() == b"of another job"


def test_command_downloads_the_best_checkpoint_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics: list[dict[str, float]] = [{"nmi": 0.2}, {"nmi": 0.4}, {"knn_top1": 0.9}]
    saved = [
        answer_of(CheckpointView, id=f"ckpt_{i}", step=i, metrics=each)
        for i, each in enumerate(metrics)
    ]
    # Saved again after the final evaluation of the step.
    saved.insert(2, saved[1] | {"id": "ckpt_1_final", "final": True})

    def handler(best_by: str) -> Callable[[Request], Answer]:
        resolved = {"checkpoints": {"best_by": best_by}}
        job = answer_of(JobView, id="job_1", status="running", resolved=resolved)

        def answer(request: Request) -> Answer:
            if request.path.endswith("/checkpoints"):
                return answer_json({"data": saved})
            return answer_json(job if "/jobs/" in request.path else saved[0])

        return answer

    for by, code, path in (
        ("nmi", 0, "/v1/checkpoints/ckpt_1_final"),
        ("uniformity", 1, "/v1/jobs/job_1"),
    ):
        with scripted(handler(by)) as server:
            monkeypatch.setenv("DASL_URL", server.url)
            command = ["download", "job_1", "--best", "-o", str(tmp_path)]
            assert CliRunner().invoke(app, command).exit_code == code
        assert server.requests[-1].path == path


def test_verification_downloads_the_checkpoints_whatever_its_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    birds = {"id": "ds_1", "name": "birds"}
    job = answer_of(JobView, id="job_1", dataset=birds, dataset_version=1)

    def answer(request: Request) -> Answer:
        if "/datasets/" in request.path:
            return answer_json(answer_of(DatasetView, version=2))
        return answer_json({"data": []} if request.path.endswith("/checkpoints") else job)

    with scripted(answer) as server:
        monkeypatch.setenv("DASL_URL", server.url)
        result = CliRunner().invoke(app, ["verify", "job_1", "--data", str(tmp_path)])
        assert (result.exit_code, "has no checkpoint to verify" in result.stderr) == (1, True)
        result = CliRunner().invoke(app, ["verify", "job_1"])
    assert (result.exit_code, "which is now at version 2" in result.stderr) == (3, True)


def test_result_counts_though_it_cannot_be_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    said = Verification(certificate="0" * 64, passed=True, summary="Verified")
    refusal = answer_json({"title": "Forbidden"}, 403)
    with scripted(lambda _: refusal) as server, Client(server.url) as client:
        report(client, "ckpt_1", said)
    assert "Warning: the result is not recorded: " in capsys.readouterr().err


def test_download_of_a_deleted_checkpoint_is_refused(tmp_path: Path) -> None:
    deleted = answer_of(CheckpointView, id="ckpt_1", state="deleted")
    with (
        scripted(lambda _: answer_json(deleted)) as server,
        pytest.raises(DownloadFailed, match="The checkpoint ckpt_1 was deleted"),
    ):
        Client(server.url).checkpoints.download("ckpt_1", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_lost_connection_resumes_at_its_offset(tmp_path: Path) -> None:
    def send(request: Request) -> Answer:
        answer = answer_range(CONTENT, request)
        answer.cut_after = 3000 if len(answer.body) > 3000 else None
        return answer

    with scripted(_server(send)) as server:
        [place] = Client(server.url).checkpoints.download("ckpt_1", tmp_path)
    assert place.read_bytes() == CONTENT
    assert len(_fetches(server.requests)) > 1
    assert all(_fetches(server.requests)[1:])


def test_partial_file_is_resumed(tmp_path: Path) -> None:
    _partial(tmp_path).write_bytes(CONTENT[:5000])
    with scripted(_server(lambda request: answer_range(CONTENT, request))) as server:
        [place] = Client(server.url).checkpoints.download("ckpt_1", tmp_path)
    assert place.read_bytes() == CONTENT
    assert _fetches(server.requests) == ["bytes=5000-"]


@pytest.mark.parametrize("length", [5000, len(CONTENT), len(CONTENT) + 7])
def test_corrupted_partial_file_is_downloaded_again(tmp_path: Path, length: int) -> None:
    _partial(tmp_path).write_bytes(b"\xff" * length)
    with scripted(_server(lambda request: answer_range(CONTENT, request))) as server:
        [place] = Client(server.url).checkpoints.download("ckpt_1", tmp_path)
    assert place.read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [NAME]


def test_server_without_ranges_restarts_the_download(tmp_path: Path) -> None:
    _partial(tmp_path).write_bytes(CONTENT[:5000])
    with scripted(_server(lambda _: Answer(CONTENT))) as server:
        [place] = Client(server.url).checkpoints.download("ckpt_1", tmp_path)
    assert place.read_bytes() == CONTENT


def test_empty_file(tmp_path: Path) -> None:
    sha = hashlib.sha256(b"").hexdigest()
    with scripted(_server(lambda _: Answer(b""), sha=sha, size=0)) as server:
        [place] = Client(server.url).checkpoints.download("ckpt_1", tmp_path)
    assert place.read_bytes() == b""


@pytest.mark.parametrize(
    "content",
    [CONTENT[:-1] + b"!", CONTENT[:-1], CONTENT + b"more"],
    ids=["other", "short", "long"],
)
def test_unverified_content_is_not_renamed(tmp_path: Path, content: bytes) -> None:
    old = tmp_path / NAME
    old.write_bytes(b"a good file of another day")
    with (
        scripted(_server(lambda request: answer_range(content, request))) as server,
        pytest.raises(DownloadFailed, match=NAME),
    ):
        Client(server.url).checkpoints.download("ckpt_1", tmp_path, force=True)
    assert old.read_bytes() == b"a good file of another day"


@pytest.mark.parametrize(
    "evil",
    [
        "../evil",
        "..",
        "/etc/evil",
        "a/b",
        "a\\b",
        "C:evil",
        ".bashrc",
        "",
        "nul\x00byte",
        "line\nbreak",
        "-rf",
        "x" * 300,
    ],
)
def test_unsafe_file_name_is_refused(tmp_path: Path, evil: str) -> None:
    folder = tmp_path / "in" / "here"
    with scripted(_server(lambda _: Answer(CONTENT), name=evil)) as server:
        client = Client(server.url)
        with pytest.raises(DaslError, match=r"files\.0\.name: the server's answer cannot be read"):
            client.checkpoints.download("ckpt_1", folder)
        file = answer_of(PreviewFile, name=evil)
        preview = Preview.model_validate(answer_of(Preview, files=[file]))
        with pytest.raises(DownloadFailed, match="not a plain file name"):
            client.previews.download(preview, folder)
    assert _fetches(server.requests) == []
    assert not folder.exists()


def test_existing_link_is_only_replaced_by_force_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / NAME).symlink_to(outside)
    with scripted(_server(lambda request: answer_range(CONTENT, request))) as server:
        with pytest.raises(DownloadFailed, match="exists"):
            Client(server.url).checkpoints.download("ckpt_1", folder)
        assert (folder / NAME).is_symlink()
        Client(server.url).checkpoints.download("ckpt_1", folder, force=True)
    assert outside.read_bytes() == b"mine"
    assert (folder / NAME).read_bytes() == CONTENT


def test_invalid_redirect_is_not_an_address_that_is_too_long(tmp_path: Path) -> None:
    redirect = Answer(b"", 307, {"Location": "http://store:port/"})
    with (
        scripted(_server(lambda request: redirect)) as server,
        pytest.raises(DaslError, match="Invalid URL in location header"),
    ):
        Client(server.url, patience=0).checkpoints.download("ckpt_1", tmp_path)
