"""File downloads: ranges, entity tags, and names that try to leave their folder."""

import hashlib
from pathlib import Path

import pytest

from tests.support.api_under_test import Api, Worker, refused

CONTENT = bytes(range(256)) * 20
SHA = hashlib.sha256(CONTENT).hexdigest()


def stored(api: Api) -> tuple[Worker, str, str]:
    """Store a checkpoint and an artifact; return the worker and the URLs of files and artifact."""
    worker = api.running()
    folder = Path(worker.uri.removeprefix("file://"))
    files = []
    for name, content in (("backbone.safetensors", CONTENT), ("empty.json", b"")):
        path = folder / "checkpoints" / "10" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        files.append({"name": name, "size": len(content), "sha256": sha256})
    (folder / "checkpoints" / "secret").write_text("not in a manifest")
    (folder / "checkpoints" / "10" / "unlisted").write_text("not in a manifest")
    (folder / "loss.png").write_bytes(CONTENT)
    answer = worker.post(
        "checkpoints", step=10, epoch=1, uri=f"{worker.uri}/checkpoints/10", files=files
    )
    artifact = {"uri": f"{worker.uri}/loss.png", "size": len(CONTENT), "sha256": SHA}
    worker.post("artifacts", name="loss.png", content_type="image/png", **artifact)
    folder_url = f"/v1/checkpoints/{answer.json()['id']}/files"
    return worker, folder_url, f"/v1/jobs/{worker.job_id}/artifacts/loss.png"


def test_download_returns_whole_file_with_headers(api: Api) -> None:
    _, folder, artifact = stored(api)
    answer = api.client.get(f"{folder}/backbone.safetensors")
    assert (answer.status_code, answer.content) == (200, CONTENT)
    assert answer.headers["etag"] == f'"{SHA}"'
    assert answer.headers["content-length"] == str(len(CONTENT))
    assert answer.headers["accept-ranges"] == "bytes"
    assert "filename*=UTF-8''backbone.safetensors" in answer.headers["content-disposition"]
    head = api.client.head(f"{folder}/backbone.safetensors")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(CONTENT))
    plot = api.client.get(artifact)
    assert (plot.content, plot.headers["content-type"]) == (CONTENT, "image/png")
    empty = api.client.get(f"{folder}/empty.json")
    assert (empty.status_code, empty.content) == (200, b"")


@pytest.mark.parametrize(
    ("range", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=10-19", 10, 20),
        ("Bytes=10-19", 10, 20),
        ("bytes=5000-", 5000, 5120),
        ("bytes=5119-999999", 5119, 5120),
        ("bytes=-100", 5020, 5120),
        ("bytes=-999999", 0, 5120),
        ("bytes=0-", 0, 5120),
    ],
)
def test_download_returns_one_range(api: Api, range: str, start: int, stop: int) -> None:
    _, folder, _ = stored(api)
    answer = api.client.get(f"{folder}/backbone.safetensors", headers={"Range": range})
    assert answer.status_code == 206
    assert answer.content == CONTENT[start:stop]
    assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/5120"
    assert answer.headers["content-length"] == str(stop - start)


@pytest.mark.parametrize(
    "range",
    [
        "bytes=5120-",
        "bytes=99999-100000",
        "bytes=-0",
        f"bytes={'9' * 5000}-",
        f"bytes={'9' * 30}-{'9' * 31}",
    ],
)
def test_range_outside_the_file_is_not_satisfiable(api: Api, range: str) -> None:
    _, folder, _ = stored(api)
    answer = api.client.get(f"{folder}/backbone.safetensors", headers={"Range": range})
    refused(answer, 416, None, "range-not-satisfiable")
    assert answer.headers["content-range"] == "bytes */5120"
    refused(api.client.get(f"{folder}/empty.json", headers={"Range": "bytes=0-"}), 416)


@pytest.mark.parametrize(
    "range", ["bytes=1-2,5-6", "bytes=5-2", "lines=1-2", "bytes=a-b", "bytes=-", "x" * 1000]
)
def test_invalid_range_is_ignored(api: Api, range: str) -> None:
    _, folder, _ = stored(api)
    answer = api.client.get(f"{folder}/backbone.safetensors", headers={"Range": range})
    assert (answer.status_code, answer.content) == (200, CONTENT)


def test_download_honors_conditional_headers(api: Api) -> None:
    _, folder, _ = stored(api)
    url = f"{folder}/backbone.safetensors"

    def status(**headers: str) -> int:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        return int(api.client.get(url, headers=named).status_code)

    assert status(if_none_match=f'"{SHA}"') == 304
    assert status(if_none_match=f'"x", W/"{SHA}"') == 304
    assert status(if_none_match="*") == 304
    assert status(if_none_match='"x"') == 200
    assert status(range="bytes=0-1", if_range=f'"{SHA}"') == 206
    assert status(range="bytes=0-1", if_range='"other"') == 200
    assert status(if_match=f'"x", "{SHA}"') == status(if_match="*") == 200
    assert status(if_match='"x"') == status(if_match=f'W/"{SHA}"') == 412
    for range in ("bytes=0-1", "bytes=99999-"):
        head = api.client.head(url, headers={"Range": range})
        assert (head.status_code, head.headers["content-length"]) == (200, str(len(CONTENT)))


@pytest.mark.parametrize(
    "name",
    [
        "../secret",
        "..%2fsecret",
        "%2e%2e%2fsecret",
        "%2e%2e/secret",
        "..%5csecret",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "a/../../secret",
        "backbone.safetensors%00",
        ".hidden",
        "x" * 300,
    ],
)
def test_download_refuses_names_that_leave_their_folder(api: Api, name: str) -> None:
    _, folder, artifact = stored(api)
    for base in (folder, artifact.removesuffix("/loss.png")):
        # Some clients resolve `%2e%2e/` and `../` before sending; then the answer is 404.
        answer = api.client.get(f"{base}/{name}")
        problem = refused(answer, answer.status_code)
        assert answer.status_code in (404, 422)
        assert problem["type"] in ("unsafe-name", "not-found")
        assert b"manifest" not in answer.content


def test_download_serves_only_files_in_the_manifest(api: Api) -> None:
    _, folder, _ = stored(api)
    refused(api.client.get(f"{folder}/unlisted"), 404, None, "not-found")
    refused(api.client.get(f"{folder}/"), 422, None, "unsafe-name")
    refused(api.client.get("/v1/checkpoints/ckpt_x/files/a"), 404)


def test_download_reports_lost_file(api: Api) -> None:
    worker, folder, _ = stored(api)
    path = Path(worker.uri.removeprefix("file://"), "checkpoints/10/backbone.safetensors")
    path.write_bytes(b"cut short")
    refused(api.client.get(f"{folder}/backbone.safetensors"), 404, None, "file-missing")
    path.unlink()
    refused(api.client.get(f"{folder}/backbone.safetensors"), 404, None, "file-missing")
