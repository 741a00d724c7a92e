"""The artifact store on a real S3 server: what works as on a disk, and how failures are reported."""

import asyncio
import hashlib
import pickle
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.artifacts.attempt_log import AttemptLog
from service.artifacts.storage import Storage
from service.client import ApiError, AsyncClient, Client, ConnectionFailed, DownloadFailed
from service.doctor.local_storage import run_checks
from service.object_store import open_store
from tests.support import s3_server as support
from tests.support.api_server import Service
from tests.support.api_under_test import PROBLEM
from tests.support.s3_server import BUCKET, SECRET, S3Server
from tests.support.scripted_server import Answer, Request, answer_range, scripted
from workers.reporter import ApiReporter

CONTENT = bytes(range(256)) * 40_000  # 10 MB: more than one part of an upload


def put(uri: str, content: bytes) -> None:
    fs, path = open_store(uri)
    fs.makedirs(fs._parent(path), exist_ok=True)
    with fs.open(path, "wb") as file:
        for start in range(0, len(content), 1 << 20):
            file.write(content[start : start + (1 << 20)])


def test_storage_lists_reads_and_removes_folders(store_root: str) -> None:
    storage = Storage(store_root)
    storage.check_writable()
    assert (storage.folders(store_root), storage.file_sizes(store_root)) == ([], {})
    folder = f"{store_root}/jobs/a b ü"
    for name, content in (("big", CONTENT), ("empty", b""), ("deep/er/file", b"x")):
        put(f"{folder}/{name}", content)
    put(f"{store_root}/jobs/a b ünrelated", b"1")
    assert storage.file_sizes(folder) == {"big": len(CONTENT), "empty": 0}
    assert storage.folders(folder) == [f"{folder}/deep"]
    assert storage.folders(store_root) == [f"{store_root}/jobs"]
    assert storage.size(f"{folder}/big") == len(CONTENT)
    assert storage.size(f"{folder}/none") is None
    assert (
        b"".join(storage.read(f"{folder}/big", 5_000_000, 9_999_999))
        == CONTENT[5_000_000:9_999_999]
    )
    assert b"".join(storage.read(f"{folder}/empty", 0, 10)) == b""
    put(f"{folder}/big", b"replaced")
    assert storage.size(f"{folder}/big") == 8
    storage.remove(folder)
    storage.remove(folder)  # it does not exist any more
    assert storage.file_sizes(f"{store_root}/jobs") == {"a b ünrelated": 1}
    # SeaweedFS may still list the folders, without an object in them.
    assert storage.file_sizes(folder) == storage.file_sizes(f"{folder}/deep/er") == {}


@pytest.mark.slow
def test_storage_removes_more_objects_than_one_request_may_name(s3_root: str) -> None:
    storage = Storage(s3_root)
    fs, path = open_store(f"{s3_root}/many")
    for number in range(1001):
        fs.pipe_file(f"{path}/{number:04d}", b"x")
    assert len(storage.file_sizes(f"{s3_root}/many")) == 1001
    storage.remove(f"{s3_root}/many")
    assert storage.file_sizes(f"{s3_root}/many") == {}


def test_object_exists_only_when_it_was_written_to_its_end(s3_root: str) -> None:
    fs, path = open_store(f"{s3_root}/half")

    def write(content: bytes) -> None:
        with fs.open(path, "wb") as file:
            file.write(content)
            raise RuntimeError("the source failed")

    for content in (b"small", CONTENT):
        with pytest.raises(RuntimeError):
            write(content)
        assert not fs.exists(path)
    with pytest.raises(ValueError, match="no mode 'ab'"):
        fs.open(path, "ab")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("root", "variables", "reason"),
    [
        (
            f"s3://{BUCKET}/a",
            {"AWS_SECRET_ACCESS_KEY": "wrong-secret"},
            "SignatureDoesNotMatch: .*key",
        ),
        (f"s3://{BUCKET}/a", {"AWS_ACCESS_KEY_ID": "nobody"}, "InvalidAccessKeyId"),
        ("s3://no-such-bucket/a", {}, "NoSuchBucket"),
        (f"s3://{BUCKET}/a", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "error sending request"),
    ],
)
def test_unusable_store_is_reported_with_its_reason(
    s3_server: S3Server,
    root: str,
    variables: dict[str, str],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("DASL_HOME", str(tmp_path))
    monkeypatch.setenv("DASL_ARTIFACTS_URI", root)
    monkeypatch.setattr("service.object_store._RETRY", timedelta(seconds=0.5))
    with support.environment({**s3_server.environment, **variables}):
        with pytest.raises(
            ValueError, match=rf"\(DASL_ARTIFACTS_URI\) cannot be written: .*{reason}"
        ) as refused:
            Storage(root).check_writable()
        [finding] = [finding for finding in run_checks() if finding.name == "artifacts"]
    assert finding.state == "fail"
    for text in (str(refused.value), finding.message):
        assert "\n" not in text
        assert "wrong-secret" not in text
        assert SECRET not in text


DEAD = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}


