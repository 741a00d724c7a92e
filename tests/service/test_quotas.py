"""Quotas of tokens: set, shown, and enforced at submission."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from service import lifecycle
from service.datasets.ingests import repository as ingests
from service.db.models import Job
from service.states import DatasetState
from tests.support.api_under_test import Api, refused

pytestmark = pytest.mark.dialect

NONE = {"max_queued_jobs": None, "max_running_jobs": None, "max_gpus": None}


def quotas_of(token: dict[str, Any]) -> dict[str, Any]:
    return {name: token[name] for name in NONE}


def submit(api: Api, headers: dict[str, str], key: str | None = None, **spec: Any) -> Any:
    more = {} if key is None else {"Idempotency-Key": key}
    return api.client.post("/v1/jobs", json={"dataset": "emoji", **spec}, headers=headers | more)


def test_quotas_can_be_set_changed_and_shown(api: Api) -> None:
    admin = api.token("admin")
    limits: dict[str, int | None] = {"max_queued_jobs": 5, "max_running_jobs": 2, "max_gpus": 0}
    body = {"name": "lab", "scopes": ["submit"], **limits}
    created = api.client.post("/v1/tokens", json=body, headers=admin).json()
    assert quotas_of(created) == limits
    path = f"/v1/tokens/{created['id']}"
    changed = api.client.patch(path, json={"max_gpus": 8, "max_queued_jobs": None}, headers=admin)
    assert changed.status_code == 200
    assert "token" not in changed.json()
    limits = {"max_queued_jobs": None, "max_running_jobs": 2, "max_gpus": 8}
    assert quotas_of(changed.json()) == limits
    listed = api.client.get("/v1/tokens", headers=admin).json()["data"]
    assert [quotas_of(token) for token in listed] == [limits, NONE, NONE]
    assert quotas_of(api.client.patch(path, json={}, headers=admin).json()) == limits


@pytest.mark.parametrize(
    ("quota", "default"), [("max_queued_jobs", 1000), ("max_pending_datasets", 100)]
)
def test_new_token_has_a_default_quota_unless_told_otherwise(
    api: Api, quota: str, default: int
) -> None:
    admin = api.token("admin")
    for body, limit in (({}, default), ({quota: None}, None)):
        created = api.client.post("/v1/tokens", json={"name": "lab", **body}, headers=admin).json()
        assert created[quota] == limit
        path = f"/v1/tokens/{created['id']}"
        changed = api.client.patch(path, json={"max_gpus": 1}, headers=admin).json()
        assert (changed[quota], changed["max_gpus"]) == (limit, 1)
    assert api.client.patch(path, json={quota: 5}, headers=admin).json()[quota] == 5


@pytest.mark.parametrize("body", [{"max_gpus": -1}, {"max_gpus": 10**9}, {"max_gpus": "all"}])
def test_token_endpoints_refuse_invalid_quotas(api: Api, body: dict[str, Any]) -> None:
    admin = api.token("admin")
    created = api.client.post("/v1/tokens", json={"name": "lab"}, headers=admin).json()
    path = f"/v1/tokens/{created['id']}"
    refused(api.client.patch(path, json=body, headers=admin), 422, "max_gpus")
    refused(api.client.post("/v1/tokens", json={"name": "x", **body}, headers=admin), 422)
    problem = refused(api.client.patch(path, json={"max_gpu": 1}, headers=admin), 422, "max_gpu")
    assert "did you mean 'max_gpus'?" in problem["detail"]


def test_quotas_are_changed_only_by_tenant_administrators(api: Api) -> None:
    body = {"name": "lab"}
    created = api.client.post("/v1/tokens", json=body, headers=api.token("admin")).json()
    path = f"/v1/tokens/{created['id']}"
    headers = {"Authorization": f"Bearer {created['token']}"}
    refused(api.client.patch(path, json={"max_gpus": 1}, headers=headers), 403)
    theirs = api.token("admin", tenant="other")
    refused(api.client.patch(path, json={"max_gpus": 1}, headers=theirs), 404)
    refused(api.client.patch("/v1/tokens/x", json={"max_gpus": 1}, headers=theirs), 404)


def test_submit_over_quota_names_the_quota(api: Api) -> None:
    api.dataset()
    limited, other = api.token("submit", max_queued_jobs=2), api.token("submit")
    first = submit(api, limited)
    assert first.status_code == submit(api, limited, "again").status_code == 201
    problem = refused(submit(api, limited), 429, None, "quota-exceeded")
    assert problem["detail"] == (
        "max_queued_jobs of this token is 2, and 2 of its jobs are queued; "
        "submit again when one has started"
    )
    assert (problem["quota"], problem["limit"], problem["used"]) == ("max_queued_jobs", 2, 2)
    # A bad spec is reported first, because waiting would not help.
    refused(submit(api, limited, train={"epochs": 0}), 422, "train.epochs")
    assert submit(api, other).status_code == 201
    repeated = submit(api, limited, "again")
    assert repeated.status_code == 201
    assert repeated.headers["Idempotency-Replayed"] == "true"
    # The refused request used up neither its key nor the quota; a started job frees its place.
    refused(submit(api, limited, "late"), 429)
    api.start(first.json()["id"])
    assert submit(api, limited, "late").status_code == 201


def test_clone_counts_against_callers_quota(api: Api) -> None:
    api.dataset()
    job = api.submit()["id"]
    limited = api.token("submit", max_queued_jobs=1)
    path, body = f"/v1/jobs/{job}/clone", {"checkpoint": None}
    clone = api.client.post(path, json=body, headers=limited)
    assert clone.status_code == 202
    again = api.client.post(path, json=body, headers=limited)
    refused(again, 429, None, "quota-exceeded")
    with api.database.read() as session:
        tokens = {session.get_one(Job, name).token_id for name in (job, clone.json()["id"])}

    assert len(tokens) == 2
    assert None not in tokens


def test_requeue_and_resume_ignore_queue_quota(api: Api) -> None:
    api.dataset()
    limited = api.token("submit", max_queued_jobs=1)
    job = submit(api, limited).json()["id"]
    worker = api.start(job)
    assert submit(api, limited).status_code == 201
    error = {"type": "OSError", "message": "disk"}
    assert worker.post("finish", outcome="failed", error=error).status_code == 204
    with api.database.write() as session:
        assert lifecycle.requeue(session, job)
    assert api.client.post(f"/v1/jobs/{job}/pause").status_code == 202
    assert api.client.post(f"/v1/jobs/{job}/resume").status_code == 202
    assert api.client.get(f"/v1/jobs/{job}").json()["status"] == "queued"
    refused(submit(api, limited), 429)


def test_concurrent_submits_stay_within_quota(api: Api) -> None:
    api.dataset()
    limited = api.token("submit", max_queued_jobs=3)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: submit(api, limited).status_code, range(8)))
    assert sorted(answers) == [201] * 3 + [429] * 5
    last = api.token("submit", max_queued_jobs=1)
    with ThreadPoolExecutor(4) as pool:
        same = list(pool.map(lambda _: submit(api, last, "one"), range(4)))
    assert {answer.status_code for answer in same} == {201}
    assert len({answer.json()["id"] for answer in same}) == 1


def register(api: Api, headers: dict[str, str], name: str) -> Any:
    folder = api.settings.home.parent / "images"
    folder.mkdir(exist_ok=True)
    body = {"name": name, "uri": str(folder)}
    return api.client.post("/v1/datasets", json=body, headers=headers)


def test_register_over_quota_names_the_quota(api: Api) -> None:
    limited, other = api.token("submit", max_pending_datasets=2), api.token("submit")
    first = register(api, limited, "a")
    assert first.status_code == register(api, limited, "b").status_code == 201
    problem = refused(register(api, limited, "c"), 429, None, "quota-exceeded")
    assert problem["detail"].startswith(
        "max_pending_datasets of this token is 2, and 2 data sets that it registered or refreshed wait"
    )
    assert (problem["quota"], problem["limit"], problem["used"]) == ("max_pending_datasets", 2, 2)
    # A taken name is reported first, because waiting would not help.
    refused(register(api, limited, "a"), 409, None, "name-taken")
    assert register(api, other, "d").status_code == 201
    names = [each["name"] for each in api.client.get("/v1/datasets").json()["data"]]
    assert sorted(names) == ["a", "b", "d"]
    # One that is being read still counts, until it has ended.
    dataset = first.json()["id"]
    number = api.ingest(dataset).number
    refused(register(api, limited, "c"), 429)
    with api.database.write() as session:
        assert ingests.end_ingest(session, dataset, number, DatasetState.FAILED)
    assert register(api, limited, "c").status_code == 201
    assert api.client.delete(f"/v1/datasets/{dataset}").status_code == 204
    refused(register(api, limited, "e"), 429)


def test_concurrent_registrations_stay_within_quota(api: Api) -> None:
    limited = api.token("submit", max_pending_datasets=3)
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda name: register(api, limited, str(name)).status_code, range(8))
        assert sorted(answers) == [201] * 3 + [429] * 5


def test_tokens_of_one_user_share_the_queue_quotas(api: Api) -> None:
    api.dataset()
    admin = api.token("admin")
    user = api.client.post("/v1/users", json={"name": "Ada"}, headers=admin).json()["id"]
    limits = {"max_queued_jobs": 1, "max_pending_datasets": 1}
    body = {"name": "x", "user_id": user, **limits}
    first, second = (
        {"Authorization": f"Bearer {answer.json()['token']}"}
        for answer in (api.client.post("/v1/tokens", json=body, headers=admin) for _ in range(2))
    )
    with ThreadPoolExecutor(8) as pool:
        jobs = list(pool.map(lambda token: submit(api, token), [first, second] * 4))
    assert sorted(answer.status_code for answer in jobs) == [201] + [429] * 7
    job = next(answer for answer in jobs if answer.is_success)
    problem = refused(submit(api, second), 429, None, "quota-exceeded")
    assert "1 of the jobs of its user are queued" in problem["detail"]
    alone = api.token("submit", max_queued_jobs=1)
    clone = {"checkpoint": None}
    path = f"/v1/jobs/{job.json()['id']}/clone"
    refused(api.client.post(path, json=clone, headers=second), 429)
    assert api.client.post(path, json=clone, headers=alone).status_code == 202
    with api.database.read() as session:
        accounts = {row.account_id == row.token_id for row in session.query(Job)}
        assert session.get_one(Job, job.json()["id"]).account_id == user
        assert accounts == {True, False}, "a clone is charged to the account that cloned it"
    folders = [api.settings.home.parent / "images" / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir(parents=True)
    registered = [
        api.client.post("/v1/datasets", json={"name": f.name, "uri": str(f)}, headers=token)
        for f, token in zip(folders, (first, second), strict=True)
    ]
    assert registered[0].status_code == 201
    problem = refused(registered[1], 429, None, "quota-exceeded")
    assert "1 data sets that tokens of its user registered or refreshed wait" in problem["detail"]
