"""The list of jobs: every order with its pages, filters, search, and small rows."""

import base64
import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from service.db.models import Evaluation, Job
from service.jobs.listing.repository import COLUMNS
from tests.support.api_under_test import Api, decide, refused, snapshot
from tests.support.statements import recorded_statements

pytestmark = pytest.mark.dialect


@pytest.fixture
def jobs(api: Api) -> list[str]:
    """Jobs with equal, different and missing values in every order."""
    api.dataset()
    api.dataset("birds")
    names = ["b", "a", "c", "a", "B", "ü", "a"]
    ids = [
        api.submit(
            name=name,
            priority=number % 3,
            dataset="birds" if number % 2 else "emoji",
            tags={"team": f"T-{number % 2}"},
        )["id"]
        for number, name in enumerate(names)
    ]
    now = datetime.now(UTC)
    with api.database.write() as session:
        for number, id in enumerate(ids):
            ended = now - timedelta(hours=number % 3) if number % 4 else None
            values = {"finished_at": ended, "started_at": ended}
            session.execute(update(Job).where(Job.id == id).values(values))
            for step in range(number % 4):
                value = random.Random(number // 2 * 10 + step).random()
                for subject in ("raw", "backbone"):
                    session.add(
                        Evaluation(
                            id=f"eval_{id[4:]}{step}{subject[0]}",
                            job_id=id,
                            attempt=1,
                            step=step,
                            epoch=1.0,
                            subject=subject,
                            metrics={
                                "knn_top1": value if subject == "backbone" else 2.0,
                                "uniformity": -value,
                            },
                            created_at=now,
                        )
                    )
    return ids


def page(api: Api, **params: Any) -> dict[str, Any]:
    answer = api.client.get("/v1/jobs", params=params)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def listed(api: Api, **params: Any) -> list[str]:
    """Return the ids of all pages."""
    seen: list[str] = []
    while True:
        document = page(api, **params)
        seen += [job["id"] for job in document["data"]]
        if not document["has_more"]:
            return seen
        params["after"] = document["next"]


def test_pages_hold_in_every_order(api: Api, jobs: list[str]) -> None:
    matching = set(listed(api, q="A", limit=200))
    for sort in (*COLUMNS, "best.knn_top1", "best.uniformity", "best.recall_at_1"):
        for order, limit in ((sort, 3), (f"-{sort}", 2)):
            whole = listed(api, sort=order, limit=200)
            assert sorted(whole) == sorted(jobs)
            assert listed(api, sort=order, limit=limit) == whole, order
            expected = [id for id in whole if id in matching]
            assert listed(api, sort=order, limit=limit, q="A") == expected, order
    assert listed(api, sort="created_at") == jobs
    assert listed(api, sort="-created_at") == listed(api) == jobs[::-1]


def test_order_by_best_metric_takes_its_direction(api: Api, jobs: list[str]) -> None:
    best: dict[str, float] = {}
    rows = {job["id"]: job["best"] for job in page(api, summary=True)["data"]}
    for id in jobs:
        if "knn_top1" in rows[id]:
            best[id] = rows[id]["knn_top1"]
    assert 0 < len(best) < len(jobs)
    assert max(best.values()) < 1.0, "the raw pixels do not count"
    ranked = listed(api, sort="-best.knn_top1")
    assert ranked[: len(best)] == sorted(best, key=lambda id: (best[id], id), reverse=True)
    assert ranked[len(best) :] == sorted(set(jobs) - set(best), reverse=True)
    # Of uniformity, less is better: the metric is -knn here.
    assert listed(api, sort="best.uniformity")[: len(best)] == sorted(
        best, key=lambda id: (-best[id], id)
    )


def test_filters_and_search_of_jobs(api: Api, jobs: list[str]) -> None:
    of_birds = [id for number, id in enumerate(jobs) if number % 2]
    dataset = page(api, dataset="birds")["data"][0]["dataset"]["id"]
    for value in ("birds", dataset):
        assert sorted(listed(api, dataset=value, limit=2)) == of_birds
    assert listed(api, dataset="unknown") == []
    assert sorted(listed(api, q="t-1")) == of_birds, "the value of a tag"
    assert sorted(listed(api, q="EAM")) == jobs, "the key of a tag"
    assert listed(api, q=jobs[2][-8:].upper()) == [jobs[2]]
    assert sorted(listed(api, q="ü")) == [jobs[5]]
    for wildcard in ("%", "_b", "\\"):
        found = listed(api, q=wildcard)
        assert found == (sorted((id for id in jobs if wildcard in id), reverse=True)), wildcard
    at = page(api)["data"][2]["created_at"]
    assert listed(api, created_after=at) == jobs[:-3:-1]
    assert sorted(listed(api, status=["queued", "running"], sort="name")) == jobs
    assert listed(api, status="running", sort="name") == listed(api, method="byol") == []
    assert listed(api, tag="team:T-1", sort="created_at", method="simclr") == of_birds
    assert listed(api, tag="team:T-1", limit=2) == of_birds[::-1]
    assert listed(api, tag='te"am:T-1') == []
    api.client.post(f"/v1/jobs/{jobs[2]}/cancel")
    assert listed(api, status="cancelled") == [jobs[2]]
    for sort in ("-created_at", "name", "-best.knn_top1"):
        both = {"status": ["cancelled", "queued"], "sort": sort}
        assert listed(api, limit=2, **both) == listed(api, sort=sort)
    deleted = f"job_{'0' * 26}"
    assert listed(api, id=[jobs[4], deleted, jobs[1]]) == [jobs[4], jobs[1]]
    assert listed(api, id=jobs[4], q="t-1") == listed(api, id=deleted) == []
    theirs = api.token("admin", tenant="other")
    for params in ({"id": jobs[4]}, {"sort": "-best.knn_top1"}, {"q": "a"}, {"dataset": dataset}):
        answer = api.client.get("/v1/jobs", params=params, headers=theirs)
        assert answer.json()["data"] == []


def test_ids_that_are_none_or_too_many_are_refused(api: Api, jobs: list[str]) -> None:
    for ids, field in (([jobs[0], "job_1"], "id.1"), (jobs * 15, "id")):
        answer = api.client.get("/v1/jobs", params={"id": ids})
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["field"] == field


def test_summary_has_what_a_list_shows_in_a_fixed_number_of_queries(
    api: Api, jobs: list[str]
) -> None:
    snapshot(api, cpus=1)
    decide(api)
    error = {"type": "x", "message": "y", "log_tail": ["z"]}
    with api.database.write() as session:
        session.execute(update(Job).where(Job.id == jobs[0]).values(status="failed", error=error))
    page(api, summary=True)  # the first request of a minute records the use of its token
    counts = []
    for limit in (2, 7):
        with recorded_statements(api.database) as statements:
            rows = {job["id"]: job for job in page(api, summary=True, limit=limit)["data"]}
        counts.append(len(statements))
    assert counts[0] == counts[1]
    failed, queued = rows[jobs[0]], rows[jobs[3]]
    assert not {"spec", "resolved"} & failed.keys()
    assert failed["error"] == {"type": "x", "message": "y"}
    assert (queued["waits_for"] is not None, queued["reason"] != "") == (True, True)
    assert (queued["method"], queued["tags"], queued["dataset"]["name"]) == (
        "simclr",
        {"team": "T-1"},
        "birds",
    )


def cursor(*values: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


JOB = f"job_{'0' * 26}"


@pytest.mark.parametrize(
    ("sort", "after"),
    [
        ("-created_at", "x"),
        ("-created_at", cursor(JOB, JOB)),
        ("name", JOB),
        ("name", "é"),
        ("name", "A"),
        ("name", cursor("a")),
        ("name", cursor("a", "b")),
        ("name", cursor(1, JOB)),
        ("name", cursor("a\0", JOB)),
        ("name", cursor("\ud800", JOB)),
        ("name", cursor(["a"], JOB)),
        ("priority", cursor(2**40, JOB)),
        ("priority", cursor(True, JOB)),
        ("priority", cursor("a", JOB)),
        ("finished_at", cursor("yesterday", JOB)),
        ("finished_at", cursor(5, JOB)),
        ("finished_at", cursor("9999-12-31T23:59:59-23:00", JOB)),
        ("best.knn_top1", cursor("a", JOB)),
        ("best.knn_top1", cursor(float("nan"), JOB)),
        ("best.knn_top1", cursor(1e400, JOB)),
    ],
)
def test_cursor_of_another_list_is_refused(api: Api, sort: str, after: str) -> None:
    answer = api.client.get("/v1/jobs", params={"sort": sort, "after": after})
    refused(answer, 422, "after", "validation")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sort", "nam"),
        ("sort", "--name"),
        ("sort", "best.loss"),
        ("sort", "best.recall_at_²"),
        ("sort", ""),
        ("tag", "parity"),
        ("limit", "0"),
        ("status.0", "no"),
        ("after", "';--"),
        ("q", ""),
        ("q", "a\0"),
        ("dataset", "\0"),
        ("created_after", "today"),
        ("created_after", "9999-12-31T23:59:59-23:00"),
    ],
)
def test_invalid_parameter_of_the_job_list_is_named(api: Api, field: str, value: str) -> None:
    answer = api.client.get("/v1/jobs", params={field.partition(".")[0]: value})
    refused(answer, 422, field)