@pytest.fixture
def service(tmp_path: Path, s3_root: str) -> Iterator[Callable[..., Service]]:
    """Start an API on SQLite whose artifacts are on S3, with further settings."""
    running: list[Service] = []

    def start(**settings: Any) -> Service:
        running.append(Service(tmp_path / "home", artifacts_uri=s3_root, **settings))
        return running[-1]

    yield start
    for service in running:
        service.close()


def saved(service: Service, tmp_path: Path) -> tuple[Client, str, str, str]:
    """Store a checkpoint, an artifact and a log; return a client, and the ids of job and checkpoint."""
    client = Client(service.url, service.token)
    (tmp_path / "images").mkdir()
    dataset = client.datasets.add(tmp_path / "images", "images")
    service.ingest(dataset)
    job = client.jobs.submit({"dataset": "images"})
    worker = service.start_attempt(job.id)
    uri = worker.start().artifacts_uri
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "weights").write_bytes(CONTENT)
    (scratch / "config").write_bytes(b"")
    (tmp_path / "loss.png").write_bytes(b"a plot")
    with ApiReporter(worker, job.id, 1, uri, 1.0) as reporter:
        reporter.checkpoint(scratch, 10, 1.0, {"knn": 0.5}, final=True)
        reporter.artifact(tmp_path / "loss.png")
    AttemptLog(Storage(service.settings.artifacts_uri), job.id, 1).append(0, b"a line\n", 1 << 20)
    [checkpoint] = client.jobs.checkpoints(job.id)
    return client, job.id, checkpoint.id, f"{uri}/checkpoints/step-000000010/weights"


def test_api_serves_files_and_logs_from_s3(service: Callable[..., Service], tmp_path: Path) -> None:
    running = service()
    client, job, checkpoint, _ = saved(running, tmp_path)
    [empty, weights] = sorted(client.checkpoints.download(checkpoint, tmp_path / "back"))
    assert (weights.read_bytes(), empty.read_bytes()) == (CONTENT, b"")
    [artifact] = client.jobs.artifacts(job)
    [plot] = client.jobs.download_artifacts(job, [artifact], tmp_path)
    assert plot.read_bytes() == b"a plot"
    assert client.jobs.logs(job) == "a line\n"
    with httpx.Client(base_url=running.url, headers=bearer(running)) as http:
        part = http.get(
            f"/v1/checkpoints/{checkpoint}/files/weights", headers={"Range": "bytes=5-8"}
        )
        assert (part.status_code, part.content) == (206, CONTENT[5:9])


