"""The worker API: reports of an attempt, and 409 for a superseded one."""

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import update

from dasl_core.spec import ResolvedJobSpec
from service import credentials, lifecycle
from service.datasets.ingests import repository as ingests
from service.db.models import IngestRun, Run
from service.protocol import MAX_JSON
from service.runs import repository as runs
from service.runs.endings import Ending
from service.scheduling import repository as scheduling
from service.states import DatasetState, StaleAttempt
from service.wire.checkpoints import MAX_SIZE
from service.worker_api import fencing
from tests.support.api_under_test import Api, Worker, refused

SHA = "0" * 64
REPORTS = ("metrics", "evaluations", "events", "checkpoints", "artifacts")


def running(api: Api, **spec: Any) -> Worker:
    api.dataset()
    worker = api.start(api.submit(**spec)["id"])
    assert worker.post("start").status_code == 200
    return worker


EVALUATION = {"step": 1, "epoch": 1, "subject": "backbone"}
NO_NUMBERS = ("n/a", "Infinity", {"a": 1}, [1], True, None)
"""What a figure must not be: SQL compares and sums them."""
HUGE_RANK = {"id": "a", "address": "", "ranks": [10**300]}


def manifest(worker: Worker, step: int = 10, **changes: Any) -> dict[str, Any]:
    return {
        "step": step,
        "epoch": 1,
        "uri": f"{worker.uri}/checkpoints/{step}",
        "files": [{"name": "backbone.safetensors", "size": 3, "sha256": SHA}],
        "metrics": {"knn": 0.5},
        "final": False,
        **changes,
    }


def reports(worker: Worker) -> dict[str, dict[str, Any]]:
    """Return a valid body for each report that only attempts send."""
    file = {"uri": f"{worker.uri}/a.png", "size": 1, "sha256": SHA}
    return {
        "metrics": {"points": [{"step": 1, "time": 1.0, "values": {"loss": 1.0}}]},
        "evaluations": {"step": 1, "epoch": 1, "subject": "raw", "metrics": {}},
        "events": {"type": "note"},
        "checkpoints": manifest(worker),
        "artifacts": {"name": "a.png", **file},
    }


def job(api: Api, worker: Worker) -> dict[str, Any]:
    shown: dict[str, Any] = api.client.get(f"/v1/jobs/{worker.job_id}").json()
    return shown


def next_attempt(api: Api, worker: Worker) -> Worker:
    """Let the worker's attempt fail, and start the job's next one."""
    assert worker.post("finish", outcome="failed").status_code == 204
    with api.database.write() as session:
        assert lifecycle.requeue(session, worker.job_id)
    return api.start(worker.job_id)


def test_start_returns_everything_and_is_idempotent(api: Api) -> None:
    dataset = api.dataset()
    held_out = api.dataset(name="held-out")
    submitted = api.submit(
        evaluate={"dataset": "held-out"}, resources={"cpus_per_worker": 1, "gpus_per_worker": 0}
    )
    worker = api.start(submitted["id"])
    first, again = worker.post("start").json(), worker.post("start").json()
    assert first == again
    assert (
        ResolvedJobSpec.model_validate(first["spec"]).model_dump(mode="json")
        == submitted["resolved"]
    )
    assert (first["dataset"]["id"], first["evaluate_dataset"]["id"]) == (dataset, held_out)
    assert first["dataset"]["facts"]["num_images"] == 100
    assert (first["resume"], first["heartbeat_seconds"]) == (None, 2.0)
    assert first["artifacts_uri"] == worker.uri
    shown = job(api, worker)
    assert (shown["status"], shown["attempt"]) == ("running", 1)
    assert shown["started_at"] is not None
    events = api.client.get(f"/v1/jobs/{worker.job_id}/events").json()["data"]
    assert [event["data"]["to"] for event in events] == ["queued", "starting", "running"]


