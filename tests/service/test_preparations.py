"""Preparations over the API: requested once, watched through the worker API, deleted."""

from typing import Any

import pytest

from service.db.models import Dataset, Preparation
from service.dispatcher.garbage import Garbage
from service.tasks.repository import preparations
from service.tasks.service import MAX_PENDING
from tests.support.api_under_test import Api, TaskRun, current_version, refused

SPEC = {"backbone": {"image_size": 64}, "train": {"image_cache": "jpeg"}}
RESULT = {"images": 7, "cached": 6, "form": "jpeg", "bytes": 100, "shared": True, "unreadable": 1}


def request(api: Api, dataset: str, spec: dict[str, Any] = SPEC) -> Any:
    return api.client.post(f"/v1/datasets/{dataset}/preparations", json={"spec": spec})


def requested(api: Api, dataset: str, size: int = 64) -> str:
    answer = request(api, dataset, {"backbone": {"image_size": size}})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def shown(api: Api, preparation: str) -> Any:
    return api.client.get(f"/v1/preparations/{preparation}").json()


def test_preparation_is_requested_once_and_watched(api: Api) -> None:
    dataset = api.dataset()
    answer = request(api, dataset)
    assert answer.status_code == 201
    preparation = answer.json()
    assert answer.headers["location"] == f"/v1/preparations/{preparation['id']}"
    expected = {
        "dataset_id": dataset,
        "dataset_version": 1,
        "image_size": 64,
        "channels": 3,
        "image_cache": "jpeg",
        "state": "queued",
        "progress": None,
        "result": None,
    }
    assert {name: preparation[name] for name in expected} == expected

    run = TaskRun(api, preparation["id"], preparations)
    started = run.post("start").json()
    assert started["dataset"]["id"] == dataset
    assert [started[name] for name in ("image_size", "channels", "image_cache")] == [64, 3, "jpeg"]
    progress = {"images_read": 3, "images_total": 7}
    assert run.post("heartbeat", progress=progress).json() == {"desired": "run"}
    refused(run.post("heartbeat", progress={"step": 1}), 422)
    assert shown(api, preparation["id"])["progress"].items() >= progress.items()
    again = request(api, dataset)
    assert (again.status_code, again.json()["id"]) == (200, preparation["id"])

    refused(run.post("finish", state="succeeded"), 422)
    refused(run.post("metrics", points=[]), 409, None, "wrong-kind-of-run")
    for _ in range(2):  # its answer may get lost
        assert run.post("finish", state="succeeded", result=RESULT).status_code == 204
    done = shown(api, preparation["id"])
    assert (done["state"], done["result"]) == ("succeeded", RESULT | {"not_cached": None})
    assert done["finished_at"] is not None
    # The cache may have lost the images since.
    assert requested(api, dataset) != preparation["id"]
    for action in ("start", "heartbeat"):
        refused(run.post(action), 409, None, "stale-attempt")


def test_other_settings_versions_and_failures_are_prepared_again(api: Api) -> None:
    dataset = api.dataset()
    first = requested(api, dataset)
    other = requested(api, dataset, 96)
    with api.database.write() as session:
        row = session.get_one(Dataset, dataset)
        row.version = 2
        session.add(current_version(row))
    newer = requested(api, dataset)
    assert shown(api, newer)["dataset_version"] == 2
    run = TaskRun(api, newer, preparations)
    run.post("start")
    error = {"type": "not-prepared", "message": "none of the images could be cached"}
    assert run.post("finish", state="failed", error=error).status_code == 204
    assert shown(api, newer)["error"] == error
    again = requested(api, dataset)
    listed = api.client.get(f"/v1/datasets/{dataset}/preparations", params={"limit": 3}).json()
    assert [each["id"] for each in listed["data"]] == [again, newer, other]
    after = {"after": listed["next"]}
    rest = api.client.get(f"/v1/datasets/{dataset}/preparations", params=after).json()["data"]
    assert [each["id"] for each in rest] == [first]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"backbone": {"image_size": -1}}, "backbone.image_size"),
        ({"train": {"image_cache": "png"}}, "train.image_cache"),
        ({"backbone": {"in_channels": 2}, "train": {"image_cache": "jpeg"}}, "train.image_cache"),
    ],
)
def test_problems_name_the_field_as_for_a_job(api: Api, spec: dict[str, Any], field: str) -> None:
    dataset = api.dataset()
    refused(request(api, dataset, spec), 422, field)
    assert api.client.get(f"/v1/datasets/{dataset}/preparations").json()["data"] == []


def test_only_a_ready_data_set_is_prepared(api: Api) -> None:
    refused(request(api, api.dataset("new", state="pending")), 409, None, "dataset-not-ready")
    refused(request(api, "ds_" + "0" * 26), 404)
    refused(request(api, api.dataset("theirs", tenant="other")), 404)


@pytest.mark.dialect
def test_pending_preparations_of_a_token_are_limited(api: Api) -> None:
    dataset = api.dataset()
    for number in range(MAX_PENDING):
        requested(api, dataset, 32 * (number + 1))
    problem = refused(
        request(api, dataset, {"backbone": {"image_size": 320}}), 429, None, "quota-exceeded"
    )
    assert problem["quota"] == "pending_preparations"
    assert request(api, dataset, {"backbone": {"image_size": 32}}).status_code == 200


def test_deleted_preparation_stops_and_can_be_requested_again(api: Api, garbage: Garbage) -> None:
    dataset = api.dataset()
    preparation = requested(api, dataset)
    run = TaskRun(api, preparation, preparations)
    run.post("start")
    assert api.client.delete(f"/v1/preparations/{preparation}").status_code == 204
    refused(run.post("heartbeat"), 409, None, "stale-attempt")
    refused(api.client.get(f"/v1/preparations/{preparation}"), 404)
    refused(api.client.delete(f"/v1/preparations/{preparation}"), 404)
    other = requested(api, dataset)
    assert api.client.delete(f"/v1/datasets/{dataset}").status_code == 204
    refused(api.client.get(f"/v1/preparations/{other}"), 404)
    garbage.round()
    with api.database.read() as session:
        assert session.get(Preparation, other) is None
