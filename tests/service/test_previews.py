"""Previews over the API: requested, drawn through the worker API, downloaded, deleted."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from service.db.models import Preview
from service.dispatcher.garbage import Garbage
from service.dispatcher.retention import Retention
from service.tasks.repository import previews
from service.tasks.service import MAX_PENDING
from tests.support.api_under_test import Api, TaskRun, refused

SHA = "0" * 64
SPEC = {"method": {"name": "dino", "local_crops": 3}, "augment": {"flip": 0.25}}


def request(api: Api, dataset: str, key: str | None = None, **body: Any) -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    path = f"/v1/datasets/{dataset}/previews"
    return api.client.post(path, json={"spec": SPEC} | body, headers=headers)


def requested(api: Api, dataset: str) -> str:
    answer = request(api, dataset)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def folder_of(api: Api, preview: str) -> Path:
    return Path(api.context.storage.preview_uri(preview).removeprefix("file://")) / "1"


def draw(api: Api, preview: str) -> dict[str, bytes]:
    """Draw a preview, as the worker does, with two files; return their content."""
    contents = {"sheet.png": b"a picture", "preview.json": b"{}"}
    run = TaskRun(api, preview, previews)
    start = run.post("start").json()
    folder = folder_of(api, preview)
    assert f"file://{folder.parent}" == start["artifacts_uri"]
    folder.mkdir(parents=True)
    files = []
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        files.append({"name": name, "size": len(content), "sha256": SHA})
    for _ in range(2):  # its answer may get lost
        answer = run.post("finish", state="succeeded", uri=f"file://{folder}", files=files)
        assert answer.status_code == 204, answer.text
    return contents


def test_preview_is_requested_drawn_downloaded_and_deleted(api: Api, garbage: Garbage) -> None:
    dataset = api.dataset()
    # The data set of the path replaces that of the spec.
    spec = SPEC | {"name": "a job", "dataset": "elsewhere"}
    answer = request(api, dataset, images=5, spec=spec)
    preview = answer.json()
    assert preview["resolved"]["dataset"] == dataset
    assert answer.headers["location"] == f"/v1/previews/{preview['id']}"
    assert (preview["state"], preview["images"], preview["files"]) == ("queued", 5, [])
    assert preview["dataset_id"] == dataset
    assert preview["resolved"]["augment"]["flip"] == 0.25
    assert preview["resolved"]["method"]["local_size"] > 0
    assert api.client.get(f"/v1/previews/{preview['id']}").json() == preview

    contents = draw(api, preview["id"])
    drawn = api.client.get(f"/v1/previews/{preview['id']}").json()
    assert drawn["state"] == "succeeded"
    assert drawn["finished_at"] is not None
    kinds = {file["name"]: file["content_type"] for file in drawn["files"]}
    assert kinds == {"sheet.png": "image/png", "preview.json": "application/json"}
    path = f"/v1/previews/{preview['id']}/files"
    for name, content in contents.items():
        answer = api.client.get(f"{path}/{name}")
        assert (answer.content, answer.headers["content-type"]) == (content, kinds[name])
        assert answer.headers["x-content-type-options"] == "nosniff"
    part = api.client.get(f"{path}/sheet.png", headers={"Range": "bytes=2-4"})
    assert (part.status_code, part.content) == (206, b"pic")
    refused(api.client.get(f"{path}/../{preview['id']}"), 404)
    refused(api.client.get(f"{path}/other.png"), 404)

    other = requested(api, dataset)
    listed = api.client.get(f"/v1/datasets/{dataset}/previews", params={"limit": 1}).json()
    assert [entry["id"] for entry in listed["data"]] == [other]
    after = {"after": listed["next"]}
    [summary] = api.client.get(f"/v1/datasets/{dataset}/previews", params=after).json()["data"]
    assert summary == {name: drawn[name] for name in summary}
    assert "files" not in summary

    assert api.client.delete(f"/v1/previews/{preview['id']}").status_code == 204
    for each in ("", "/files/sheet.png"):
        refused(api.client.get(f"/v1/previews/{preview['id']}{each}"), 404)
    refused(api.client.delete(f"/v1/previews/{preview['id']}"), 404)
    assert folder_of(api, preview["id"]).exists()
    garbage.round()
    assert not folder_of(api, preview["id"]).parent.exists()
    with api.database.read() as session:
        assert session.get(Preview, preview["id"]) is None
        assert session.get(Preview, other) is not None
    audit = api.client.get("/v1/audit", headers=api.token("admin")).json()["data"]
    assert [entry["method"] for entry in audit][:3] == ["DELETE", "POST", "POST"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"spec": {"method": {"name": "dino", "local_crops": -1}}}, "method.local_crops"),
        ({"spec": {"augment": {"flips": 1}}}, "augment.flips"),
        ({"spec": {"backbone": {"name": "resnet"}}}, "backbone.name"),
        ({"spec": {"train": {"batch_size": 1000}}}, "train.batch_size"),
        ({"spec": {"backbone": {"pretrained": "/nowhere"}}}, "backbone.pretrained"),
        ({"spec": {}, "images": 65}, "images"),
        ({"spec": {}, "images": 0}, "images"),
        ({"spec": 3}, "spec"),
    ],
)
def test_problems_name_the_field_as_for_a_job(api: Api, body: dict[str, Any], field: str) -> None:
    dataset = api.dataset()
    problem = refused(request(api, dataset, **body), 422, field)
    if "images" not in body and body["spec"] != 3:
        job = {"dataset": "emoji"} | body["spec"]
        submitted = refused(api.client.post("/v1/jobs", json=job), 422, field)
        assert problem["errors"] == submitted["errors"]
    assert api.client.get(f"/v1/datasets/{dataset}/previews").json()["data"] == []


def test_only_a_ready_data_set_has_previews(api: Api) -> None:
    refused(request(api, api.dataset("new", state="pending")), 409, None, "dataset-not-ready")
    refused(request(api, api.dataset("bad", state="failed")), 422, "dataset")
    refused(request(api, "ds_" + "0" * 26), 404)
    refused(request(api, api.dataset("theirs", tenant="other")), 404)
    api.dataset()
    refused(request(api, "emoji"), 404)


def test_repeated_request_gets_the_first_answer(api: Api) -> None:
    dataset = api.dataset()
    first = request(api, dataset, "a-key")
    again = request(api, dataset, "a-key")
    assert again.json() == first.json()
    assert again.headers["idempotency-replayed"] == "true"
    assert len(api.client.get(f"/v1/datasets/{dataset}/previews").json()["data"]) == 1
    refused(request(api, dataset, "a-key", images=9), 422, None, "idempotency-key-reused")
    job = api.client.post(
        "/v1/jobs", json={"dataset": "emoji"}, headers={"Idempotency-Key": "a-key"}
    )
    refused(job, 422, None, "idempotency-key-reused")
    assert api.client.delete(f"/v1/previews/{first.json()['id']}").status_code == 204
    refused(request(api, dataset, "a-key"), 410, None, "preview-deleted")


@pytest.mark.dialect
def test_pending_previews_of_a_token_are_limited(api: Api) -> None:
    dataset = api.dataset()
    pending = [requested(api, dataset) for _ in range(MAX_PENDING)]
    TaskRun(api, pending[0], previews)
    problem = refused(request(api, dataset), 429, None, "quota-exceeded")
    assert (problem["limit"], problem["used"]) == (MAX_PENDING, MAX_PENDING)
    api.client.headers.update(api.token("submit"))
    requested(api, dataset)
    assert api.client.delete(f"/v1/previews/{pending[0]}").status_code == 204


def test_run_reports_only_into_its_own_preview(api: Api) -> None:
    preview = requested(api, api.dataset())
    post = TaskRun(api, preview, previews).post
    started = post("start").json()
    assert started["images"] == 8
    assert started["dataset"]["name"] == "emoji"
    assert started["spec"]["augment"]["flip"] == 0.25
    assert post("heartbeat").json() == {"desired": "run"}
    file = {"name": "sheet.png", "size": 1, "sha256": SHA}
    elsewhere = api.context.storage.dataset_uri("ds_1")
    refused(post("finish", state="succeeded", uri=elsewhere, files=[file]), 422, "uri")
    for files in ([], [file | {"name": "../x"}]):
        uri = f"{started['artifacts_uri']}/1"
        refused(post("finish", state="succeeded", uri=uri, files=files), 422)
    refused(post("metrics", points=[]), 409, None, "wrong-kind-of-run")
    error = {"type": "ValueError", "message": "no such images"}
    assert post("finish", state="failed", error=error).status_code == 204
    failed = api.client.get(f"/v1/previews/{preview}").json()
    assert (failed["state"], failed["error"]) == ("failed", error)
    for action in ("start", "heartbeat"):
        refused(post(action), 409, None, "stale-attempt")
    refused(post("finish", state="succeeded", uri=uri, files=[file]), 409, None, "stale-attempt")


def test_preview_goes_with_its_data_set(api: Api, garbage: Garbage) -> None:
    dataset = api.dataset()
    preview = requested(api, dataset)
    draw(api, preview)
    waiting = requested(api, dataset)
    assert api.client.delete(f"/v1/datasets/{dataset}").status_code == 204
    refused(api.client.get(f"/v1/previews/{preview}"), 404)
    garbage.round()
    assert not folder_of(api, preview).parent.exists()
    with api.database.read() as session:
        assert [session.get(Preview, id) for id in (preview, waiting)] == [None, None]


def test_previews_are_counted_and_the_oldest_go_when_the_store_is_full(
    api: Api, garbage: Garbage
) -> None:
    dataset, admin = api.dataset(), api.token("admin")
    one, two, waiting = (requested(api, dataset) for _ in range(3))
    sizes = [sum(map(len, draw(api, preview).values())) for preview in (one, two)]

    def stored() -> tuple[int, int]:
        report = api.client.get("/v1/storage", headers=admin).json()
        count, total = report["previews"]["count"], report["previews"]["bytes"]
        tenants = [{"tenant": "default", "bytes": total, "uploads": 0}] if total else []
        assert (report["store"]["bytes"], report["store"]["tenants"]) == (total, tenants)
        return count, total

    def shrink(most: int) -> list[str]:
        Retention(garbage._context).shrink(most)
        listed = api.client.get(f"/v1/datasets/{dataset}/previews").json()["data"]
        return [preview["id"] for preview in listed]

    assert stored() == (2, sum(sizes))
    assert api.client.get(f"/v1/previews/{one}").json()["size"] == sizes[0]
    assert shrink(sum(sizes)) == shrink(0) == [waiting, two, one], "they ended just now"
    with api.database.write() as session:
        for preview in (one, two):
            row = session.get_one(Preview, preview)
            assert row.finished_at is not None
            row.finished_at -= timedelta(hours=2)
    assert shrink(sum(sizes) - 1) == [waiting, two]
    assert stored() == (1, sizes[1])
    assert shrink(0) == [waiting]
    assert stored() == (0, 0)
