"""`/v1/webhooks`: create, change, rotate, test, deliveries; which events add messages; no secret in any answer."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from service import lifecycle
from service.datasets.ingests import repository as ingests
from service.db.models import Webhook, WebhookDelivery
from service.db.rows import one, owned
from service.outbox import messages
from service.outbox import repository as outbox
from service.outbox.retries import Outcome
from service.runs.endings import Ending, Retry
from service.server.app import create_app
from service.tasks.repository import preparations, previews
from service.webhooks.service import MAX_WEBHOOKS
from tests.support.api_under_test import Api, TaskRun, refused
from tests.support.databases import waits_for_lock
from tests.support.polling import until
from tests.support.statements import recorded_statements

URL = "https://hooks.example.org/dasl"


@pytest.fixture
def admin(api: Api) -> Api:
    """The API, with a client whose token has the scope `admin`."""
    api.client.headers.update(api.token("admin"))
    return api


def create(api: Api, **fields: Any) -> dict[str, Any]:
    answer = api.client.post("/v1/webhooks", json={"url": URL, **fields})
    assert answer.status_code == 201, answer.text
    webhook: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/v1/webhooks/{webhook['id']}"
    return webhook


def payloads(api: Api, webhook: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a webhook, oldest first."""
    answer = api.client.get(f"/v1/webhooks/{webhook['id']}/deliveries")
    assert answer.status_code == 200, answer.text
    return [each["payload"] for each in reversed(answer.json()["data"])]


def test_webhook_is_shown_without_its_secret(admin: Api) -> None:
    webhook = create(admin, name="chat", tags={"team": "vision"})
    assert webhook["secret"].startswith("whsec_")
    assert webhook["events"] == list(messages.DEFAULT_TYPES)
    path = f"/v1/webhooks/{webhook['id']}"
    shown = admin.client.get(path)
    assert shown.json() == {key: webhook[key] for key in webhook if key != "secret"}
    listed = admin.client.get("/v1/webhooks")
    assert listed.json()["data"] == [shown.json()]
    changed = admin.client.patch(path, json={"events": ["job.failed", "job.failed"], "tags": {}})
    assert (changed.json()["events"], changed.json()["tags"]) == (["job.failed"], {})
    for answer in (shown, listed, changed):
        assert webhook["secret"] not in answer.text
    assert admin.client.delete(path).status_code == 204
    refused(admin.client.get(path), 404, None, "not-found")
    refused(admin.client.delete(path), 404, None, "not-found")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "url"),
        ({"url": ""}, "url"),
        ({"url": "http://hooks.example.org"}, "url"),
        ({"url": "https://127.0.0.1/x"}, "url"),
        ({"url": "https://user:secret@hooks.example.org"}, "url"),
        ({"url": f"https://hooks.example.org/{'x' * 2000}"}, "url"),
        ({"url": URL, "events": []}, "events"),
        ({"url": URL, "events": ["job.suceeded"]}, "events.0"),
        ({"url": URL, "tags": {"": "x"}}, "tags"),
        ({"url": URL, "format": "teams"}, "format"),
        ({"url": URL, "name": "two\nlines"}, "name"),
        ({"url": URL, "secret": "whsec_mine"}, "secret"),
    ],
)
def test_invalid_webhook_is_refused_by_field(admin: Api, body: Any, field: str) -> None:
    problem = refused(admin.client.post("/v1/webhooks", json=body), 422, None, "validation")
    assert problem["errors"][0]["field"].startswith(field), problem
    assert "user:secret" not in str(problem)


def test_unknown_type_of_event_names_the_similar_one(admin: Api) -> None:
    answer = admin.client.post("/v1/webhooks", json={"url": URL, "events": ["job.sucseeded"]})
    assert "did you mean 'job.succeeded'?" in answer.text


def test_number_of_webhooks_of_a_tenant_is_limited(admin: Api) -> None:
    webhooks = [create(admin) for _ in range(MAX_WEBHOOKS)]
    answer = admin.client.post("/v1/webhooks", json={"url": URL})
    problem = refused(answer, 429, None, "quota-exceeded")
    assert (problem["quota"], problem["limit"], problem["used"]) == ("webhooks", 20, 20)
    other = admin.token("admin", tenant="other")
    assert admin.client.post("/v1/webhooks", json={"url": URL}, headers=other).status_code == 201
    admin.client.delete(f"/v1/webhooks/{webhooks[0]['id']}")
    create(admin)


