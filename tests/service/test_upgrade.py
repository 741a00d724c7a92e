"""Upgrade of a home folder and a PostgreSQL database of version 0.1 to this version."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from dasl_core.spec import ResolvedJobSpec, versions
from dasl_core.train import build
from service.db import migrate
from service.db.session import Database, make_engine
from service.server.app import create_app
from service.settings import Settings
from tests.support import views_v0_1
from tests.support.api_under_test import Api
from tests.support.service_v0_1 import (
    OldService,
    answers,
    differences,
    machine,
    relocate,
    restore_postgresql,
    resume_paused,
    unpack,
)
from tests.support.views_v0_1 import OldViewMaker, crop_of_v0_1


@dataclass(frozen=True)
class Upgraded:
    """An old service's data with an API of this version."""

    old: OldService
    api: Api

    @property
    def record(self) -> dict[str, Any]:
        """The answers recorded with the old version."""
        return self.old.record

    def post(self, path: str, token: str, body: dict[str, Any], **headers: str) -> Any:
        """Send a request with a token of the old version."""
        return self.api.client.post(
            path, json=body, headers={"Authorization": f"Bearer {token}", **headers}
        )

    def attempt(self, name: str, action: str, **body: Any) -> Any:
        """Send a report of a running attempt's worker to the old path."""
        attempt = self.record["attempts"][name]
        path = f"/worker/v1/jobs/{attempt['job']}/attempts/{attempt['number']}/{action}"
        return self.post(path, attempt["token"], body)

    def job(self, name: str) -> Any:
        """Return the job of this name as the API shows it now."""
        path = f"/v1/jobs/{self.record['jobs'][name]}"
        return self.api.client.get(path).json()


@pytest.fixture
def old(tmp_path: Path) -> OldService:
    return unpack(tmp_path / "moved")


@pytest.fixture(params=["sqlite", "postgresql"])
def upgraded(request: pytest.FixtureRequest, old: OldService) -> Iterator[Upgraded]:
    settings = Settings(home=old.home)
    if request.param == "postgresql":
        fresh: Callable[[], str] = request.getfixturevalue("postgres")
        settings = Settings(home=old.home, database_url=fresh())
        restore_postgresql(settings.database_url)
        (old.home / "dasl.db").unlink()
    engine = make_engine(settings.database_url)
    relocate(engine, old)
    engine.dispose()
    migrate.upgrade(settings.database_url)
    database = Database(settings.database_url)
    app = create_app(settings, database)
    with TestClient(app) as client:
        client.headers["Authorization"] = f"Bearer {old.record['token']}"
        yield Upgraded(old, Api(client, database, settings, app.state.context))
    database.dispose()


def test_every_list_and_get_endpoint_answers_as_before(upgraded: Upgraded) -> None:
    record = upgraded.record
    now = answers(upgraded.api.client, record["admin_token"], record["token"])
    assert len(now) > 80
    # Since then, only admins see the ids and addresses of nodes.
    node = "//v1/cluster/body/nodes/0"
    changed = {f"{node}/address: '127.0.0.1' != ''", f"{node}/id"}
    found = list(differences(record["answers"], upgraded.old.original(now)))
    added = re.compile(
        r"//v1/(tokens\S*/(tenant|last_used_at)|cluster/body/\w+_(at|tested|version)|"
        r"datasets\S*/(source|upload|version|refresh)|"
        r"jobs\S*/((evaluate_)?dataset_version|experiment|submitted_by|events/body/data/\d+/level)): only in the new one"
    )
    found = [each for each in found if not added.fullmatch(each)]
    assert len(found) == len(changed)
    assert all(any(each.startswith(prefix) for prefix in changed) for each in found), found


def test_idempotency_key_replays_the_stored_answer(upgraded: Upgraded) -> None:
    token = upgraded.record["token"]
    for request in upgraded.record["submissions"]:
        key = {"Idempotency-Key": request["key"]}
        again = upgraded.post(request["path"], token, request["body"], **key)
        assert again.headers["Idempotency-Replayed"] == "true"
        assert (again.status_code, again.json()) == (request["status"], request["answer"])
        changed = upgraded.post("/v1/jobs", token, {"dataset": "pictures"}, **key)
        assert changed.status_code == 422
        assert changed.json()["type"] == "idempotency-key-reused"


def test_attempt_that_was_running_reports_on(upgraded: Upgraded) -> None:
    """A worker of the old version knows only the old paths."""
    beat = upgraded.attempt("running", "heartbeat", progress={"step": 4})
    assert beat.json() == {"desired": "run"}
    point = {"step": 4, "time": 1.7e9, "values": {"loss": 2.25}}
    assert upgraded.attempt("running", "metrics", points=[point]).status_code == 204
    assert upgraded.attempt("running", "finish", outcome="succeeded").status_code == 204
    job = upgraded.job("running")
    assert (job["status"], job["progress"]["step"]) == ("succeeded", 4)
    assert upgraded.attempt("running", "heartbeat").status_code == 409


def test_attempt_that_was_starting_starts(upgraded: Upgraded) -> None:
    start = upgraded.attempt("starting", "start")
    assert start.status_code == 200
    stored = upgraded.job("starting")["resolved"]
    assert ResolvedJobSpec.model_validate(start.json()["spec"]) == versions.load(stored, 1)
    assert start.json()["artifacts_uri"].startswith(f"file://{upgraded.old.home}/artifacts/")
    assert upgraded.job("starting")["status"] == "running"
    failed = upgraded.attempt("starting", "finish", outcome="failed", error={"message": "Broken"})
    assert failed.status_code == 204
    assert upgraded.job("starting")["status"] == "retry_wait"


def test_ingest_that_was_running_reports_its_end(upgraded: Upgraded) -> None:
    ingest = upgraded.record["ingest"]
    path = f"/worker/v1/datasets/{ingest['dataset']}"
    start = upgraded.post(f"{path}/start", ingest["token"], {})
    assert start.status_code == 200
    report = {
        "state": "ready",
        "facts": {"num_images": 4, "num_classes": None, "median_size": 16},
        "index_uri": f"{start.json()['artifacts_uri']}/run/index.json.gz",
    }
    assert upgraded.post(f"{path}/finish", ingest["token"], report).status_code == 204
    dataset = upgraded.api.client.get(f"/v1/datasets/{ingest['dataset']}").json()
    assert (dataset["state"], dataset["facts"]["num_images"]) == ("ready", 4)


def test_paused_job_resumes_with_the_losses_it_would_have_had(
    old: OldService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything but the views is as it was, bit for bit."""
    monkeypatch.setattr(build, "ViewMaker", OldViewMaker)
    monkeypatch.setattr(views_v0_1, "crop_all", crop_of_v0_1)  # from 0 to 1
    monkeypatch.setattr(views_v0_1, "_to_window", lambda images, window: images)
    losses = resume_paused(old, tmp_path).curve()
    expected = [loss for _, loss in old.record["resumed"]["losses"][: len(losses)]]
    if machine() == old.record["machine"]:
        assert losses == expected
    # Other processors sum in a different order.
    assert losses == pytest.approx(expected, rel=1e-3)