@pytest.mark.dialect
def test_repeated_event_is_recorded_once_per_attempt(api: Api) -> None:
    def notes() -> list[Any]:
        events = api.client.get(f"/v1/jobs/{first.job_id}/events").json()["data"]
        return [event["data"]["step"] for event in events if event["type"] == "note"]

    first = running(api)
    for step in (1, 1, 2, 2, 1):
        note = {"type": "note", "message": "hello", "data": {"step": step}}
        assert first.post("events", **note).status_code == 204
    assert notes() == [1, 2, 1]
    second = next_attempt(api, first)
    assert second.post("start").status_code == 200
    assert second.post("events", **note).status_code == 204
    assert notes() == [1, 2, 1, 1], "the event of another attempt is another event"


def test_placement_names_the_nodes_of_this_attempt(api: Api) -> None:
    worker = running(api, resources={"workers": 2})
    nodes = [{"id": "a", "address": "10.0.0.1", "ranks": [0, 1]}]
    for number, placed, field in ((2, nodes, "data.attempt"), (1, [], "nodes")):
        data = {"attempt": number, "nodes": placed}
        refused(worker.post("events", type="placement", data=data), 422, field)
    data = {"attempt": 1, "nodes": nodes}
    assert worker.post("events", type="placement", data=data).status_code == 204
    with api.database.read() as session:
        (attempt,) = scheduling.running(session, datetime.now(UTC))
    assert attempt.placement == {"a": 2}


def test_verdict_is_a_field_of_the_job_until_it_trains_again(api: Api) -> None:
    def fail_and_restart(worker: Worker) -> Worker:
        worker = next_attempt(api, worker)
        assert worker.post("start").status_code == 200
        return worker

    worker = running(api)
    verdict = {"verdict": "healthy", "message": "healthy: ...", "metrics": {"knn_top1": 0.5}}
    report = {"type": "verdict", "message": "Verdict: healthy: ...", "data": verdict}
    assert job(api, worker)["verdict"] is None
    refused(worker.post("events", **report | {"data": {"verdict": "healthy"}}), 422)
    assert worker.post("events", **report).status_code == 204
    assert job(api, worker)["verdict"] == verdict

    worker = fail_and_restart(worker)
    assert job(api, worker)["verdict"] is None, "the last epochs run again"
    worker.post("events", **report)
    assert worker.post("checkpoints", **manifest(worker, final=True)).status_code == 201
    worker = fail_and_restart(worker)
    assert job(api, worker)["verdict"] == verdict, "nothing is evaluated again"
    clone = api.client.post(
        f"/v1/jobs/{worker.job_id}/clone", json={"changes": {"train": {"epochs": 9}}}
    )
    assert (clone.status_code, clone.json()["verdict"]) == (202, None)


def test_heartbeat_stores_progress_and_returns_cancel(api: Api) -> None:
    worker = running(api)
    progress = {"step": 3, "total_steps": 90, "loss": 2.5, "knn": None}
    assert worker.post("heartbeat", progress=progress).json() == {"desired": "run"}
    assert worker.post("heartbeat").json() == {"desired": "run"}
    assert job(api, worker)["progress"] == progress
    cancelled = api.client.post(f"/v1/jobs/{worker.job_id}/cancel").json()
    assert (cancelled["status"], cancelled["desired"]) == ("running", "cancel")
    assert worker.post("heartbeat").json() == {"desired": "cancel"}
    assert worker.post("finish", outcome="cancelled").status_code == 204
    assert job(api, worker)["status"] == "cancelled"


def test_finish_is_idempotent_and_ends_the_attempt(api: Api) -> None:
    worker = running(api)
    for _ in range(2):
        assert worker.post("finish", outcome="succeeded").status_code == 204
    assert job(api, worker)["status"] == "succeeded"
    refused(worker.post("finish", outcome="failed"), 409, None, "stale-attempt")
    for action in ("start", "heartbeat"):
        refused(worker.post(action), 409, None, "stale-attempt")


def test_sizes_of_a_checkpoint_are_bounded_together(api: Api) -> None:
    worker = running(api)
    files = [{"name": f"{i}", "size": MAX_SIZE - 1, "sha256": SHA} for i in range(2)]
    refused(worker.post("checkpoints", **manifest(worker, files=files)), 422, "body")


