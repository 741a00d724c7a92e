"""Deletion of jobs, and retention by age and size."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select, update

from dasl_core.spec import Checkpoints
from service import ids
from service.artifacts.attempt_log import AttemptLog
from service.checkpoints.retention import droppable
from service.db import leases
from service.db.models import Attempt, Base, Checkpoint, Expiry, Job, ModelRun, Run, Usage
from service.dispatcher.context import utc_now
from service.dispatcher.garbage import Garbage
from service.dispatcher.retention import Retention
from service.storage import repository as storage
from service.storage.clock import removal_time
from tests.service.test_retention import kept, save
from tests.support.api_under_test import Api, Worker, refused
from tests.support.clocks import agree, something_happens

CLONE = {"changes": {"train": {"epochs": 1000}}}


def ended(api: Api, outcome: str = "succeeded", steps: Sequence[int] = (1, 2)) -> Worker:
    """A job that ended, with checkpoints, metrics, an evaluation, an artifact and a log."""
    worker = api.running()
    for step in steps:
        save(worker, step)
    points = [{"step": step, "time": 1.0, "values": {"loss": 1.0}} for step in range(1, 8)]
    worker.post("metrics", points=points)
    worker.post("evaluations", step=2, epoch=1.0, subject="backbone", metrics={"knn_top1": 0.5})
    folder = Path(worker.uri.removeprefix("file://"))
    (folder / "artifacts").mkdir()
    (folder / "artifacts" / "plot.png").write_bytes(b"12345")
    (folder / "driver.log").write_text("line\n")
    uri, digest = f"{worker.uri}/artifacts/plot.png", "0" * 64
    about = {"name": "plot.png", "uri": uri, "size": 5, "sha256": digest}
    worker.post("artifacts", content_type="image/png", **about)
    end(api, worker, outcome)
    return worker


def end(api: Api, worker: Worker, outcome: str) -> None:
    if outcome == "cancelled":
        api.client.post(f"/v1/jobs/{worker.job_id}/cancel")
    error = {"error": {"message": "no"}, "retryable": False} if outcome == "failed" else {}
    worker.post("finish", outcome=outcome, **error)
    finalize(api, worker.job_id)


def finalize(api: Api, job_id: str) -> None:
    """Note that the processes of a job's attempts are gone, as the dispatcher does."""
    with api.database.write() as session:
        for run in session.scalars(select(Run).where(Run.owner == job_id)):
            run.settled = True


def rows_of(api: Api, job_id: str) -> dict[str, int]:
    """Numbers of rows that name a job, by table, without its runs and use, which stay."""
    counts = {}
    with api.database.read() as session:
        for table in Base.metadata.sorted_tables:
            column = table.c.get("id" if table.name == "jobs" else "job_id")
            if column is not None and table.name != "usage":
                query = select(func.count()).select_from(table).where(column == job_id)
                counts[table.name] = session.scalar(query) or 0
    return {name: count for name, count in counts.items() if count}


def test_delete_removes_everything_of_an_ended_job_and_nothing_else(
    api: Api, garbage: Garbage
) -> None:
    worker, other = ended(api), ended(api)
    before, folder = rows_of(api, other.job_id), Path(worker.uri.removeprefix("file://")).parents[1]
    path = f"/v1/jobs/{worker.job_id}"
    [checkpoint, _] = api.client.get(f"{path}/checkpoints").json()["data"]
    assert api.client.delete(path).status_code == 204
    for hidden in (path, f"{path}/events", f"{path}/checkpoints", f"{path}/metrics"):
        refused(api.client.get(hidden), 404)
    refused(api.client.get(f"/v1/checkpoints/{checkpoint['id']}"), 404)
    refused(api.client.post(f"{path}/clone", json=CLONE), 404)
    refused(api.client.delete(path), 404)
    listed = api.client.get("/v1/jobs").json()["data"]
    assert [job["id"] for job in listed] == [other.job_id]
    assert folder.exists()
    garbage.round()
    assert (rows_of(api, worker.job_id), folder.exists()) == ({}, False)
    with api.database.read() as session:
        used = session.scalars(select(Usage.job_id)).all()
    assert worker.job_id in used, "what was used stays in the ledger"
    assert rows_of(api, other.job_id) == before
    assert len(kept(api, other)) == 2
    audited = api.client.get("/v1/audit", headers=api.token("admin")).json()["data"]
    assert ("DELETE", path, 204) in [(e["method"], e["path"], e["status"]) for e in audited]