@pytest.mark.slow
def test_api_answers_503_while_s3_is_away(
    service: Callable[..., Service], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = service()
    _, job, checkpoint, _ = saved(running, tmp_path)
    monkeypatch.setattr("service.object_store._RETRY", timedelta(seconds=0.2))
    with (
        support.environment(DEAD),
        httpx.Client(base_url=running.url, headers=bearer(running), timeout=60) as http,
    ):
        for path in (
            f"/v1/checkpoints/{checkpoint}/files/weights",
            f"/v1/jobs/{job}/artifacts/loss.png",
            f"/v1/jobs/{job}/logs",
        ):
            answer = http.get(path)
            assert (answer.status_code, answer.headers["content-type"]) == (503, PROBLEM), path
            assert answer.json()["type"] == "store-unavailable"
            assert "127.0.0.1:1" not in answer.text, "the store's address is the operator's"
        for path in (
            "/v1/jobs",
            f"/v1/jobs/{job}",
            f"/v1/jobs/{job}/checkpoints",
            f"/v1/jobs/{job}/artifacts",
            f"/v1/checkpoints/{checkpoint}",
            "/v1/datasets",
        ):
            assert http.get(path).status_code == 200, path


def test_presigned_downloads_come_from_the_store_itself(
    service: Callable[..., Service], tmp_path: Path, s3_server: S3Server
) -> None:
    outside = s3_server.endpoint.replace("127.0.0.1", "localhost")
    running = service(presigned_downloads=True, s3_public_endpoint=outside)
    client, job, checkpoint, _ = saved(running, tmp_path)
    path = f"/v1/checkpoints/{checkpoint}/files/weights"
    with httpx.Client(base_url=running.url, headers=bearer(running)) as http:
        redirect = http.get(path)
        assert (redirect.status_code, redirect.content) == (307, b"")
        location = redirect.headers["location"]
        assert location.startswith(f"{outside}/{BUCKET}/")
        assert "X-Amz-Expires=600" in location
        assert redirect.headers["cache-control"] == "no-store"
        assert SECRET not in location
        head = http.head(path)
        assert (head.status_code, head.headers["content-length"]) == (200, str(len(CONTENT)))
        etag = {"If-None-Match": head.headers["etag"]}
        assert http.get(path, headers=etag).status_code == 304
        assert http.get(f"{path}-unknown").status_code == 404
    # The page may show nothing of another origin: it gets small files from the API.
    with httpx.Client(base_url=running.url) as browser:
        assert browser.post("/v1/session", json={"token": running.token}).is_success
        plot = browser.get(f"/v1/jobs/{job}/artifacts/loss.png")
        assert (plot.status_code, plot.content) == (200, b"a plot")
        assert browser.get(path).status_code == 307
    # Anyone can read with the URL, and only this object.
    assert httpx.get(location, headers={"Range": "bytes=5-8"}).content == CONTENT[5:9]
    assert httpx.get(location.replace("weights?", "config?")).status_code == 403
    assert httpx.put(location, content=b"").status_code == 403

    # The second half of a file whose download was interrupted.
    folder = tmp_path / "back"
    folder.mkdir()
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    (folder / f".weights.{sha256[:16]}.part").write_bytes(CONTENT[:6_000_000])
    received: list[int] = []
    client.checkpoints.download(
        checkpoint, folder, on_bytes=lambda name, have, size: received.append(have)
    )
    assert (folder / "weights").read_bytes() == CONTENT
    assert min(count for count in received if count) > 6_000_000
    [artifact] = client.jobs.artifacts(job)
    [picture] = client.jobs.download_artifacts(job, [artifact], tmp_path)
    assert picture.read_bytes() == b"a plot"


def test_damaged_object_fails_the_verification_of_a_presigned_download(
    service: Callable[..., Service], tmp_path: Path
) -> None:
    client, _, checkpoint, uri = saved(service(presigned_downloads=True), tmp_path)
    put(uri, bytes(len(CONTENT)))
    with pytest.raises(DownloadFailed, match="does not match"):
        client.checkpoints.download(checkpoint, tmp_path / "back")
    put(uri, b"cut")
    with pytest.raises(ApiError, match="missing from the artifact store, or has another size"):
        client.checkpoints.download(checkpoint, tmp_path / "back")


def test_client_sends_its_token_only_to_the_api(
    service: Callable[..., Service], tmp_path: Path
) -> None:
    def answer(request: Request) -> Answer:
        return answer_range(CONTENT if "/weights?" in request.path else b"", request)

    with scripted(answer) as store:
        running = service(presigned_downloads=True, s3_public_endpoint=store.url)
        client, _, checkpoint, _ = saved(running, tmp_path)
        client.checkpoints.download(checkpoint, tmp_path / "back")

        async def download() -> None:
            async with AsyncClient(running.url, running.token) as other:
                await other.checkpoints.download(checkpoint, tmp_path / "again")

        asyncio.run(download())
    assert (tmp_path / "again" / "weights").read_bytes() == CONTENT
    assert len([request for request in store.requests if "/weights?" in request.path]) == 2
    for request in store.requests:
        assert "X-Amz-Signature" in request.path
        assert running.token not in str(request)
        assert "authorization" not in {name.lower() for name in request.headers}


def test_failing_store_is_named_by_a_presigned_download(
    service: Callable[..., Service], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the server, which does answer, nor the signature, which is valid as a token."""
    monkeypatch.setattr("service.client.sync.threads.time.sleep", lambda seconds: None)
    away = service(presigned_downloads=True, s3_public_endpoint="http://127.0.0.1:1")
    client, _, checkpoint, _ = saved(away, tmp_path)
    with pytest.raises(ConnectionFailed) as failed:
        client.checkpoints.download(checkpoint, tmp_path / "back")
    message = str(failed.value)
    assert message.startswith("The artifact store does not answer at http://127.0.0.1:1 (")
    assert "DASL_S3_PUBLIC_ENDPOINT" in message
    assert str(pickle.loads(pickle.dumps(failed.value))) == message

    def refuse(_: Request) -> Answer:
        return Answer(status=403, body=b"<Error><Code>AccessDenied</Code></Error>")

    with scripted(refuse) as store:
        refused = Storage(
            away.settings.artifacts_uri, presigned=True, public_endpoint=store.url
        ).direct_url(f"{away.settings.artifacts_uri}/x")
        assert refused is not None
        monkeypatch.setattr(Storage, "direct_url", lambda storage, uri: refused)
        with pytest.raises(ApiError) as denied:
            client.checkpoints.download(checkpoint, tmp_path / "back")
    assert str(denied.value).startswith(f"The artifact store at {store.url} answered 403")
    assert "Signature" not in message + str(denied.value)


def bearer(service: Service) -> dict[str, str]:
    return {"Authorization": f"Bearer {service.token}"}
