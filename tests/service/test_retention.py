"""Checkpoint retention: job settings, pins, deletion, and checkpoints still in use."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasl_core.spec import Checkpoints
from service import ids, lifecycle, registration
from service.artifacts.storage import Storage
from service.checkpoints import repository as checkpoints
from service.checkpoints.retention import obsolete_checkpoints
from service.db.models import Checkpoint, Job
from service.dispatcher.context import utc_now
from service.dispatcher.garbage import Garbage
from service.protocol import CheckpointReport
from service.runs.endings import Ending, Retry
from service.storage import repository as storage
from tests.support.api_under_test import Api, Worker, refused
from tests.support.statements import plan_of, recorded_statements


def sweep(garbage: Garbage) -> None:
    """Remove marked checkpoints, as a round of the dispatcher does."""
    with garbage._context.database.read() as session:
        marked = checkpoints.to_delete(session, 20, without=garbage._failures.waiting())
    for checkpoint in marked:
        garbage.remove(checkpoint)


def running(api: Api, **checkpoints: Any) -> Worker:
    return api.running(checkpoints=checkpoints)


def save(worker: Worker, step: int, final: bool = False, epoch: float = 1, **metrics: float) -> str:
    uri = f"{worker.uri}/checkpoints/step-{step}"
    folder = Path(uri.removeprefix("file://"))
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(b"1")
    files = [{"name": "weights", "size": 1, "sha256": "0" * 64}]
    answer = worker.post(
        "checkpoints", step=step, epoch=epoch, uri=uri, files=files, metrics=metrics, final=final
    )
    checkpoint_id: str = answer.json()["id"]
    return checkpoint_id


def kept(api: Api, worker: Worker) -> list[int]:
    answer = api.client.get(f"/v1/jobs/{worker.job_id}/checkpoints")
    return [checkpoint["step"] for checkpoint in answer.json()["data"]]


def on_disk(worker: Worker) -> list[str]:
    folder = Path(worker.uri.removeprefix("file://")) / "checkpoints"
    return sorted(path.name for path in folder.iterdir())


def test_retention_keeps_all_checkpoints_by_default(api: Api) -> None:
    worker = running(api)
    for step in (1, 2, 3):
        save(worker, step)
    assert kept(api, worker) == [1, 2, 3]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [({}, [4, 8, 10, 11]), ({"keep_last": 2}, [4, 8, 10, 11]), ({"keep_last": 1}, [8, 10, 11])],
)
def test_within_epochs_only_the_two_newest_checkpoints_are_kept(
    api: Api, policy: dict[str, int], expected: list[int]
) -> None:
    worker = running(api, **policy)
    for step in range(1, 12):
        save(worker, step, epoch=step / 4)
    assert kept(api, worker) == expected


def test_retention_keeps_pinned_and_used_checkpoints_within_epochs(api: Api) -> None:
    worker = running(api)
    pinned = save(worker, 1, epoch=0.5)
    api.client.patch(f"/v1/checkpoints/{pinned}", json={"pinned": True})
    started = save(worker, 2, epoch=0.7)
    changes = {"train": {"epochs": 1000}}
    clone = api.client.post(f"/v1/jobs/{worker.job_id}/clone", json={"changes": changes})
    assert clone.json()["start_checkpoint_id"] == started
    save(worker, 3, epoch=0.8)
    save(worker, 4, epoch=1.0)
    assert kept(api, worker) == [1, 2, 3, 4]
    save(worker, 5, epoch=1.2)
    assert kept(api, worker) == [1, 2, 4, 5]


def test_retention_keeps_newest_and_best_checkpoints(api: Api, garbage: Garbage) -> None:
    worker = running(api, keep_last=2, keep_best=1)
    for step, knn in enumerate((0.3, 0.9, 0.5, 0.6, 0.4), start=1):
        save(worker, step, knn_top1=knn)
    assert kept(api, worker) == [2, 4, 5]
    assert on_disk(worker) == ["step-1", "step-2", "step-3", "step-4", "step-5"]
    sweep(garbage)
    assert on_disk(worker) == ["step-2", "step-4", "step-5"]
    sweep(garbage)


def test_best_by_names_the_metric_and_its_direction(api: Api) -> None:
    worker = running(api, keep_last=1, keep_best=1, best_by="uniformity")
    path = f"/v1/jobs/{worker.job_id}/clone"
    clone = {"checkpoint": "best", "changes": {"train": {"epochs": 1000}}}
    save(worker, 1, knn_top1=0.9)
    refused(api.client.post(path, json=clone), 422, "checkpoint")
    unknown = refused(api.client.post(path, json={"checkpoint": "bets"}), 422, "checkpoint")
    assert unknown["errors"][0]["expected"] == "newest, best, or the id of one of its checkpoints"
    best = save(worker, 2, uniformity=-2.0, knn_top1=0.3)
    save(worker, 3, uniformity=-1.0, knn_top1=0.5)
    save(worker, 4, uniformity=-1.5, knn_top1=0.4)
    assert kept(api, worker) == [2, 4]
    assert api.client.post(path, json=clone).json()["start_checkpoint_id"] == best


def test_retention_keeps_pinned_checkpoints(api: Api) -> None:
    worker = running(api, keep_last=1)
    first = save(worker, 1)
    answer = api.client.patch(f"/v1/checkpoints/{first}", json={"pinned": True})
    assert (answer.status_code, answer.json()["pinned"]) == (200, True)
    save(worker, 2)
    assert kept(api, worker) == [1, 2]
    refused(api.client.delete(f"/v1/checkpoints/{first}"), 409, None, "checkpoint-in-use")
    api.client.patch(f"/v1/checkpoints/{first}", json={"pinned": False})
    save(worker, 3)
    assert kept(api, worker) == [3]


def test_verification_is_recorded_for_its_certificate_only(api: Api) -> None:
    worker = running(api)
    files = [{"name": "certificate.json", "size": 1, "sha256": "c" * 64}]
    saved = worker.post("checkpoints", step=1, epoch=1, uri=f"{worker.uri}/1", files=files)
    path = f"/v1/checkpoints/{saved.json()['id']}"
    assert api.client.get(path).json()["verification"] is None
    said = {"certificate": "c" * 64, "passed": True, "summary": "Verified: 3 of 5 windows"}
    other = said | {"certificate": "d" * 64}
    refused(api.client.patch(path, json={"verification": other}), 409, None, "other-certificate")
    refused(api.client.patch(path, json={"verification": None}), 422)
    refused(
        api.client.patch(path, json={"verification": said | {"summary": "x" * 501}}),
        422,
        "verification.summary",
    )
    assert api.client.get(path).json()["verification"] is None
    recorded = api.client.patch(path, json={"verification": said}).json()["verification"]
    assert said.items() <= recorded.items()
    failed = said | {"passed": False}
    api.client.patch(path, json={"verification": failed})
    assert api.client.get(path).json()["verification"]["passed"] is False


def test_retention_keeps_start_checkpoint_of_live_clone(api: Api) -> None:
    worker = running(api, keep_last=1)
    first = save(worker, 1)
    changes = {"train": {"epochs": 1000}}
    answer = api.client.post(f"/v1/jobs/{worker.job_id}/clone", json={"changes": changes})
    assert answer.json()["start_checkpoint_id"] == first
    save(worker, 2)
    assert kept(api, worker) == [1, 2]
    refused(api.client.delete(f"/v1/checkpoints/{first}"), 409, None, "checkpoint-in-use")
    api.client.post(f"/v1/jobs/{answer.json()['id']}/cancel")
    save(worker, 3)
    assert kept(api, worker) == [3]


def test_retention_is_repeated_when_an_attempt_or_a_clone_ends(api: Api) -> None:
    """What they resume from is kept beside newer checkpoints, but only while they run."""
    worker = running(api, keep_last=1)
    save(worker, 3)
    worker.post("finish", outcome="failed", error={"message": "again"})
    with api.database.write() as session:
        assert lifecycle.requeue(session, worker.job_id)
    again = api.start(worker.job_id)
    again.post("start")
    save(again, 6)
    assert kept(api, again) == [3, 6]
    path, changes = f"/v1/jobs/{worker.job_id}/clone", {"train": {"epochs": 1000}}
    clone = api.client.post(path, json={"changes": changes}).json()["id"]
    api.client.post(f"/v1/jobs/{worker.job_id}/pause")
    again.post("finish", outcome="paused")
    assert kept(api, again) == [6]
    api.client.post(f"/v1/jobs/{worker.job_id}/resume")
    last = api.start(worker.job_id)
    last.post("start")
    save(last, 9)
    last.post("finish", outcome="succeeded")
    assert kept(api, last) == [6, 9], "the clone has not started"
    api.client.post(f"/v1/jobs/{clone}/cancel")
    assert kept(api, last) == [9]


def test_delete_refuses_checkpoint_the_next_attempt_resumes_from(
    api: Api, garbage: Garbage
) -> None:
    worker = running(api)
    first, second = save(worker, 1), save(worker, 2)
    refused(api.client.delete(f"/v1/checkpoints/{second}"), 409, None, "checkpoint-in-use")
    assert api.client.delete(f"/v1/checkpoints/{first}").status_code == 204
    assert api.client.delete(f"/v1/checkpoints/{first}").status_code == 204
    assert api.client.get(f"/v1/checkpoints/{first}").json()["state"] == "deleting"
    file = f"/v1/checkpoints/{first}/files/weights"
    refused(api.client.get(file), 410, None, "checkpoint-deleted")
    sweep(garbage)
    assert api.client.get(f"/v1/checkpoints/{first}").json()["state"] == "deleted"
    refused(api.client.get(file), 410, None, "checkpoint-deleted")
    refused(api.client.patch(f"/v1/checkpoints/{first}", json={"pinned": True}), 410)
    refused(api.client.patch(f"/v1/checkpoints/{first}", json={}), 422)
    worker.post("finish", outcome="succeeded")
    assert api.client.delete(f"/v1/checkpoints/{second}").status_code == 204


@pytest.mark.dialect
def test_checkpoint_stays_marked_until_its_files_are_removed(
    api: Api, garbage: Garbage, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = running(api)
    first, _ = save(worker, 1), save(worker, 2)
    api.client.delete(f"/v1/checkpoints/{first}")

    def fail(*_: object) -> None:
        raise PermissionError("read-only")

    with monkeypatch.context() as patch:
        patch.setattr(garbage._context.storage, "remove", fail)
        sweep(garbage)
    assert api.client.get(f"/v1/checkpoints/{first}").json()["state"] == "deleting"
    garbage._context.clock = lambda: utc_now() + timedelta(minutes=5)
    assert garbage._context.take_lease()
    sweep(garbage)
    assert api.client.get(f"/v1/checkpoints/{first}").json()["state"] == "deleted"


@given(
    knn=st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=8),
    flags=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=8, max_size=8),
    keep_last=st.integers(1, 4),
    keep_best=st.integers(0, 4),
)
def test_retention_drops_only_old_inferior_unpinned_checkpoints(
    knn: list[float | None], flags: list[tuple[bool, bool]], keep_last: int, keep_best: int
) -> None:
    newest_first = [
        Checkpoint(
            id=ids.new_id("ckpt"),
            step=len(knn) - i,
            epoch=float(len(knn) - i),
            metrics={} if value is None else {"knn_top1": value},
            pinned=flags[i][0],
            final=flags[i][1],
        )
        for i, value in enumerate(knn)
    ]
    dropped = obsolete_checkpoints(
        Checkpoints(keep_last=keep_last, keep_best=keep_best), newest_first
    )
    kept = [c for c in newest_first if c not in dropped]
    assert kept[:keep_last] == newest_first[:keep_last]
    assert not any(c.pinned or c.final for c in dropped)
    protected = sum(c.pinned or c.final for c in newest_first[keep_last:])
    assert len(kept) <= keep_last + keep_best + protected
    assert len(kept) >= min(len(knn), keep_last + keep_best)
    for checkpoint in dropped:
        better = [
            c
            for c in newest_first[keep_last:]
            if c not in dropped
            and c.metrics.get("knn_top1", -1.0) >= checkpoint.metrics.get("knn_top1", -1.0)
        ]
        assert len(better) >= keep_best


def test_deleted_checkpoint_keeps_its_row_without_the_manifest(
    api: Api, garbage: Garbage, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = running(api, keep_last=1)
    deleted, newest = save(worker, 1), save(worker, 2)

    def manifests() -> dict[str, tuple[str, int]]:
        with api.database.read() as session:
            rows = (session.get_one(Checkpoint, each) for each in (deleted, newest))
            return {row.id: (row.state, len(row.files)) for row in rows}

    def fail(*_: object) -> None:
        raise OSError("the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(Storage, "remove", fail)
        sweep(garbage)
    # The files are still there, so the manifest is, too.
    assert manifests() == {deleted: ("deleting", 1), newest: ("registered", 1)}
    garbage._failures._tried_at.clear()
    sweep(garbage)
    assert manifests() == {deleted: ("deleted", 0), newest: ("registered", 1)}
    shown = api.client.get(f"/v1/checkpoints/{deleted}").json()
    assert (shown["state"], shown["files"]) == ("deleted", [])
    download = api.client.get(f"/v1/checkpoints/{deleted}/files/weights")
    refused(download, 410, type="checkpoint-deleted")
    with api.database.read() as session:
        assert checkpoints.stored_bytes(session) == (1, 0)


# SQLite only: PostgreSQL's planner scans a table as small as this one.
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_sums_of_sizes_do_not_read_deleted_checkpoints(api: Api) -> None:
    """Most rows of the table are deleted checkpoints, and the sums are made every few minutes."""
    with api.database.write() as session:
        with recorded_statements(api.database) as statements:
            checkpoints.stored_bytes(session)
            storage.stored_bytes(session)
        queries = [each for each in statements if "FROM checkpoints" in each[0]]
        # One sums model runs, and looks their checkpoints up by id.
        queries = [each for each in queries if "FROM model_runs" not in each[0]]
        assert len(queries) == 2
        for query in queries:
            (step,) = plan_of(session, *query)
            assert step.endswith("USING COVERING INDEX ix_checkpoints_with_files") or (
                "USING COVERING INDEX ix_checkpoints_with_files (state=?)" in step
            ), query


# SQLite only: PostgreSQL's planner scans a table as small as this one.
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_in_use_query_uses_indexes(api: Api) -> None:
    """Registering a checkpoint runs this query while its job's row is locked."""
    with api.database.read() as session:
        with recorded_statements(api.database) as statements:
            checkpoints.in_use(session, {ids.new_id("ckpt")})
            assert checkpoints.in_use(session, set()) == set()
        queries = [each for each in statements if each[0].startswith("SELECT")]
        assert len(queries) == 2
        for query in queries:
            plan = plan_of(session, *query)
            assert all("SEARCH" in step for step in plan), plan