def test_status_changes_of_a_job_add_messages(admin: Api) -> None:
    everything = create(admin, events=["*"])
    endings = create(admin)
    tagged = create(admin, events=["*"], tags={"team": "audio"})
    admin.dataset()
    job = admin.submit(name="birds", tags={"team": "vision"})["id"]
    worker = admin.start(job)
    worker.post("start")
    worker.post("heartbeat", progress={"step": 5, "epoch": 0.5, "loss": 1.5, "knn": 0.61})
    metrics = {"knn_top1": 0.61}
    worker.post("evaluations", step=5, epoch=0.5, subject="backbone", metrics=metrics)
    worker.post("events", type="note", message="not for webhooks")
    assert worker.post("finish", outcome="succeeded").status_code == 204
    types = [each["type"] for each in payloads(admin, everything)]
    assert types == ["job.queued", "job.starting", "job.running", "job.evaluation", "job.succeeded"]
    (ended,) = payloads(admin, endings)
    assert ended["version"] == 1
    assert datetime.fromisoformat(ended["timestamp"]) <= datetime.now(UTC)
    assert ended["data"] == {
        "id": job,
        "name": "birds",
        "status": "succeeded",
        "message": "Job succeeded",
        "error_type": None,
        "metrics": {"epoch": 0.5, "step": 5, "loss": 1.5, "knn": 0.61},
        "verdict": None,
        "tags": {"team": "vision"},
        "url": f"{admin.settings.public_url}/#/jobs/{job}",
    }
    assert payloads(admin, tagged) == []


def test_failed_job_says_why_without_its_log(admin: Api) -> None:
    webhook = create(admin)
    admin.dataset()
    job = admin.submit()["id"]
    admin.start(job)
    error = {"type": "OSError", "message": "x" * 1000, "log_tail": ["private"]}
    with admin.database.write() as session:
        lifecycle.finish_attempt(session, job, 1, Ending("failed", error, Retry.NEVER))
    (payload,) = payloads(admin, webhook)
    assert (payload["type"], payload["data"]["error_type"]) == ("job.failed", "OSError")
    assert len(payload["data"]["message"]) == 500
    assert "private" not in str(payload)


@pytest.mark.dialect
def test_messages_are_rolled_back_with_their_event(admin: Api) -> None:
    webhook = create(admin)
    admin.dataset()
    job = admin.submit()["id"]
    with admin.database.write() as session:
        assert lifecycle.request_cancel(session, job) == "cancelled"
        session.rollback()
    assert payloads(admin, webhook) == []
    assert admin.client.get(f"/v1/jobs/{job}").json()["status"] == "queued"


def test_ends_of_ingests_and_tasks_add_messages(admin: Api) -> None:
    webhook = create(admin, events=["*"])
    dataset = admin.dataset("more", state="pending")
    number = admin.ingest(dataset).number
    with admin.database.write() as session:
        error = {"type": "empty", "message": "no images"}
        assert ingests.end_ingest(session, dataset, number, "failed", error=error)
    ready = admin.dataset()
    path = f"/v1/datasets/{ready}/previews"
    preview = admin.client.post(path, json={"spec": {}}).json()["id"]
    error = {"type": "ValueError", "message": "too small"}
    run = TaskRun(admin, preview, previews)
    assert run.post("finish", state="failed", error=error).status_code == 204
    failed, drawn = payloads(admin, webhook)
    assert failed["type"] == "dataset.failed"
    assert failed["data"] == {
        "id": dataset,
        "name": "more",
        "status": "failed",
        "message": "no images",
        "error_type": "empty",
        "url": f"{admin.settings.public_url}/#/datasets/{dataset}",
    }
    assert (drawn["type"], drawn["data"]["message"]) == ("preview.failed", "too small")
    assert drawn["data"]["dataset_id"] == ready


def test_every_kind_of_task_has_its_types() -> None:
    for noun in (previews.noun, preparations.noun, "evaluation", "embedding", "export"):
        assert {f"{noun}.succeeded", f"{noun}.failed"} <= {*messages.TYPES}


def test_events_of_another_tenant_add_no_message(admin: Api) -> None:
    webhook = create(admin, events=["*"])
    admin.dataset(tenant="other")
    theirs = admin.token("submit", tenant="other")
    answer = admin.client.post("/v1/jobs", json={"dataset": "emoji"}, headers=theirs)
    assert answer.status_code == 201
    assert payloads(admin, webhook) == []