@pytest.mark.parametrize("kind", ["no-room", "node-died", "store-unavailable"])
def test_attempt_that_something_else_ended_uses_no_restart(api: Api, kind: str) -> None:
    worker = running(api, resources={"max_restarts": 0})
    error = {"type": kind, "message": "Ray had no room for the ranks of the attempt"}
    assert worker.post("finish", outcome="failed", error=error).status_code == 204
    shown = job(api, worker)
    assert (shown["status"], shown["restarts"]) == ("retry_wait", 0)


@pytest.mark.dialect
def test_superseded_attempt_is_refused_everything(api: Api) -> None:
    old = running(api)
    error = {"type": "Lost", "message": "no heartbeat"}
    with api.database.write() as session:
        lifecycle.finish_attempt(session, old.job_id, 1, Ending("lost", error))
        assert lifecycle.requeue(session, old.job_id)
    new = api.start(old.job_id)
    assert new.number == 2
    start_and_end = {"start": {}, "heartbeat": {}, "finish": {"outcome": "succeeded"}}
    for action, body in (reports(old) | start_and_end).items():
        refused(old.post(action, **body), 409, None, "stale-attempt")
    impostor = Worker(api, new.job_id, new.number, old.token)
    refused(impostor.post("heartbeat"), 401, None, "unauthenticated")
    assert job(api, new)["status"] == "starting"
    assert new.post("start").status_code == 200


def test_failure_retries_from_newest_checkpoint_then_shows_error(api: Api) -> None:
    worker = running(api, resources={"max_restarts": 1})
    checkpoint = worker.post("checkpoints", **manifest(worker)).json()["id"]
    error = {"type": "ValueError", "message": "loss is NaN", "traceback": "..."}
    assert worker.post("finish", outcome="failed", error=error).status_code == 204
    assert job(api, worker)["status"] == "retry_wait"
    assert job(api, worker)["error"] is None
    with api.database.write() as session:
        assert lifecycle.requeue(session, worker.job_id)
    second = api.start(worker.job_id)
    resume = second.post("start").json()["resume"]
    assert (resume["checkpoint_id"], resume["step"]) == (checkpoint, 10)
    assert resume["files"] == manifest(worker)["files"]
    assert second.post("finish", outcome="failed", error=error).status_code == 204
    shown = job(api, second)
    assert (shown["status"], shown["error"], shown["restarts"]) == ("failed", error, 1)
    attempts = api.client.get(f"/v1/jobs/{worker.job_id}/attempts").json()["data"]
    assert [attempt["state"] for attempt in attempts] == ["failed", "failed"]
    assert attempts[1]["resume_checkpoint_id"] == checkpoint
    assert second.token not in str(attempts)
    assert credentials.hash_token(second.token) not in str(attempts)


@pytest.mark.parametrize(
    ("action", "body", "field"),
    [
        *(
            ("evaluations", EVALUATION | {"metrics": {"knn_top1": value}}, "metrics")
            for value in NO_NUMBERS
        ),
        ("heartbeat", {"progress": {"step": [1]}}, "progress"),
        ("heartbeat", {"progress": {"step": "x" * 201}}, "progress"),
        ("heartbeat", {"progress": {"times": {"step": {"a": 1}}}}, "progress"),
        ("events", {"type": "note", "data": {"text": "x" * MAX_JSON}}, "body"),
        ("events", {"type": "placement", "data": {"attempt": 1, "nodes": [HUGE_RANK]}}, "nodes"),
        (
            "finish",
            {"outcome": "failed", "error": {"message": "", "more": "x" * MAX_JSON}},
            "error",
        ),
        ("artifacts", {"name": "a.png", "uri": "file:///a", "size": 2**62, "sha256": SHA}, "size"),
    ],
)
def test_worker_api_names_bad_fields(
    api: Api, action: str, body: dict[str, Any], field: str
) -> None:
    worker = running(api)
    problem = refused(worker.post(action, **body), 422)
    assert problem["errors"][0]["field"].split(".")[0] == field
    assert worker.post("heartbeat").status_code == 200