def test_adopted_checkpoint_refills_the_budget_of_infrastructure_failures(api: Api) -> None:
    worker = running(api)
    with api.database.write() as session:
        job = session.get_one(Job, worker.job_id)
        job.infrastructure_failures = 4
    with api.database.write() as session:
        lost = Ending("lost", {"message": "gone"}, Retry.INFRASTRUCTURE)
        assert lifecycle.finish_attempt(session, worker.job_id, 1, lost) == "retry_wait"
    report = {"step": 3, "epoch": 1.0, "uri": f"{worker.uri}/checkpoints/step-3", "final": False}
    files = [{"name": "weights", "size": 1, "sha256": "0" * 64}]
    whole = CheckpointReport.model_validate({**report, "files": files, "metrics": {}})
    with api.database.write() as session:
        job = session.get_one(Job, worker.job_id)
        assert job.infrastructure_failures == 5
        registration.register(session, job, 1, whole, adopted=True)
        assert job.infrastructure_failures == 1
        # One of an attempt that others have followed is no progress since.
        job.infrastructure_failures, job.attempt = 5, 2
        step_4 = {"step": 4, "uri": f"{worker.uri}/checkpoints/step-4"}
        registration.register(session, job, 1, whole.model_copy(update=step_4), adopted=True)
        assert job.infrastructure_failures == 5
