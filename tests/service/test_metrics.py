"""`/metrics`: Prometheus series of jobs, cluster and requests, and access to them."""

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr
from sqlalchemy import update

from service import lifecycle, states
from service.db.models import Attempt, Lease
from service.runs.endings import Ending
from service.server.app import create_app
from service.settings import Settings
from tests.support.api_under_test import Api, refused, snapshot

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(client: TestClient, **headers: str) -> Series:
    answer = client.get("/metrics", headers={"Authorization": "", **headers})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(answer.text)
    samples = itertools.chain.from_iterable(family.samples for family in families)
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}


def value(series: Series, name: str, **labels: str) -> float:
    return series[name, frozenset(labels.items())]


def finish(api: Api, job_id: str, outcome: states.AttemptOutcome) -> None:
    with api.database.write() as session:
        number = api.client.get(f"/v1/jobs/{job_id}").json()["attempt"]
        ending = Ending(outcome, {"type": outcome})
        lifecycle.finish_attempt(session, job_id, number, ending)


def test_metrics_report_jobs_and_attempts_from_the_database(api: Api) -> None:
    before = scrape(api.client)
    assert value(before, "dasl_jobs", status="queued") == 0
    assert value(before, "dasl_oldest_wait_seconds", queue="jobs") == 0
    assert value(before, "dasl_heartbeat_age_seconds") == 0
    assert value(before, "dasl_queue_wait_seconds_count") == 0

    api.dataset()
    first, second, third = (api.submit()["id"] for _ in range(3))
    worker = api.start(first)
    assert 0 < value(scrape(api.client), "dasl_attempt_start_age_seconds") < 2000
    api.start(second).post("start")
    worker.post("start")
    worker.post("finish", outcome="failed", error={"type": "x", "message": "y"})
    with api.database.write() as session:
        lifecycle.requeue(session, first)
    api.start(first).post("start")
    with api.database.write() as session:
        long_ago = datetime.now(UTC) - timedelta(seconds=100)
        session.execute(
            update(Attempt).where(Attempt.job_id == second).values(heartbeat_at=long_ago)
        )

    series = scrape(api.client)
    for status, count in (("queued", 1), ("running", 2), ("paused", 0)):
        assert value(series, "dasl_jobs", status=status) == count
    for state, count in (("created", 0), ("submitted", 0), ("running", 2)):
        assert value(series, "dasl_live_attempts", state=state) == count
    assert value(series, "dasl_attempts_total", outcome="failed", reason="other") == 1
    assert value(series, "dasl_restarts_total") == 1
    assert value(series, "dasl_queue_wait_seconds_count") == 2, "first attempts only"
    assert value(series, "dasl_queue_wait_seconds_bucket", le="+Inf") == 2
    assert 0 < value(series, "dasl_queue_wait_seconds_sum") < 2000
    assert 100 <= value(series, "dasl_heartbeat_age_seconds") < 2000
    assert value(series, "dasl_attempt_start_age_seconds") == 0
    assert 0 < value(series, "dasl_oldest_wait_seconds", queue="jobs") < 2000
    api.start(third)
    later = scrape(api.client)
    assert value(later, "dasl_queue_wait_seconds_count") == 3
    assert value(later, "dasl_oldest_wait_seconds", queue="jobs") == 0

    # The clock of the dispatcher has jumped for one attempt: later ones are counted.
    with api.database.write() as session:
        ahead = datetime.now(UTC) + timedelta(days=40)
        session.execute(update(Attempt).where(Attempt.job_id == third).values(created_at=ahead))
    fourth = api.submit()["id"]
    scrape(api.client)
    api.start(fourth)
    later = scrape(api.client)
    assert value(later, "dasl_queue_wait_seconds_count") == 4
    with api.database.write() as session:
        session.execute(update(Attempt).where(Attempt.job_id == third).values(created_at=long_ago))

    # Another process on the same database reports the same values, and counts what happens from now on.
    with TestClient(create_app(api.settings, api.database)) as other:
        elsewhere = scrape(other)
    aging = {
        "dasl_attempt_start_age_seconds",
        "dasl_heartbeat_age_seconds",
        "dasl_oldest_wait_seconds",
    }
    counted = ("dasl_attempts_total", "dasl_restarts_total", "dasl_queue_wait_seconds")
    shared = [
        key
        for key in later
        if key[0].startswith("dasl_") and "_http_" not in key[0] and not key[0].startswith(counted)
    ]
    assert {elsewhere[key] for key in later if key[0].startswith(counted)} == {0}
    assert len(shared) > 20
    for key in shared:
        if key[0] not in aging:
            assert elsewhere[key] == pytest.approx(later[key]), key