def test_counters_do_not_fall_when_a_job_is_deleted(api: Api, garbage: Garbage) -> None:
    worker, _ = ended(api, "failed"), ended(api)

    def counters() -> list[str]:
        lines = api.client.get("/metrics").text.splitlines()
        names = ("dasl_attempts_total", "dasl_restarts_total", "dasl_queue_wait_seconds_count")
        return [line for line in lines if line.startswith(names)]

    before = counters()
    assert 'dasl_attempts_total{outcome="failed",reason="other"} 1.0' in before
    assert api.client.delete(f"/v1/jobs/{worker.job_id}").status_code == 204
    garbage.round()
    assert counters() == before
    with api.database.read() as session:
        assert session.get_one(Attempt, (worker.job_id, 1)).error is None
    refused(worker.post("heartbeat"), 409)


def test_delete_is_refused_while_a_job_clone_or_pin_needs_it(api: Api, garbage: Garbage) -> None:
    worker = api.running()
    path = f"/v1/jobs/{worker.job_id}"
    problem = refused(api.client.delete(path), 409, None, "wrong-state")
    assert problem["job_status"] == "running"
    first = save(worker, 1)
    clone = api.client.post(f"{path}/clone", json=CLONE).json()["id"]
    end(api, worker, "succeeded")
    assert refused(api.client.delete(path), 409, None, "job-in-use")["jobs"] == [clone]
    api.client.post(f"/v1/jobs/{clone}/pause")
    refused(api.client.delete(path), 409, None, "job-in-use")
    api.client.post(f"/v1/jobs/{clone}/cancel")
    api.client.patch(f"/v1/checkpoints/{first}", json={"pinned": True})
    problem = refused(api.client.delete(path), 409, None, "job-in-use")
    assert problem["checkpoints"] == [first]
    api.client.patch(f"/v1/checkpoints/{first}", json={"pinned": False})
    assert api.client.delete(path).status_code == 204
    garbage.round()
    # The row of the ended clone still names the checkpoint.
    assert api.client.get(f"/v1/jobs/{clone}").json()["start_checkpoint_id"] == first


def test_replay_of_a_submission_after_deletion_is_refused(api: Api, garbage: Garbage) -> None:
    api.dataset()
    spec, headers = {"dataset": "emoji"}, {"Idempotency-Key": "once"}
    job = api.client.post("/v1/jobs", json=spec, headers=headers).json()["id"]
    api.client.post(f"/v1/jobs/{job}/cancel")
    assert api.client.delete(f"/v1/jobs/{job}").status_code == 204
    for _ in range(2):
        answer = api.client.post("/v1/jobs", json=spec, headers=headers)
        refused(answer, 410, None, "job-deleted")
        garbage.round()
    assert api.client.get("/v1/jobs").json()["data"] == []


def test_files_are_kept_until_the_processes_of_the_job_are_gone(api: Api, garbage: Garbage) -> None:
    worker = api.running()
    save(worker, 1)
    worker.post("finish", outcome="succeeded")
    api.client.delete(f"/v1/jobs/{worker.job_id}")
    with api.database.read() as session:
        assert storage.deleted(session, 20, ()) == []
    finalize(api, worker.job_id)
    with api.database.read() as session:
        assert storage.deleted(session, 20, ()) == [worker.job_id]