def test_rotation_returns_a_new_secret_and_keeps_the_previous_one_for_a_time(admin: Api) -> None:
    webhook = create(admin)
    path = f"/v1/webhooks/{webhook['id']}"
    rotated = admin.client.post(f"{path}/rotate", json={"keep_hours": 1}).json()
    assert rotated["secret"] != webhook["secret"]
    until = datetime.fromisoformat(rotated["previous_secret_until"])
    with admin.database.read() as session:
        row = session.get_one(Webhook, webhook["id"])
        before = outbox.valid_secrets(row, until - timedelta(seconds=1))
        assert before == [rotated["secret"], webhook["secret"]]
        assert outbox.valid_secrets(row, until) == [rotated["secret"]]
    at_once = admin.client.post(f"{path}/rotate", json={"keep_hours": 0}).json()
    assert at_once["previous_secret_until"] is None
    with admin.database.read() as session:
        row = session.get_one(Webhook, webhook["id"])
        assert outbox.valid_secrets(row, datetime.now(UTC)) == [at_once["secret"]]
    refused(admin.client.post(f"{path}/rotate", json={"keep_hours": -1}), 422, "keep_hours")


def test_test_message_is_added_whatever_events_the_webhook_wants(admin: Api) -> None:
    webhook = create(admin, events=["dataset.ready"])
    path = f"/v1/webhooks/{webhook['id']}"
    sent = admin.client.post(f"{path}/test")
    assert (sent.status_code, sent.json()["state"]) == (202, "pending")
    assert [each["type"] for each in payloads(admin, webhook)] == ["webhook.test"]
    shown = admin.client.get(f"{path}/deliveries/{sent.json()['id']}")
    assert shown.json() == sent.json()
    other = create(admin)
    refused(admin.client.get(f"/v1/webhooks/{other['id']}/deliveries/{sent.json()['id']}"), 404)
    refused(admin.client.get(f"{path}/deliveries/msg_{'0' * 26}"), 404, None, "not-found")
    refused(admin.client.get(f"{path}/deliveries?state=lost"), 422, "state")


@pytest.mark.dialect
def test_deliveries_are_paged_and_filtered(admin: Api) -> None:
    webhook = create(admin)
    path = f"/v1/webhooks/{webhook['id']}"
    sent = [admin.client.post(f"{path}/test").json()["id"] for _ in range(3)]
    with admin.database.write() as session:
        session.get_one(WebhookDelivery, sent[0]).attempts = 1
        outbox.record(session, sent[0], 1, Outcome(200, None), datetime.now(UTC))
    first = admin.client.get(f"{path}/deliveries?limit=2").json()
    assert [each["id"] for each in first["data"]] == [sent[2], sent[1]]
    rest = admin.client.get(f"{path}/deliveries?limit=2&after={first['next']}").json()
    assert [each["id"] for each in rest["data"]] == [sent[0]]
    ended = admin.client.get(f"{path}/deliveries?state=succeeded").json()["data"]
    assert [(each["id"], each["response_status"]) for each in ended] == [(sent[0], 200)]


@pytest.mark.dialect
def test_redelivery_sends_the_same_message_for_the_whole_time_again(admin: Api) -> None:
    webhook = create(admin)
    path = f"/v1/webhooks/{webhook['id']}"
    sent = admin.client.post(f"{path}/test").json()
    with admin.database.write() as session:
        session.get_one(WebhookDelivery, sent["id"]).attempts = 1
        outbox.record(session, sent["id"], 1, Outcome(200, None), datetime.now(UTC))
    again = admin.client.post(f"{path}/deliveries/{sent['id']}/redeliver")
    assert again.status_code == 202
    assert (again.json()["state"], again.json()["attempts"]) == ("pending", 0)
    assert again.json()["payload"] == sent["payload"]
    twice = admin.client.post(f"{path}/deliveries/{sent['id']}/redeliver").json()
    assert twice == again.json()
    with admin.database.read() as session:
        [(due, _)] = outbox.due(session, datetime.now(UTC), ())
        assert due.id == sent["id"]


def test_disabled_webhook_gets_nothing_until_it_is_enabled(admin: Api) -> None:
    webhook = create(admin, events=["*"])
    path = f"/v1/webhooks/{webhook['id']}"
    waiting = admin.client.post(f"{path}/test").json()["id"]
    disabled = admin.client.patch(path, json={"disabled": True}).json()
    assert disabled["disabled_reason"] == "A person disabled it"
    given_up = admin.client.get(f"{path}/deliveries/{waiting}").json()
    assert (given_up["state"], given_up["error"]) == ("failed", "Its webhook was disabled")
    admin.dataset()
    admin.submit()
    assert len(payloads(admin, webhook)) == 1
    for request in ("test", f"deliveries/{waiting}/redeliver"):
        refused(admin.client.post(f"{path}/{request}"), 409, None, "webhook-disabled")
    enabled = admin.client.patch(path, json={"disabled": False}).json()
    assert (enabled["disabled_at"], enabled["disabled_reason"]) == (None, None)
    admin.submit()
    assert len(payloads(admin, webhook)) == 2