def test_metrics_report_cluster_lease_and_components(api: Api) -> None:
    before = scrape(api.client)
    assert value(before, "dasl_up", component="database") == 1
    assert value(before, "dasl_up", component="dispatcher") == 0
    assert ("dasl_cluster_gpus", frozenset()) not in before, "there is no snapshot yet"
    snapshot(api, cpus=8, gpus=4)
    with api.database.write() as session:
        until = datetime.now(UTC) + timedelta(seconds=30)
        session.add(Lease(name="dispatcher", holder="me", expires_at=until))
    series = scrape(api.client)
    for component in ("database", "dispatcher", "ray"):
        assert value(series, "dasl_up", component=component) == 1
    assert 0 < value(series, "dasl_dispatcher_lease_seconds") <= 30
    for name, expected in (
        ("cpus", 8),
        ("cpus_allocated", 0),
        ("cpus_used", 1),
        ("gpus", 4),
        ("gpus_allocated", 0),
        ("gpus_used", 0),
    ):
        assert value(series, f"dasl_cluster_{name}") == expected
    api.dataset()
    job = api.submit(resources={"workers": 2, "cpus_per_worker": 3})
    api.start(job["id"])
    assert value(scrape(api.client), "dasl_cluster_cpus_allocated") == 6
    assert value(series, "dasl_cluster_nodes") == 1
    assert value(series, "dasl_cluster_snapshot_age_seconds") >= 0
    version = api.client.get("/livez").json()["version"]
    assert any(
        name == "dasl_build_info" and ("version", version) in labels for name, labels in series
    )


def test_request_metrics_are_labeled_by_route_without_ids(api: Api) -> None:
    dataset = api.dataset()
    job = api.submit()["id"]
    for _ in range(3):
        api.client.get(f"/v1/jobs/{job}")
    api.client.get("/v1/jobs/job_nobody", headers={"Authorization": "Bearer dasl_x"})
    for number in range(20):  # Unknown paths and methods create no new series.
        api.client.get(f"/v1/{number}/{job}")
        api.client.request(f"BREW{number}", "/v1/jobs")
    series = scrape(api.client)
    name, route = "dasl_http_request_duration_seconds", "/v1/jobs/{job_id}"
    assert value(series, f"{name}_count", route=route, method="GET", status="2xx") == 3
    assert value(series, f"{name}_count", route=route, method="GET", status="4xx") == 1
    assert value(series, f"{name}_count", route="none", method="GET", status="4xx") == 20
    assert (
        sum(
            number
            for (sample, labels), number in series.items()
            if sample == f"{name}_count" and ("method", "other") in labels
        )
        == 20
    )
    assert value(series, f"{name}_bucket", route=route, method="GET", status="2xx", le="+Inf") == 3
    assert job not in str(series)
    assert dataset not in str(series)


def test_metrics_token_is_separate_from_api_tokens(api: Api) -> None:
    settings: Settings = api.settings.model_copy(update={"metrics_token": SecretStr("scraper")})
    with TestClient(create_app(settings, api.database)) as client:
        refused(client.get("/metrics"), 401, None, "unauthenticated")
        for wrong in (api.token("admin"), {"Authorization": "Bearer scrape"}):
            refused(client.get("/metrics", headers=wrong), 401, None, "unauthenticated")
        assert scrape(client, Authorization="Bearer scraper")
        assert client.get("/livez").status_code == 200