def test_worker_api_refuses_non_finite_values(api: Api) -> None:
    worker = running(api)
    for number in ("NaN", "Infinity", "-Infinity", "1e999"):
        for action, body in {
            "metrics": '{"points": [{"step": 1, "time": 1.0, "values": {"loss": %s}}]}',
            "heartbeat": '{"progress": {"loss": %s}}',
            "heartbeat ": '{"progress": {"deep": {"loss": %s}}}',
            "events": '{"type": "note", "data": {"x": [%s]}}',
        }.items():
            answer = api.client.post(
                f"/worker/v1/{worker.path}/{action.strip()}",
                content=body % number,
                headers=worker.headers | {"content-type": "application/json"},
            )
            assert answer.status_code in (400, 422), (number, action, answer.text)


def test_repeated_checkpoint_is_kept_and_repeated_artifact_replaced(api: Api) -> None:
    worker = running(api)
    ids = {worker.post("checkpoints", **manifest(worker)).json()["id"] for _ in range(2)}
    assert len(ids) == 1
    twice = manifest(worker, step=20, files=manifest(worker)["files"] * 2)
    refused(worker.post("checkpoints", **twice), 422, "files")
    for size in (1, 2):
        body = {"name": "loss.png", "uri": f"{worker.uri}/loss.png", "size": size}
        answer = worker.post("artifacts", sha256=f"{size}" * 64, content_type="image/png", **body)
        assert answer.status_code == 204
    listed = api.client.get(f"/v1/jobs/{worker.job_id}/artifacts").json()["data"]
    assert [(entry["name"], entry["size"]) for entry in listed] == [("loss.png", 2)]
    shown = api.client.get(f"/v1/jobs/{worker.job_id}/checkpoints").json()["data"]
    assert [entry["id"] for entry in shown] == list(ids)
    one = api.client.get(f"/v1/checkpoints/{shown[0]['id']}").json()
    assert one == shown[0]
    assert worker.uri not in str(one), "storage locations are not public"


@pytest.mark.dialect
def test_metrics_of_newest_attempt_win_per_step(api: Api) -> None:
    first = running(api)
    point = {"time": 1.0, "values": {"loss": 1.0, "lr": 0.1}}
    points = [{"step": step, **point} for step in range(1, 6)]
    for _ in range(2):
        assert first.post("metrics", points=points).status_code == 204
    evaluation = {"step": 4, "epoch": 2, "subject": "backbone"}
    first.post("evaluations", metrics={"knn": 0.1}, **evaluation)
    with api.database.write() as session:
        error = {"type": "x", "message": "y"}
        lifecycle.finish_attempt(session, first.job_id, 1, Ending("lost", error))
        lifecycle.requeue(session, first.job_id)
    second = api.start(first.job_id)
    second.post("start")
    second.post("metrics", points=[{"step": 4, "time": 2.0, "values": {"loss": 9.0}}])
    for _ in range(2):
        second.post("evaluations", metrics={"knn": 0.2}, **evaluation)
    path = f"/v1/jobs/{first.job_id}"
    assert api.client.get(f"{path}/metrics").json() == {
        "step": [1, 2, 3, 4, 5],
        "time": [1.0, 1.0, 1.0, 2.0, 1.0],
        "values": {"loss": [1.0, 1.0, 1.0, 9.0, 1.0], "lr": [0.1] * 5},
    }
    part = api.client.get(f"{path}/metrics", params={"name": "loss", "from_step": 4}).json()
    assert part == {"step": [4, 5], "time": [2.0, 1.0], "values": {"loss": [9.0, 1.0]}}
    assert api.client.get(f"{path}/metrics", params={"name": "none"}).json()["step"] == []
    evaluations = api.client.get(f"{path}/evaluations").json()["data"]
    assert [(entry["attempt"], entry["metrics"]) for entry in evaluations] == [(2, {"knn": 0.2})]
    part = api.client.get(f"{path}/metrics", params={"name": "loss", "from_step": 2, "to_step": 3})
    assert part.json() == {"step": [2, 3], "time": [1.0, 1.0], "values": {"loss": [1.0, 1.0]}}
    assert api.client.get(f"{path}/metrics", params={"to_step": 0}).json()["step"] == []
    for params in ({"max_points": 1}, {"from_step": -1}, {"from_step": 2**70}, {"to_step": -1}):
        refused(api.client.get(f"{path}/metrics", params=params), 422, next(iter(params)))


