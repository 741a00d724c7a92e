"""Metrics, their table in the documentation, the alerts and the Grafana board agree with each other."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr
from sqlalchemy import update

from service import lifecycle
from service.db.models import (
    CHECKPOINT_SWEEP,
    Attempt,
    Base,
    ClusterSnapshot,
    Dataset,
    Job,
    Lease,
    ModelRun,
    Preparation,
    Preview,
    Sweep,
    WebhookDelivery,
)
from service.dispatcher.isolation import LONGEST_PAUSE_SECONDS
from service.observability import tenants
from service.observability.metrics import REASONS
from service.runs.endings import Ending, Retry
from service.scheduling.dispatcher_report import DispatcherReport, StoreReport
from service.server.app import create_app
from service.storage import clock
from tests.support.api_under_test import Api, snapshot
from tests.support.history import add_row
from tests.test_docs import anchors

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "docker/monitoring"
RULES = [
    rule
    for group in yaml.safe_load((MONITORING / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
BOARD = json.loads((MONITORING / "grafana-dashboard.json").read_text(encoding="utf-8"))

Samples = dict[str, list[tuple[dict[str, str], float]]]


def report(api: Api) -> None:
    """Save a snapshot of the cluster with a dispatcher's report."""
    now = datetime.now(UTC)
    snapshot(api, cpus=8, gpus=4)
    found = DispatcherReport(
        started_at=now,
        ray_version="2.59.1",
        ray_tested=False,
        head_memory=0.75,
        failed_rounds={"queue": 3, "logs": 0},
        store=StoreReport(checked_at=now, problem="no room", free_bytes=5, checkpoint_bytes=7),
    )
    with api.database.write() as session:
        session.execute(update(ClusterSnapshot).values(dispatcher=found.model_dump(mode="json")))
        until = now + timedelta(seconds=30)
        session.merge(Lease(name="dispatcher", holder="me", expires_at=until))


@pytest.mark.parametrize("answered_before", [True, False])
def test_store_that_hangs_is_not_ready(api: Api, answered_before: bool) -> None:
    snapshot(api, cpus=8)

    def storage(silent: timedelta) -> str:
        at = datetime.now(UTC)
        store = StoreReport(checked_at=at - silent) if answered_before else None
        found = DispatcherReport(started_at=at - silent, store=store)
        with api.database.write() as session:
            report = found.model_dump(mode="json")
            session.execute(update(ClusterSnapshot).values(at=at, dispatcher=report))
        check: str = api.client.get("/readyz").json()["checks"]["storage"]
        return check

    assert storage(timedelta(minutes=2)) == "ok"
    assert storage(timedelta(minutes=10)) == (
        "the store of the artifacts (DASL_ARTIFACTS_URI) has not answered for 600 s"
    )


@contextmanager
def scraping(api: Api) -> Iterator[Callable[[], Samples]]:
    """Start an API process, whose counters begin now; yields what reads its metrics."""
    settings = api.settings.model_copy(update={"metrics_token": SecretStr("scraper")})
    with TestClient(create_app(settings, api.database)) as client:
        client.get("/livez")

        def read() -> Samples:
            samples: Samples = {}
            answer = client.get("/metrics", headers={"Authorization": "Bearer scraper"})
            assert answer.status_code == 200, answer.text
            for family in text_string_to_metric_families(answer.text):
                for sample in family.samples:
                    samples.setdefault(sample.name, []).append((sample.labels, sample.value))
            return samples

        yield read


def scrape(api: Api) -> Samples:
    with scraping(api) as read:
        return read()


def one(samples: Samples, name: str, **labels: str) -> float:
    [value] = [value for given, value in samples[name] if given == labels]
    return value


def test_dispatcher_report_and_store_are_metrics(api: Api) -> None:
    report(api)
    samples = scrape(api)
    assert one(samples, "dasl_ray_info", version="2.59.1") == 1
    assert one(samples, "dasl_ray_tested") == 0
    assert one(samples, "dasl_cluster_head_memory_ratio") == 0.75
    assert one(samples, "dasl_dispatcher_failed_rounds_total", loop="queue") == 3
    assert one(samples, "dasl_artifact_store_writable") == 0
    assert one(samples, "dasl_artifact_store_free_bytes") == 5
    assert one(samples, "dasl_artifact_store_used_bytes", kind="checkpoints") == 7
    assert one(samples, "dasl_up", component="storage") == 0
    about = api.client.get("/v1/cluster").json()
    assert (about["ray_version"], about["ray_tested"]) == ("2.59.1", False)
    assert about["api_started_at"]
    assert about["dispatcher_started_at"]


