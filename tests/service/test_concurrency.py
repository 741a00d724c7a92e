"""More concurrent requests than threads, and requests that race for the same rows."""

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import event, select, text

from dasl_core.spec import JobSpec
from service.api.auth import Caller
from service.api.problems import Problem
from service.api.threads import (
    GENERAL_THREADS,
    HEAVY_THREADS,
    SEARCH_THREADS,
    STORE_THREADS,
    UPLOAD_THREADS,
    WORKER_THREADS,
)
from service.datasets import service as datasets
from service.datasets.schemas import DatasetRequest
from service.db.models import Attempt, Job, Usage
from service.db.session import Database
from service.jobs import service, submission
from service.jobs.path_checks import CheckedSpec
from service.jobs.schemas import JobPatch
from service.ledger import repository as ledger
from service.protocol import CheckpointReport
from service.scheduling.packing import Demand
from service.tenants import service as tenants
from service.users import service as users
from service.users.schemas import UserRequest
from service.wire.checkpoints import FileEntry
from service.worker_api.attempts import AttemptSession
from tests.support.api_under_test import Api, refused
from tests.support.databases import waits_for_lock
from tests.support.polling import until

pytestmark = pytest.mark.dialect

# More than the threads of all pools.
REQUESTS = 100
# Those of requests and the two observer threads for `/readyz` and `/metrics`.
THREADS = GENERAL_THREADS + WORKER_THREADS + HEAVY_THREADS + STORE_THREADS + 2
THREADS += UPLOAD_THREADS + SEARCH_THREADS


@pytest.mark.slow
@pytest.mark.dialect(slow="postgresql")
def test_waiting_writers_leave_a_thread_for_the_active_writer(api: Api) -> None:
    """A request that holds the database lock must not need a thread while all others wait."""
    api.dataset()

    def submit(number: int) -> Any:
        return api.client.post("/v1/jobs", json={"dataset": "emoji", "name": f"job {number}"})

    with ThreadPoolExecutor(REQUESTS) as pool:
        answers = list(pool.map(submit, range(REQUESTS)))
    assert [answer.status_code for answer in answers] == [201] * REQUESTS


def test_connection_pool_has_one_reused_connection_per_thread(database_url: str) -> None:
    database = Database(database_url)
    opened: list[object] = []
    event.listen(database.engine, "connect", lambda connection, _: opened.append(connection))
    for _peak in range(2):
        with ExitStack() as held:
            for _thread in range(THREADS):
                session = held.enter_context(database.autocommit())
                session.execute(text("SELECT 1"))
    database.dispose()
    assert len(opened) == THREADS


def test_concurrent_tag_changes_do_not_mix(api: Api) -> None:
    """The tags of a job and the index for the tag filter stay consistent."""
    api.dataset()
    job = api.submit(tags={"a": "1"})["id"]
    with api.database.write() as session:
        service.patch(
            session, service.get(session, "default", job), JobPatch(tags={"b": "2"}), None
        )
        with ThreadPoolExecutor(1) as pool:
            # It sends the committed tags, so the row itself would not change.
            path, body = f"/v1/jobs/{job}", {"tags": {"a": "1"}}
            other = pool.submit(api.client.patch, path, json=body)
            _wait_for_lock(api, other)
            session.commit()
            assert other.result().status_code == 200
    shown = api.client.get(path).json()["tags"]
    assert shown == {"a": "1"}
    jobs_by_tag = {
        tag: [row["id"] for row in api.client.get("/v1/jobs", params={"tag": tag}).json()["data"]]
        for tag in ("a:1", "b:2")
    }
    assert jobs_by_tag == {"a:1": [job], "b:2": []}


def test_clone_during_checkpoint_registration_gets_the_new_checkpoint(api: Api) -> None:
    """Retention removes the previous checkpoint before the new one is visible."""
    worker = api.running(checkpoints={"keep_last": 1})

    def report(step: int) -> CheckpointReport:
        file = FileEntry(name="weights", size=1, sha256="0" * 64)
        return CheckpointReport(step=step, epoch=1, uri=f"{worker.uri}/{step}", files=[file])

    storage = api.context.storage
    with api.database.write() as session:
        AttemptSession(session, worker.job_id, worker.number).checkpoint(report(1), storage)
    with api.database.write() as session, ThreadPoolExecutor(1) as pool:
        newest = AttemptSession(session, worker.job_id, worker.number).checkpoint(
            report(2), storage
        )
        session.flush()
        path, changes = f"/v1/jobs/{worker.job_id}/clone", {"train": {"epochs": 1000}}
        clone = pool.submit(api.client.post, path, json={"changes": changes})
        _wait_for_lock(api, clone)
        session.commit()
        assert clone.result().json()["start_checkpoint_id"] == newest