def test_evaluation_of_other_metrics_replaces_the_stored_one_with_an_event(api: Api) -> None:
    """Such as the final evaluation, with a probe, of a training that stopped at an evaluation."""
    worker, evaluation = running(api), {"step": 4, "epoch": 2, "subject": "backbone"}
    measured = [{"knn_top1": 0.2}, {"knn_top1": 0.2, "linear_top1": 0.1 + 0.2}]
    for metrics in (measured[0], measured[0], measured[1], measured[1]):
        worker.post("evaluations", metrics=metrics, **evaluation)
    path = f"/v1/jobs/{worker.job_id}"
    (stored,) = api.client.get(f"{path}/evaluations").json()["data"]
    events = api.client.get(f"{path}/events").json()["data"]
    assert stored["metrics"] == measured[1]
    assert [e["data"]["metrics"] for e in events if e["type"] == "evaluation"] == measured


def damage_events(api: Api, worker: Worker) -> list[dict[str, Any]]:
    events = api.client.get(f"/v1/jobs/{worker.job_id}/events?limit=1000").json()["data"]
    return [event for event in events if event["type"] == "checkpoint_damaged"]


def test_damaged_checkpoint_is_replaced_by_the_previous_one(api: Api) -> None:
    first = running(api)
    ids = [first.post("checkpoints", **manifest(first, step)).json()["id"] for step in (10, 20)]
    second = next_attempt(api, first)
    start = second.post("start").json()
    assert start["resume"]["checkpoint_id"] == ids[1]
    # An attempt can report only the checkpoint that it resumes from.
    other = second.post("damaged-checkpoint", checkpoint_id=ids[0], damage="is missing")
    assert other.json() == start
    for _ in range(2):  # an answer may be lost
        answer = second.post("damaged-checkpoint", checkpoint_id=ids[1], damage="a is missing")
        assert answer.status_code == 200
        assert answer.json()["resume"]["checkpoint_id"] == ids[0]
    assert second.post("start").json() == answer.json()
    [event] = damage_events(api, second)
    assert event["message"] == (
        f"Checkpoint {ids[1]} is damaged: a is missing. The attempt resumes from "
        f"step 10 (checkpoint {ids[0]})"
    )
    progress = api.client.get(f"/v1/jobs/{first.job_id}").json()["progress"]
    assert progress["step"] == 10, "progress restarts at the older checkpoint"
    attempts = api.client.get(f"/v1/jobs/{first.job_id}/attempts").json()["data"]
    assert attempts[1]["resume_checkpoint_id"] == ids[0]
    # The damaged checkpoint is no longer offered to users, the next attempt or a clone.
    listed = api.client.get(f"/v1/jobs/{first.job_id}/checkpoints").json()["data"]
    assert [checkpoint["id"] for checkpoint in listed] == ids[:1]
    shown = api.client.get(f"/v1/checkpoints/{ids[1]}").json()
    assert shown["state"] == "damaged"
    file = api.client.get(f"/v1/checkpoints/{ids[1]}/files/backbone.safetensors")
    refused(file, 410, type="checkpoint-damaged")
    clone = api.client.post(f"/v1/jobs/{first.job_id}/clone", json={"checkpoint": ids[1]})
    problem = refused(clone, 422, "checkpoint")
    assert problem["detail"] == "checkpoint: is damaged"
    third = next_attempt(api, second)
    assert third.post("start").json()["resume"]["checkpoint_id"] == ids[0]
    # Without an intact checkpoint the training starts from scratch.
    answer = third.post("damaged-checkpoint", checkpoint_id=ids[0], damage="b is missing")
    assert answer.json()["resume"] is None
    assert damage_events(api, third)[-1]["message"].endswith(
        "is missing. The training starts from scratch"
    )
    assert job(api, third)["restarts"] == 2, "a damaged checkpoint uses up no restart"


