"""`GET /v1/metrics`: series of several jobs in one answer, within limits of size, time and tenant."""

from typing import Any

import pytest
from sqlalchemy import insert

from service.db.models import Metric
from tests.support.api_under_test import Api, Worker, refused


@pytest.fixture
def workers(api: Api) -> list[Worker]:
    """The workers of three jobs."""
    api.dataset()
    started = [api.start(api.submit()["id"]) for _ in range(3)]
    for worker in started:
        assert worker.post("start").status_code == 200
    return started


def report(worker: Worker, steps: range, **values: float) -> None:
    points = [{"step": s, "time": float(s), "values": values | {"loss": s / 10}} for s in steps]
    assert worker.post("metrics", points=points).is_success


def shown(api: Api, **params: Any) -> list[dict[str, Any]]:
    answer = api.client.get("/v1/metrics", params=params)
    assert answer.status_code == 200, answer.text
    data: list[dict[str, Any]] = answer.json()["data"]
    return data


def test_metrics_of_several_jobs_are_columns_per_job(api: Api, workers: list[Worker]) -> None:
    first, second, third = workers
    report(first, range(1, 4), lr=0.5)
    report(second, range(2, 6))
    ids = [second.job_id, first.job_id, third.job_id]
    data = shown(api, job=[*ids, ids[0]], name=["loss", "lr", "loss"])
    assert [each["job_id"] for each in data] == ids
    assert data[0]["step"] == [2, 3, 4, 5]
    assert data[0]["values"] == {"loss": [0.2, 0.3, 0.4, 0.5]}
    assert data[1]["values"] == {"loss": [0.1, 0.2, 0.3], "lr": [0.5] * 3}
    assert data[2] == {"job_id": third.job_id, "step": [], "time": [], "values": {}}
    alone = api.client.get(f"/v1/jobs/{first.job_id}/metrics", params={"name": "loss"}).json()
    assert shown(api, job=first.job_id, name="loss") == [{"job_id": first.job_id, **alone}]
    assert shown(api, job=ids[0], name="loss", from_step=4)[0]["step"] == [4, 5]
    assert shown(api, job=ids[0], name="loss", from_step=3, to_step=4)[0]["step"] == [3, 4]
    assert shown(api, job=ids[0], name="loss", to_step=1)[0]["step"] == []


def test_evaluated_metrics_are_those_of_the_trained_network(
    api: Api, workers: list[Worker]
) -> None:
    supervised, other, _ = workers
    for worker in (supervised, other):
        for step, value in ((1, 0.25), (3, 0.5)):
            for subject in ("raw", "untrained", "backbone"):
                report_: dict[str, Any] = {"step": step, "epoch": 1.0, "subject": subject}
                worker.post(
                    "evaluations", **report_, metrics={"knn_top1": value}
                ).raise_for_status()
    last: dict[str, Any] = {"step": 3, "epoch": 1.0, "subject": "embedding"}
    supervised.post("evaluations", **last, metrics={"knn_top1": 0.75}).raise_for_status()
    report(other, range(1, 4))
    data = shown(api, job=[supervised.job_id, other.job_id], name=["loss", "knn_top1"])
    assert data[0]["values"] == {"knn_top1": [0.75]}
    assert data[1]["step"] == [1, 2, 3]
    assert data[1]["values"] == {"loss": [0.1, 0.2, 0.3], "knn_top1": [0.25, None, 0.5]}
    [early] = shown(api, job=other.job_id, name=["loss", "knn_top1"], to_step=2)
    assert early["values"] == {"loss": [0.1, 0.2], "knn_top1": [0.25, None]}


def test_long_series_are_downsampled_with_their_extremes(api: Api, workers: list[Worker]) -> None:
    job_id = workers[0].job_id
    with api.database.write() as session:
        rows = [
            {"job_id": job_id, "name": "loss", "step": step, "attempt": 1, "time": 1.0, "value": v}
            for step in range(1, 20_001)
            if (v := {7_777: 100.0, 12_345: -100.0}.get(step, step % 7 / 7)) is not None
        ]
        session.execute(insert(Metric), rows)
    for params, most in (({}, 1000), ({"max_points": 50}, 50)):
        [data] = shown(api, job=job_id, name="loss", **params)
        assert len(data["step"]) <= most
        assert {1, 7_777, 12_345, 20_000} <= set(data["step"])
        values = data["values"]["loss"]
        assert (max(values), min(values)) == (100.0, -100.0)


def test_job_of_another_tenant_looks_nonexistent(api: Api, workers: list[Worker]) -> None:
    api.dataset("theirs", tenant="other")
    theirs = api.token("submit", tenant="other")
    spec = {"dataset": "theirs"}
    foreign = api.client.post("/v1/jobs", json=spec, headers=theirs).json()["id"]
    for job in (foreign, f"job_{'0' * 26}", "job_x", "é"):
        params = {"job": [workers[0].job_id, job], "name": "loss"}
        problem = refused(api.client.get("/v1/metrics", params=params), 404, None, "not-found")
        assert job in problem["detail"]


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"name": "loss"}, "job"),
        ({"job": "x"}, "name"),
        ({"job": [f"job_{n}" for n in range(101)], "name": "loss"}, "job"),
        ({"job": ["a", "b", "c", "d", "e"], "name": [str(n) for n in range(41)]}, "name"),
        ({"job": "x", "name": "loss", "max_points": 1}, "max_points"),
        ({"job": "x", "name": "loss", "max_points": 10_001}, "max_points"),
        ({"job": "x", "name": "loss", "from_step": -1}, "from_step"),
        ({"job": "x", "name": "loss", "to_step": 2**63}, "to_step"),
        ({"job": "x", "name": "a\0"}, "name"),
        ({"job": "x" * 41, "name": "loss"}, "job"),
    ],
)
def test_request_beyond_the_limits_names_the_field(
    api: Api, params: dict[str, Any], field: str
) -> None:
    problem = refused(api.client.get("/v1/metrics", params=params), 422)
    assert problem["errors"][0]["field"].startswith(field)