def test_reasons_are_bounded(api: Api) -> None:
    api.dataset()
    with scraping(api) as read:
        for kind in ("hang", "hang", "MyOwnError", "x" * 150):
            job = api.submit()["id"]
            api.start(job)
            with api.database.write() as session:
                ending = Ending("failed", {"type": kind, "message": "m"}, Retry.NEVER)
                lifecycle.finish_attempt(session, job, 1, ending)
        samples = read()
    assert one(samples, "dasl_attempts_total", outcome="failed", reason="hang") == 2
    assert one(samples, "dasl_attempts_total", outcome="failed", reason="other") == 2
    reasons = {labels["reason"] for labels, _ in samples["dasl_attempts_total"]}
    assert reasons == {*REASONS, "other", "none"}


def test_tenants_are_named_only_with_a_token_and_bounded(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenants, "MOST_TENANTS", 1)
    for tenant, jobs in (("vision", 2), ("audio", 1)):
        api.dataset(tenant=tenant)
        headers = api.token("submit", tenant=tenant)
        for _ in range(jobs):
            body = {"dataset": "emoji", "resources": {"gpus_per_worker": 1, "workers": 2}}
            answer = api.client.post("/v1/jobs", json=body, headers=headers)
            assert answer.status_code == 201, answer.text
            if tenant == "audio":
                api.start(answer.json()["id"])
    samples = scrape(api)
    assert one(samples, "dasl_tenant_queued_jobs", tenant="vision") == 2
    assert one(samples, "dasl_tenant_running_jobs", tenant="_other") == 1
    assert one(samples, "dasl_tenant_gpus", tenant="_other") == 2
    assert "vision" not in api.client.get("/metrics", headers={"Authorization": ""}).text


def test_job_waits_since_it_entered_the_queue(api: Api) -> None:
    api.dataset()
    long_ago = datetime.now(UTC) - timedelta(seconds=5000)

    def age() -> float:
        with api.database.write() as session:
            session.execute(update(Job).values(queued_at=long_ago))
        return one(scrape(api), "dasl_oldest_wait_seconds", queue="jobs")

    job = api.submit()["id"]
    assert 5000 <= age() < 7000
    api.client.post(f"/v1/jobs/{job}/pause")
    assert age() == 0
    api.client.post(f"/v1/jobs/{job}/resume")
    assert one(scrape(api), "dasl_oldest_wait_seconds", queue="jobs") < 2000


def test_ages_include_requeued_jobs_and_waiting_data_sets(api: Api) -> None:
    dataset_id = api.dataset("other", state="pending")
    api.dataset()
    job = api.submit()["id"]
    api.start(job)
    long_ago = datetime.now(UTC) - timedelta(seconds=5000)
    with api.database.write() as session:
        lifecycle.finish_attempt(session, job, 1, Ending("lost", retry=Retry.FREE))
        lifecycle.requeue(session, job)
        lifecycle.append_event(session, job, "waiting", "There is no room")
        session.execute(update(Job).values(queued_at=long_ago))
        requested = update(Dataset).where(Dataset.id == dataset_id)
        session.execute(requested.values(ingest_requested_at=long_ago))
    samples = scrape(api)
    assert 5000 <= one(samples, "dasl_oldest_wait_seconds", queue="jobs") < 7000
    assert 5000 <= one(samples, "dasl_oldest_wait_seconds", queue="ingests") < 7000
    assert one(samples, "dasl_datasets", state="pending") == 1
    assert one(samples, "dasl_dataset_images") == 100


