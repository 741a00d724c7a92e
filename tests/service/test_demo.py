"""The images of the demo, as a data set of a tenant."""

import errno
import hashlib
import io
import os
import tarfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import func, select

from examples.fonts import ARCHIVE
from service.db.models import AuditEntry, Dataset
from service.demo.service import NAME
from service.object_store import open_store
from tests.support.api_under_test import Api, current_version, refused
from tests.support.uploads import dispatcher_of_uploads


def add(api: Api, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """Send the request and return its answer."""
    answer = api.client.post("/v1/demo", headers=headers)
    assert answer.status_code == 200, answer.text
    demo: dict[str, Any] = answer.json()
    return demo


def test_images_are_uploaded_once_and_ingested_like_others(api: Api) -> None:
    first = add(api)["dataset"]
    assert (first["name"], first["state"]) == (NAME, "uploading")
    assert first["upload"]["received"] == first["upload"]["size"]
    dispatcher_of_uploads(api).round()
    again = add(api)["dataset"]
    assert (again["id"], again["state"]) == (first["id"], "pending")
    fs, path = open_store(again["uri"])
    content = fs.cat_file(path)
    assert hashlib.sha256(content).hexdigest() == again["upload"]["sha256"]
    with tarfile.open(fileobj=io.BytesIO(content)) as images, tarfile.open(ARCHIVE) as shipped:
        assert images.getnames() == shipped.getnames()
        assert again["source"]["split"] in {name.partition("/")[0] for name in images.getnames()}


def test_spec_of_the_answer_can_be_submitted(api: Api) -> None:
    api.dataset("fonts")  # one of the user's own, which the demo does not touch
    demo = add(api)
    refused(api.client.post("/v1/jobs", json=demo["spec"]), 409, type="dataset-not-ready")
    dispatcher_of_uploads(api).round()
    with api.database.write() as session:
        dataset = session.get_one(Dataset, demo["dataset"]["id"])
        dataset.state = "ready"
        dataset.facts = {"num_images": 4080, "num_classes": 170, "median_size": 48}
        session.add(current_version(dataset))
    answer = api.client.post("/v1/jobs", json=add(api)["spec"])
    assert answer.status_code == 201, answer.text
    assert answer.json()["dataset"]["id"] == demo["dataset"]["id"]


def test_two_requests_at_once_get_the_same_data_set(api: Api) -> None:
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: add(api), range(4)))
    assert len({answer["dataset"]["id"] for answer in answers}) == 1
    (listed,) = api.client.get("/v1/datasets").json()["data"]
    assert listed["upload"]["received"] == listed["upload"]["size"]
    # One row for the data set, one for its images.
    with api.database.read() as session:
        assert session.scalar(select(func.count()).select_from(AuditEntry)) == 2


def test_repeated_request_completes_an_interrupted_one(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        refused(api.client.post("/v1/demo"), 507, type="storage-full")
    (begun,) = api.client.get("/v1/datasets").json()["data"]
    assert (begun["state"], begun["upload"]["received"]) == ("uploading", 0)
    dataset = add(api)["dataset"]
    assert dataset["id"] == begun["id"]
    assert dataset["upload"]["received"] == dataset["upload"]["size"]


def test_tenants_have_images_of_their_own(api: Api) -> None:
    other = add(api, api.token("submit", tenant="other"))["dataset"]
    assert add(api)["dataset"]["id"] != other["id"]


def test_another_data_set_of_this_name_is_left_alone(api: Api) -> None:
    dataset = api.dataset(NAME)
    problem = refused(api.client.post("/v1/demo"), 409, type="name-taken")
    assert problem["dataset"]["id"] == dataset
    assert f"dasl datasets rm {dataset}" in problem["detail"]
    assert api.client.delete(f"/v1/datasets/{dataset}").status_code == 204
    assert add(api)["dataset"]["id"] != dataset


def test_limits_of_uploads_apply(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.artifacts.free_space.free_bytes", lambda _: 1_000_000)
    refused(api.client.post("/v1/demo"), 507, type="storage-full")
    assert api.client.get("/v1/datasets").json()["data"] == []