def test_message_is_claimed_once_and_the_outcome_of_an_older_attempt_comes_too_late(
    admin: Api,
) -> None:
    message = admin.client.post(f"/v1/webhooks/{create(admin)['id']}/test").json()["id"]
    now = datetime.now(UTC)
    later = now + timedelta(hours=1)
    with admin.database.write() as session:
        [(due, _)] = outbox.due(session, now, ())
        assert outbox.claim(session, due, now)
        assert not outbox.claim(session, due, now), "by another dispatcher"
        session.expire_all()
        [(again, _)] = outbox.due(session, later, ())
        assert outbox.claim(session, again, later)
        outbox.record(session, message, 1, Outcome(200, None), later)
    with admin.database.read() as session:
        delivery = session.get_one(WebhookDelivery, message)
    assert (delivery.state, delivery.attempts) == ("pending", 2)


# PostgreSQL only: SQLite has one writer at a time.
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_change_of_a_webhook_and_the_end_of_an_attempt_do_not_wait_for_each_other(
    admin: Api,
) -> None:
    webhook = create(admin)["id"]
    message = admin.client.post(f"/v1/webhooks/{webhook}/test").json()["id"]
    now = datetime.now(UTC)
    with admin.database.write() as session:
        [(due, _)] = outbox.due(session, now, ())
        assert outbox.claim(session, due, now)

    def record() -> None:
        with admin.database.write() as session:
            outbox.record(session, message, 1, Outcome(200, None), now)

    with ThreadPoolExecutor() as threads:
        with admin.database.write() as session:
            assert one(session, owned(Webhook, due.tenant), webhook, lock=True) is not None
            recorded = threads.submit(record)
            until(
                lambda: waits_for_lock(admin.database),
                "the end of the attempt to wait for the webhook",
            )
            assert outbox.disable(session, webhook, "A person disabled it", now)
        recorded.result()


def test_deleted_webhook_leaves_no_delivery(admin: Api) -> None:
    webhook, other = create(admin), create(admin)
    for each in (webhook, other):
        admin.client.post(f"/v1/webhooks/{each['id']}/test")
    admin.client.delete(f"/v1/webhooks/{webhook['id']}")
    with admin.database.read() as session:
        assert session.scalars(select(WebhookDelivery.webhook_id)).all() == [other["id"]]


def test_listed_hosts_may_be_private_and_use_http(admin: Api) -> None:
    settings = admin.settings.model_copy(
        update={"webhook_allowed_hosts": ("hooks.internal", "10.1.0.0/16")}
    )
    with TestClient(create_app(settings, admin.database)) as client:
        client.headers.update(admin.token("admin"))
        for url in ("http://hooks.internal:8080/x", "https://10.1.2.3/x", "http://10.1.2.3/x"):
            answer = client.post("/v1/webhooks", json={"url": url})
            assert answer.status_code == 201, answer.text
        webhook = answer.json()["id"]
        answer = client.patch(f"/v1/webhooks/{webhook}", json={"url": "https://10.2.0.1"})
        refused(answer, 422, "url")
        refused(client.patch(f"/v1/webhooks/{webhook}", json={}), 422)


def test_without_webhooks_a_submission_costs_one_more_query(admin: Api) -> None:
    admin.dataset()
    with recorded_statements(admin.database) as statements:
        admin.submit()
    assert len([each for each, _ in statements if "webhook" in each]) == 1


def test_slack_message_is_one_escaped_line_with_a_link(tmp_path: Path) -> None:
    data = {
        "id": "job_1",
        "name": "a<b>&c",
        "message": "Job failed: <!channel>",
        "metrics": {"loss": 1.0, "knn": 0.6128},
        "verdict": "too_few_images",
        "url": "/#/jobs/job_1",
    }
    message = messages.stored("job.failed", datetime(2026, 1, 2, tzinfo=UTC), data)
    assert messages.body(message, "slack", "https://dasl.example.org") == (
        b'{"text":"<https://dasl.example.org/#/jobs/job_1|a&lt;b&gt;&amp;c>: '
        b'Job failed: &lt;!channel&gt; (k-NN 61.3 %, verdict: too few images)"}'
    )
    assert message["timestamp"] == "2026-01-02T00:00:00Z"