def test_damaged_checkpoint_can_be_deleted(api: Api) -> None:
    first = running(api)
    checkpoint = first.post("checkpoints", **manifest(first)).json()["id"]
    second = next_attempt(api, first)
    second.post("start")
    second.post("damaged-checkpoint", checkpoint_id=checkpoint, damage="is missing")
    assert api.client.delete(f"/v1/checkpoints/{checkpoint}").status_code == 204
    assert api.client.get(f"/v1/checkpoints/{checkpoint}").json()["state"] == "deleting"


def test_damaged_start_checkpoint_of_clone_has_no_fallback(api: Api) -> None:
    source = running(api, train={"epochs": 5})
    ids = [source.post("checkpoints", **manifest(source, step)).json()["id"] for step in (10, 20)]
    body = {"checkpoint": ids[1], "changes": {}}
    clone = api.client.post(f"/v1/jobs/{source.job_id}/clone", json=body).json()
    worker = api.start(clone["id"])
    assert worker.post("start").json()["resume"]["branch"]
    answer = worker.post("damaged-checkpoint", checkpoint_id=ids[1], damage="is missing")
    resume = answer.json()["resume"]
    assert (resume["checkpoint_id"], resume["branch"]) == (ids[1], True)
    [event] = damage_events(api, worker)
    assert event["message"] == f"Checkpoint {ids[1]} is damaged: is missing"
    # The source job does not resume from it either.
    assert next_attempt(api, source).post("start").json()["resume"]["checkpoint_id"] == ids[0]


@pytest.mark.parametrize("number", ["1", "0", "x", "%00", "9" * 5000])
def test_worker_api_checks_token_before_body(api: Api, number: str) -> None:
    """Checking the token first is cheaper than validating the body."""
    api.dataset()
    job = api.submit()["id"]
    actions = ("start", "damaged-checkpoint", "heartbeat", *REPORTS, "finish")
    paths = [
        *(f"runs/{job}-{number}-00000000/{name}" for name in actions),
        "runs/ds_00000000000000000000000000-1-00000000/finish",
    ]
    headers = {"Authorization": "Bearer dasl_" + "x" * 40}
    for path in paths:
        answer = api.client.post(f"/worker/v1/{path}", json={"unknown": 1}, headers=headers)
        refused(answer, 401)
        assert "unknown" not in answer.text


def test_worker_api_refuses_run_of_unknown_kind(api: Api) -> None:
    """A newer version, which runs too during an upgrade, may have added kinds."""
    worker = running(api)
    with api.database.write() as session:
        session.execute(update(Run).where(Run.owner == worker.job_id).values(kind="of-tomorrow"))
    refused(worker.post("heartbeat"), 401, None, "unauthenticated")


@pytest.fixture
def ingest(api: Api) -> Worker:
    return api.ingest(api.dataset("fresh", state="pending"))


def test_ingest_run_starts_beats_and_finishes(ingest: Worker) -> None:
    api, dataset = ingest.api, ingest.job_id
    start = ingest.post("start")
    assert start.status_code == 200
    assert start.json()["uri"] == str(api.settings.home.parent / "images" / "fresh")
    with api.database.read() as session:
        before = session.get_one(IngestRun, (dataset, 1)).heartbeat_at
    assert ingest.post("heartbeat").json() == {"desired": "run"}
    with api.database.read() as session:
        after = session.get_one(IngestRun, (dataset, 1)).heartbeat_at
    assert before is not None
    assert after is not None
    assert after > before
    facts = {"num_images": 4, "num_classes": None, "median_size": 16}
    index = f"{start.json()['artifacts_uri']}/run/index.safetensors"
    for _ in range(2):
        finish = ingest.post("finish", state="succeeded", facts=facts, index_uri=index)
        assert finish.status_code == 204
    assert api.client.get(f"/v1/datasets/{dataset}").json()["state"] == "ready"
    for action in ("start", "heartbeat"):
        refused(ingest.post(action), 409, None, "stale-attempt")