def test_tenant_with_a_registration_under_way_is_not_deleted(api: Api) -> None:
    operator = api.token("operator", tenant="operations")
    api.client.post("/v1/tenants", json={"name": "lab"}, headers=operator)
    caller = Caller("tok_x", "lab", "operations", "operator", False, None, None)
    request = DatasetRequest(name="birds", uri="file:///nowhere")
    with api.database.write() as session, ThreadPoolExecutor(1) as pool:
        datasets.register(session, caller, request)
        session.flush()
        deletion = pool.submit(api.client.delete, "/v1/tenants/lab", headers=operator)
        _wait_for_lock(api, deletion)
        session.commit()
        refused(deletion.result(), 409, None, "tenant-not-empty")


def test_deleted_tenant_gets_nothing(api: Api) -> None:
    """The tenant is deleted after the token of the request was checked."""
    operator = api.token("operator", tenant="operations")
    api.client.post("/v1/tenants", json={"name": "lab"}, headers=operator)
    caller = Caller("tok_x", "lab", "operations", "operator", False, None, None)
    with api.database.write() as session:
        tenants.delete(session, "lab")
    with api.database.write() as session, pytest.raises(Problem) as refusal:
        datasets.register(session, caller, DatasetRequest(name="birds", uri="file:///nowhere"))
    assert refusal.value.status_code == 404
    checked = CheckedSpec(JobSpec(dataset="birds"))
    with api.database.write() as session, pytest.raises(Problem) as refusal:
        submission.submit(session, caller, checked, None, None)
    assert refusal.value.status_code == 404
    with api.database.write() as session, pytest.raises(Problem) as refusal:
        users.create(session, caller, UserRequest(name="ada", role="submit"))
    assert refusal.value.status_code == 404


def test_concurrent_use_of_one_hour_is_added_up(api: Api) -> None:
    api.dataset()
    job_id, now = api.submit()["id"], datetime(2026, 1, 1, 5, 59, tzinfo=UTC)

    def add(seconds: float) -> None:
        with api.database.write() as session:
            ledger.add(session, session.get_one(Job, job_id), now, seconds, 2 * seconds)

    with api.database.write() as session, ThreadPoolExecutor(1) as pool:
        ledger.add(session, session.get_one(Job, job_id), now, 1.0, 2.0)
        other = pool.submit(add, 4.0)
        _wait_for_lock(api, other)
        session.commit()
        other.result()
    add(8.0)
    with api.database.read() as session:
        (row,) = session.scalars(select(Usage).where(Usage.job_id == job_id))
        assert (row.gpu_seconds, row.cpu_seconds, row.hour.minute) == (13.0, 26.0, 0)


def test_concurrent_heartbeats_add_up_to_the_confirmed_runtime(api: Api) -> None:
    worker = api.running()
    with ThreadPoolExecutor(8) as pool:
        steps = ({"step": step} for step in range(16))
        answers = list(
            pool.map(lambda progress: worker.post("heartbeat", progress=progress), steps)
        )
    assert len(answers) == 16
    with api.database.read() as session:
        cpus = Demand.from_resources(session.get_one(Job, worker.job_id).resources).cpus
        rows = session.scalars(select(Usage).where(Usage.job_id == worker.job_id)).all()
        ran = session.get_one(Attempt, (worker.job_id, worker.number)).ran_seconds
    assert sum(row.cpu_seconds for row in rows) == pytest.approx(cpus * ran)


def _wait_for_lock(api: Api, request: Future[Any]) -> None:
    """Wait until the request waits for a lock. No-op on SQLite, whose only lock is held."""
    if api.database.engine.dialect.name == "sqlite":
        return
    until(lambda: request.done() or waits_for_lock(api.database), "a lock", 60, pause=0.01)