@pytest.mark.dialect
def test_interrupted_removal_is_continued(
    api: Api, garbage: Garbage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are removed in small transactions; whatever was removed before a kill, the rest follows."""
    worker = ended(api)
    api.client.delete(f"/v1/jobs/{worker.job_id}")
    monkeypatch.setattr("service.dispatcher.garbage._ROWS_AT_ONCE", 1)
    monkeypatch.setattr("service.dispatcher.garbage._TRANSACTIONS", 1)
    counts = [sum(rows_of(api, worker.job_id).values())]
    while counts[-1]:
        garbage.round()
        counts.append(sum(rows_of(api, worker.job_id).values()))
        assert counts[-1] < counts[-2]
    assert len(counts) > 10


def test_deleted_job_frees_its_data_set(api: Api) -> None:
    worker = api.running()
    dataset = api.client.get(f"/v1/jobs/{worker.job_id}").json()["dataset"]["id"]
    refused(api.client.delete(f"/v1/datasets/{dataset}"), 409)
    end(api, worker, "cancelled")
    assert api.client.delete(f"/v1/jobs/{worker.job_id}").status_code == 204
    assert api.client.delete(f"/v1/datasets/{dataset}").status_code == 204


def keep(garbage: Garbage, *, days: float = 10, grace: float = 1.0, **settings: Any) -> None:
    """Run rounds of retention with these settings, so many days from now and some days after."""
    context = garbage._context
    context.settings = context.settings.model_copy(update=settings)
    for now in (days, days + grace):
        at_time(garbage, utc_now() + timedelta(days=now))
        for _ in range(3):
            garbage._retention = Retention(context)
            garbage.round()


def at_time(garbage: Garbage, now: datetime, *, quiet: bool = False) -> None:
    """Set this machine's clock to a time at which, unless it is quiet, something happens."""
    garbage._context.clock = lambda: now
    garbage._context.renewed_at = None
    assert garbage._context.take_lease()
    if not quiet:
        something_happens(garbage._context.database, now)


@pytest.fixture
def database_clock(garbage: Garbage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the database's clock agree with the dispatcher's."""
    agree(monkeypatch, lambda: garbage._context.clock())


agreeing_clocks = pytest.mark.usefixtures("database_clock")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_clock_of_an_empty_database_is_no_warning(
    garbage: Garbage, caplog: pytest.LogCaptureFixture
) -> None:
    garbage._retention.round()
    assert "clock" not in caplog.text


@agreeing_clocks
def test_nothing_is_removed_by_default(api: Api, garbage: Garbage) -> None:
    worker = ended(api, "failed")
    before = rows_of(api, worker.job_id)
    keep(garbage)
    assert rows_of(api, worker.job_id) == before


@agreeing_clocks
@pytest.mark.parametrize("outcome", ["succeeded", "failed", "cancelled"])
def test_old_failed_and_cancelled_jobs_are_deleted(
    api: Api, garbage: Garbage, outcome: str
) -> None:
    worker = ended(api, outcome)
    keep(garbage, keep_jobs_days=13)
    assert rows_of(api, worker.job_id)
    keep(garbage, keep_jobs_days=9)
    assert bool(rows_of(api, worker.job_id)) == (outcome == "succeeded")


def test_job_whose_checkpoint_is_to_be_read_since_the_query_is_not_deleted(
    api: Api, garbage: Garbage
) -> None:
    worker = ended(api, "failed")
    path = f"/v1/jobs/{worker.job_id}"
    newest = api.client.get(f"{path}/checkpoints").json()["data"][-1]["id"]
    body = {"dataset": "emoji"}
    requested = api.client.post(f"/v1/checkpoints/{newest}/embeddings", json=body)
    assert requested.is_success, requested.text
    garbage._retention.delete_job(worker.job_id)
    assert api.client.get(path).is_success
    with api.database.write() as session:
        session.execute(update(ModelRun).values(state="failed"))
    garbage._retention.delete_job(worker.job_id)
    refused(api.client.get(path), 404)


@agreeing_clocks
def test_old_logs_metrics_and_artifacts_are_removed(api: Api, garbage: Garbage) -> None:
    worker, live = ended(api, steps=(1, 2, 3)), api.running()
    save(live, 1), save(live, 2)
    path, folder = f"/v1/jobs/{worker.job_id}", Path(worker.uri.removeprefix("file://"))
    first = api.client.get(f"{path}/checkpoints").json()["data"][0]["id"]
    api.client.patch(f"/v1/checkpoints/{first}", json={"pinned": True})
    settings = {"keep_logs_days": 9, "keep_metrics_days": 9, "keep_artifacts_days": 9}
    keep(garbage, **dict.fromkeys(settings, 13))
    assert kept(api, worker) == [1, 2, 3]
    keep(garbage, **settings)
    assert api.client.get(f"{path}/logs").text == ""
    assert api.client.get(f"{path}/metrics").json()["step"] == []
    assert api.client.get(f"{path}/artifacts").json()["data"] == []
    assert not (folder / "artifacts").exists()
    assert (kept(api, worker), kept(api, live)) == ([1, 3], [1, 2])
    job = api.client.get(path).json()
    assert all(job[f"{kind}_removed_at"] for kind in ("logs", "metrics", "artifacts"))
    assert len(api.client.get(f"{path}/evaluations").json()["data"]) == 1
    api.client.patch(f"/v1/checkpoints/{first}", json={"pinned": False})
    keep(garbage, **settings)
    assert kept(api, worker) == [3]


@agreeing_clocks
def test_checkpoints_are_removed_by_default_a_month_after_the_end(
    api: Api, garbage: Garbage
) -> None:
    """Not those that matter."""
    worker, live = ended(api, steps=(1, 2, 3)), api.running()
    save(live, 1), save(live, 2)
    checkpoints = api.client.get(f"/v1/jobs/{worker.job_id}/checkpoints").json()["data"]
    first = f"/v1/checkpoints/{checkpoints[0]['id']}"
    api.client.patch(first, json={"pinned": True})
    keep(garbage, days=28)
    assert kept(api, worker) == [1, 2, 3]
    keep(garbage, days=31)
    assert (kept(api, worker), kept(api, live)) == ([1, 3], [1, 2])
    assert api.client.get(f"/v1/jobs/{worker.job_id}/artifacts").json()["data"]
    api.client.patch(first, json={"pinned": False})
    keep(garbage, days=31)
    assert kept(api, worker) == [3]


def test_older_checkpoints_of_an_ended_job_are_deleted_at_once(api: Api, garbage: Garbage) -> None:
    worker, live = ended(api, steps=(1, 2, 3)), api.running()
    save(live, 1), save(live, 2)
    path = f"/v1/jobs/{worker.job_id}/checkpoints"
    second = api.client.get(path).json()["data"][1]["id"]
    api.client.patch(f"/v1/checkpoints/{second}", json={"pinned": True})
    assert api.client.delete(path).json() == {"deleted": 1, "bytes": 1}
    assert api.client.delete(path).json() == {"deleted": 0, "bytes": 0}
    garbage.round()
    assert kept(api, worker) == [2, 3]
    problem = refused(api.client.delete(f"/v1/jobs/{live.job_id}/checkpoints"), 409)
    assert (problem["type"], problem["job_status"]) == ("wrong-state", "running")
    assert kept(api, live) == [1, 2]
    refused(api.client.delete(f"/v1/jobs/{ids.new_id('job')}/checkpoints"), 404)


@agreeing_clocks
def test_retention_pauses_when_many_removals_failed(
    api: Api, garbage: Garbage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.dispatcher.retention._MOST_FAILED", 2)
    monkeypatch.setattr("service.dispatcher.retention._BATCH_SIZE", 1)
    for _ in range(4):
        ended(api)
    tried: list[AttemptLog] = []

    def fail(log: AttemptLog) -> None:
        tried.append(log)
        raise OSError("the store is away")

    monkeypatch.setattr(AttemptLog, "remove", fail)
    context = garbage._context
    context.settings = context.settings.model_copy(update={"keep_logs_days": 1})
    retention = Retention(context)
    for days in (10, 11.1):
        at_time(garbage, utc_now() + timedelta(days=days))
        for _ in range(5):
            retention.round()
    assert len(tried) == 2


@pytest.mark.dialect
@agreeing_clocks
def test_size_limit_removes_from_the_earliest_ended_jobs_only_what_it_must(
    api: Api, garbage: Garbage
) -> None:
    """Each checkpoint takes one byte, and each artifact five."""
    first, second = ended(api, steps=(1, 2, 3)), ended(api, steps=(1, 2, 3))
    keep(garbage, max_artifact_bytes=16)
    assert (kept(api, first), kept(api, second)) == ([1, 2, 3], [1, 2, 3])
    keep(garbage, max_artifact_bytes=15)
    assert (kept(api, first), kept(api, second)) == ([2, 3], [1, 2, 3])
    keep(garbage, max_artifact_bytes=8)
    assert (kept(api, first), kept(api, second)) == ([3], [2, 3])
    keep(garbage, max_artifact_bytes=1)
    assert (kept(api, first), kept(api, second)) == ([3], [3])


checkpoint_rows = st.lists(
    st.tuples(st.booleans(), st.booleans(), st.one_of(st.none(), st.floats(0, 1))), max_size=8
)


@given(rows=checkpoint_rows, keep_best=st.integers(0, 3))
def test_droppable_keeps_newest_final_best_and_pinned(
    rows: list[tuple[bool, bool, float | None]], keep_best: int
) -> None:
    newest_first = [
        Checkpoint(
            id=ids.new_id("ckpt"),
            step=len(rows) - i,
            epoch=float(len(rows) - i),
            pinned=pinned,
            final=final,
            metrics={} if knn is None else {"knn_top1": knn},
        )
        for i, (pinned, final, knn) in enumerate(rows)
    ]
    dropped = droppable(Checkpoints(keep_best=keep_best), newest_first)
    assert [c.step for c in dropped] == sorted(c.step for c in dropped)
    assert not any(c.pinned or c.final or c is newest_first[0] for c in dropped)
    values = [c.metrics["knn_top1"] for c in newest_first if c.metrics]
    stay = [c for c in newest_first if c not in dropped]
    best = max(values, default=None)
    assert best is None or any(c.metrics.get("knn_top1") == best for c in stay)
    # It frees all that it may: what stays has a reason.
    reasonless = [c for c in stay[1:] if not (c.pinned or c.final)]
    assert len(reasonless) <= max(1, keep_best)


def test_storage_report_names_other_tenants_to_operators_only(api: Api) -> None:
    worker = api.running()
    uri = f"{worker.uri}/artifacts/plot.png"
    stored = worker.post(
        "artifacts", name="plot.png", uri=uri, size=7, sha256="0" * 64, content_type="image/png"
    )
    assert stored.is_success, stored.text

    def store(*scopes: Any, tenant: str) -> tuple[int, list[dict[str, Any]]]:
        headers = api.token(*scopes, tenant=tenant)
        shown = api.client.get("/v1/storage", headers=headers).json()["store"]
        return shown["bytes"], shown["tenants"]

    of_default = (7, [{"tenant": "default", "bytes": 7, "uploads": 0}])
    assert store("admin", tenant="lab") == (0, [])
    assert store("admin", tenant="default") == of_default
    assert store("operator", tenant="operations") == of_default


@pytest.mark.dialect
@agreeing_clocks
def test_what_is_old_is_marked_a_day_before_its_removal(api: Api, garbage: Garbage) -> None:
    worker = ended(api)
    path = f"/v1/jobs/{worker.job_id}"
    keep(garbage, grace=0.9, keep_logs_days=9, keep_metrics_days=9)
    job = api.client.get(path).json()
    assert datetime.fromisoformat(job["expires_at"]) == pytest.approx(
        utc_now() + timedelta(days=11), abs=timedelta(hours=1)
    )
    assert (job["logs_removed_at"], api.client.get(f"{path}/logs").text) == (None, "line\n")
    assert api.client.post(f"{path}/undelete").json()["expires_at"] is None
    refused(api.client.post(f"{path}/undelete"), 409, type="wrong-state")
    keep(garbage, days=8.9, keep_logs_days=9)  # as long again
    assert api.client.get(f"{path}/logs").text == "line\n"
    keep(garbage, days=10, keep_logs_days=9)
    assert api.client.get(f"{path}/logs").text == ""
    assert api.client.get(path).json()["expires_at"] is None, "it is removed"


@agreeing_clocks
def test_removal_in_parts_goes_on_in_the_next_round(
    api: Api, garbage: Garbage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.dispatcher.retention._ROWS_AT_ONCE", 4)
    monkeypatch.setattr("service.dispatcher.retention._TRANSACTIONS", 1)
    worker = ended(api)  # with 7 points
    keep(garbage, keep_metrics_days=9)
    job = api.client.get(f"/v1/jobs/{worker.job_id}").json()
    assert job["metrics_removed_at"]


@agreeing_clocks
def test_what_is_taken_back_stays_as_long_again(api: Api, garbage: Garbage) -> None:
    path = f"/v1/jobs/{ended(api).job_id}"
    with api.database.write() as session:
        session.execute(update(Job).values(finished_at=utc_now() - timedelta(days=20)))
    keep(garbage, days=0.1, grace=0.1, keep_logs_days=9)
    assert api.client.post(f"{path}/undelete").is_success
    keep(garbage, days=7, keep_logs_days=9)
    assert api.client.get(f"{path}/logs").text == "line\n"
    keep(garbage, days=9.1, keep_logs_days=9)
    assert api.client.get(f"{path}/logs").text == ""


@agreeing_clocks
def test_nothing_of_a_job_is_removed_while_its_processes_may_run(
    api: Api, garbage: Garbage
) -> None:
    path = f"/v1/jobs/{ended(api).job_id}"
    with api.database.write() as session:
        session.execute(update(Run).values(settled=False))
    keep(garbage, keep_logs_days=9)
    assert api.client.get(path).json()["logs_removed_at"] is None
    with api.database.write() as session:
        session.execute(update(Run).values(settled=True))
    keep(garbage, keep_logs_days=9)
    assert api.client.get(path).json()["logs_removed_at"]


@agreeing_clocks
def test_each_part_is_marked_a_day_before_its_own_removal(api: Api, garbage: Garbage) -> None:
    path = f"/v1/jobs/{ended(api).job_id}"
    keep(garbage, grace=0.9, keep_logs_days=9)
    keep(garbage, days=11.1, grace=0.9, keep_logs_days=9, keep_metrics_days=9)
    job = api.client.get(path).json()
    assert (bool(job["logs_removed_at"]), job["metrics_removed_at"]) == (True, None)
    keep(garbage, days=12.2, grace=0, keep_logs_days=9, keep_metrics_days=9)
    assert api.client.get(path).json()["metrics_removed_at"]


@agreeing_clocks
def test_removal_that_failed_is_tried_again_without_another_day(
    api: Api, garbage: Garbage, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = ended(api)
    context = garbage._context
    context.settings = context.settings.model_copy(update={"keep_logs_days": 9})
    retention = Retention(context)

    def round_after(days: float) -> bool:
        at_time(garbage, utc_now() + timedelta(days=days))
        retention.round()
        return bool(api.client.get(f"/v1/jobs/{worker.job_id}").json()["logs_removed_at"])

    def fail(_: AttemptLog) -> None:
        raise OSError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(AttemptLog, "remove", fail)
        assert not round_after(10)
        assert not round_after(11.01)
    assert not round_after(11.02), "it waits for an hour"
    assert round_after(11.1)


def test_clock_that_jumps_for_a_while_removes_nothing(api: Api, garbage: Garbage) -> None:
    """Two rounds with a clock 40 days ahead deleted 5 of 6 checkpoints of a job that had ended ten minutes before."""
    worker = ended(api, steps=(1, 2, 3))
    for ahead in (40, 41.1, 45):
        at_time(garbage, utc_now() + timedelta(days=ahead), quiet=True)
        garbage.round()
        garbage._retention = Retention(garbage._context)
    assert kept(api, worker) == [1, 2, 3]
    assert api.client.get(f"/v1/jobs/{worker.job_id}").json()["expires_at"] is None


@agreeing_clocks
def test_second_jump_of_the_same_clock_removes_nothing(api: Api, garbage: Garbage) -> None:
    """After the first jump, in which something happened, the marks must not wait for the second one."""
    worker = ended(api, steps=(1, 2, 3))
    path = f"/v1/jobs/{worker.job_id}"
    for days, marked in ((40, True), (0.1, False), (1.1, False), (41.5, True)):
        at_time(garbage, utc_now() + timedelta(days=days))
        garbage._retention = Retention(garbage._context)
        garbage.round()
        assert bool(api.client.get(path).json()["expires_at"]) == marked
    assert kept(api, worker) == [1, 2, 3]


@agreeing_clocks
def test_job_that_is_taken_back_during_a_round_stays(
    api: Api, garbage: Garbage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round removed the logs of a job that a user had taken back since the round began."""
    jobs = [ended(api).job_id for _ in range(2)]
    keep(garbage, grace=0.9, keep_logs_days=9)
    remove = AttemptLog.remove
    answers: list[int] = []

    def slowly(log: AttemptLog) -> None:
        # The first can no longer be taken back, the second can.
        answers.extend(api.client.post(f"/v1/jobs/{job}/undelete").status_code for job in jobs)
        remove(log)

    monkeypatch.setattr(AttemptLog, "remove", slowly)
    keep(garbage, days=11.1, grace=0, keep_logs_days=9)
    assert answers == [409, 200]
    removed = [api.client.get(f"/v1/jobs/{job}").json()["logs_removed_at"] for job in jobs]
    assert [bool(at) for at in removed] == [True, False]


# PostgreSQL only: SQLite has no clock of its own.
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_nothing_is_removed_while_the_database_and_the_machine_disagree(api: Api) -> None:
    with api.database.read() as session:
        now = leases.current_time(session)
        assert removal_time(session, now)
        for apart in (timedelta(minutes=6), -timedelta(minutes=6)):
            assert removal_time(session, now + apart) is None


@agreeing_clocks
def test_mark_of_a_wrong_clock_is_dropped(api: Api, garbage: Garbage) -> None:
    """The clock is right again before the day is over."""
    worker = ended(api, steps=(1, 2, 3))
    at_time(garbage, utc_now() + timedelta(days=40))
    garbage.round()
    assert api.client.get(f"/v1/jobs/{worker.job_id}").json()["expires_at"]
    with api.database.write() as session:
        session.execute(update(Expiry).values(marked_at=utc_now() - timedelta(days=2)))
    at_time(garbage, utc_now())
    garbage._retention = Retention(garbage._context)
    garbage.round()
    assert kept(api, worker) == [1, 2, 3]
    assert api.client.get(f"/v1/jobs/{worker.job_id}").json()["expires_at"] is None