def test_progress_of_an_ingest_is_shown_until_it_ends(ingest: Worker) -> None:
    api, dataset = ingest.api, ingest.job_id

    def shown() -> Any:
        progress = api.client.get(f"/v1/datasets/{dataset}").json()["progress"]
        counts = ("images_read", "images_total")
        return None if progress is None else {name: progress[name] for name in counts}

    def times() -> tuple[datetime | None, datetime | None]:
        with api.database.read() as session:
            run = session.get_one(IngestRun, (dataset, 1))
            return run.progressed_at, run.progress_reported_at

    ingest.post("start")
    assert shown() is None
    progress = {"images_read": 0, "images_total": 30}
    assert ingest.post("heartbeat", progress=progress).json() == {"desired": "run"}
    assert shown() == progress
    first, reported = times()
    assert first == reported
    ingest.post("heartbeat", progress=progress)
    same, later = times()
    assert same == first
    assert later is not None
    assert first is not None
    assert later > first
    ingest.post("heartbeat", progress=progress | {"images_read": 1})
    assert (times()[0] or first) > first
    for bad in ({"images_read": -1, "images_total": 1}, {"images_read": 1}):
        refused(ingest.post("heartbeat", progress=bad), 422)
    assert ingest.post("finish", state="failed", error={"message": "broken"}).status_code == 204
    assert shown() is None


def test_ingest_run_is_refused_what_only_attempts_send(api: Api, ingest: Worker) -> None:
    worker = running(api)
    damage = {"checkpoint_id": "ckpt_x", "damage": "is missing"}
    for action, body in {**reports(worker), "damaged-checkpoint": damage}.items():
        problem = refused(ingest.post(action, **body), 409, None, "wrong-kind-of-run")
        assert problem["detail"].startswith("This run is an ingest")
    refused(ingest.post("heartbeat", progress={"step": 1}), 422, "step")


def test_report_of_another_kind_of_run_names_the_fields(api: Api, ingest: Worker) -> None:
    problem = refused(ingest.post("finish", outcome="succeeded"), 422, "outcome")
    assert "state: missing required field" in problem["detail"]
    problem = refused(running(api).post("finish", state="succeeded"), 422, "state")
    assert "outcome: missing required field" in problem["detail"]


def test_problem_of_a_whole_report_names_the_body(ingest: Worker) -> None:
    answer = ingest.post("finish", state="succeeded")
    assert refused(answer, 422, "body")["detail"] == "body: is not valid"


def test_token_that_is_replaced_while_a_report_waits_is_refused(ingest: Worker) -> None:
    """The report's token was checked before the owner was locked."""
    of_run = (IngestRun, ingest.job_id, ingest.number, ingest.token)
    with ingest.api.database.write() as session:
        assert fencing.newest_run(session, *of_run).number == ingest.number
        assert runs.replace_token(session, ingest.job_id, ingest.number, "another")
        with pytest.raises(StaleAttempt):
            fencing.newest_run(session, *of_run)


@pytest.mark.dialect
def test_superseded_ingest_run_is_refused(ingest: Worker) -> None:
    api, dataset = ingest.api, ingest.job_id
    with api.database.write() as session:
        assert ingests.end_ingest(session, dataset, 1, DatasetState.PENDING)
    second = api.ingest(dataset)
    assert second.number == 2
    for action in ("start", "heartbeat"):
        refused(ingest.post(action), 409, None, "stale-attempt")
    refused(
        ingest.post("finish", state="failed", error={"message": "x"}), 409, None, "stale-attempt"
    )
    refused(Worker(api, dataset, 2, ingest.token).post("start"), 401)
    assert second.post("start").status_code == 200