def test_oldest_item_of_each_queue_is_a_metric(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    long_ago = datetime.now(UTC) - timedelta(seconds=5000)

    def waiting() -> set[str]:
        ages = {labels["queue"]: age for labels, age in scrape(api)["dasl_oldest_wait_seconds"]}
        assert all(age == 0 or 5000 <= age < 7000 for age in ages.values()), ages
        return {queue for queue, age in ages.items() if age}

    queues = dict[str, tuple[type[Base], dict[str, Any]]](
        previews=(Preview, {"state": "queued"}),
        preparations=(Preparation, {"state": "queued"}),
        model_runs=(ModelRun, {"state": "queued"}),
        ingests=(Dataset, {"state": "pending", "deleted_at": None}),
        thinning=(Job, {"thinned": False}),
        deletions=(Job, {"deleted_at": long_ago}),
        finalizing=(Attempt, {"settled": False}),
        webhooks=(WebhookDelivery, {"state": "pending"}),
    )
    for number, (queue, (table, changes)) in enumerate(queues.items(), 1):
        add_row(api.database, table, number, long_ago, **changes)
        assert waiting() == {*list(queues)[: number - 1], queue}
    with api.database.write() as session:
        place = {"name": CHECKPOINT_SWEEP, "owner": "job_0", "number": 1}
        session.add(Sweep(**place, finished_at=long_ago - timedelta(days=1)))
    assert waiting() == {*queues, "sweeps"}
    with monkeypatch.context() as patch:
        patch.setattr(clock, "_SILENT", timedelta(seconds=1))
        is_sqlite = api.database.engine.dialect.name == "sqlite"
        assert ("sweeps" in waiting()) != is_sqlite, "nothing is swept while nothing happens"
    with api.database.write() as session:
        session.get_one(Sweep, CHECKPOINT_SWEEP).finished_at = datetime.now(UTC)
    assert waiting() == {*queues}


def documented() -> dict[str, set[str]]:
    """Return the labels of each metric in the table of docs/operations.md."""
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    found: dict[str, set[str]] = {}
    for names, labels in re.findall(r"^\| (`(?:dasl|process)_[^|\n]+)\|([^|\n]*)\|", text, re.M):
        for name in re.findall(r"`([a-z_*]+)`", names):
            found[name] = set(re.findall(r"`([a-z]+)`", labels))
    return found


def test_every_metric_is_documented_with_its_labels(api: Api) -> None:
    report(api)
    api.dataset()
    api.submit()
    metrics = {
        re.sub("_(bucket|count|sum|created)$", "", name): set(labels)
        for name, found in scrape(api).items()
        if not name.startswith("process_")
        for labels in [found[0][0].keys() - {"le"}]
    }
    listed = {
        name: labels - {"le"}
        for name, labels in documented().items()
        if not name.startswith("process_")
    }
    assert metrics == listed


def expressions() -> Iterator[tuple[str, str]]:
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


@pytest.mark.parametrize(("name", "expression"), list(expressions()))
def test_alerts_and_board_use_metrics_and_labels_that_exist(name: str, expression: str) -> None:
    known = documented()
    used = re.findall(r"\bdasl_[a-z_]+\b", expression)
    assert used
    labels: set[str] = {"le"}
    for metric in used:
        base = re.sub("_(bucket|count|sum)$", "", metric)
        assert base in known, f"{name}: {metric}"
        labels |= known[base]
    grouped = re.findall(r"by \(([^)]*)\)", expression)
    matched = re.findall(r"[{,]([a-z_]+)=", expression)
    for label in {each.strip() for group in grouped for each in group.split(",")} | set(matched):
        assert label in labels, f"{name}: {label}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_alerts_have_summary_description_and_runbook(rule: dict[str, dict[str, str]]) -> None:
    notes = rule["annotations"]
    assert notes["summary"]
    assert notes["description"]
    page, _, anchor = notes["runbook"].partition("#")
    assert anchor in anchors(ROOT / page)
    assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_loop_that_always_fails_raises_an_alert() -> None:
    """Its pauses grow, so its failures become rare."""
    rule = next(each for each in RULES if each["alert"] == "DaslDispatcherRoundsFail")
    found = re.search(r"\(increase\(dasl_\w+\[(\d+)m\]\)\) > (\d+)$", rule["expr"])
    assert found is not None
    minutes, threshold = int(found[1]), int(found[2])
    assert minutes * 60 / LONGEST_PAUSE_SECONDS - 1 > threshold


def test_promtool_accepts_rules_and_their_tests() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed here; the other tests check names and labels")
    for command in ("check rules alerts.yml", "test rules alerts-test.yml"):
        done = subprocess.run(
            [promtool, *command.split()], cwd=MONITORING, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
