"""SDK and command line against the real API, through the whole life of a job."""

import csv
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread

import pytest

from dasl_core.spec import JobSpec, SimCLR
from service import lifecycle
from service.client import ApiError, Client, DatasetFailed, StaleAttempt, WorkerClient
from service.client.sync.models import Dataset
from service.client.sync.models import Job as ClientJob
from service.db.models import Job
from service.wire.events import EventView
from service.wire.jobs import JobView
from tests.support.answers import answer_of
from tests.support.api_server import Service
from tests.support.command_line import run, run_json
from tests.support.scripted_server import Answer, Request, answer_json, scripted
from tests.support.short_training import FILES, SPEC, train

Started = tuple[ClientJob, WorkerClient]


@pytest.fixture
def dataset(service: Service, client: Client, tmp_path: Path) -> Dataset:
    """The data set `emoji`, ready."""
    for known in client.datasets.list(name="emoji"):
        return known
    added = client.datasets.add(tmp_path, "emoji")
    service.ingest(added)
    return added.wait()


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(json.dumps(SPEC))
    return path


@pytest.fixture
def started(service: Service, client: Client, dataset: Dataset) -> Started:
    """A job that runs, and the client of its worker."""
    job = client.jobs.submit(SPEC)
    worker = service.start_attempt(job.id)
    worker.start()
    return job, worker


@pytest.fixture
def finished(service: Service, client: Client, dataset: Dataset) -> tuple[str, str]:
    """A job that has succeeded, and its final checkpoint."""
    job = client.jobs.submit(SPEC)
    worker = service.start_attempt(job.id)
    service.log(job.id, "one\ntwo\nthree\n")
    checkpoint = train(worker)
    worker.finish("succeeded")
    return job.id, checkpoint


def test_dataset_commands(service: Service, client: Client, tmp_path: Path) -> None:
    folder = tmp_path / "cats"
    folder.mkdir()
    added = run_json("datasets", "add", folder, "--no-wait")
    assert (added["name"], added["state"], added["uri"]) == ("cats", "pending", str(folder))
    service.ingest(client.datasets.get("cats"))

    shown = run("datasets", "show", "cats").stdout
    assert "640" in shown
    assert "Warning: 3 images have 16 bits and only values of 0 to 4095." in shown
    assert "Skipped 2 files:" in shown
    assert "a/empty.png: is empty" in shown
    assert run_json("datasets", "show", added["id"])["report"]["num_skipped"] == 2
    assert "cats" in [found["name"] for found in run_json("datasets", "list")]
    assert added["id"] in run("datasets", "list").stdout
    assert run_json("datasets", "rm", "cats") == {"deleted": added["id"]}
    assert "cats" in run("datasets", "show", "cats", code=1).stderr


def test_datasets_add_waits_for_ingest(service: Service, client: Client, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()

    def ingest() -> None:
        deadline = time.monotonic() + 30
        while not (found := list(client.datasets.list(name="broken"))):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        service.ingest(found[0], error="no images were found")

    thread = Thread(target=ingest)
    thread.start()
    result = run("datasets", "add", folder, "--name", "broken", code=1)
    thread.join()
    assert "no images were found" not in result.stdout
    assert result.stderr.splitlines()[-1] == "Error: Data set broken failed: no images were found"
    with pytest.raises(DatasetFailed, match="no images were found"):
        client.datasets.wait(client.datasets.get("broken").id)


def test_datasets_add_refuses_a_missing_folder(client: Client) -> None:
    result = run("datasets", "add", "/nonexistent/folder", "--name", "x", code=1)
    [line] = result.stderr.splitlines()
    assert "uri: does not exist on the server" in line
    assert "/nonexistent/folder" in line


def test_submit_prints_warnings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job = answer_of(JobView, id="job_1", warnings=["resources: too large now."])
    advice = {"field": "augment.flip", "reason": "X-rays.", "settings": {"augment.flip": 0.0}}
    checked = {"resolved": {}, "estimate": {}, "warnings": job["warnings"], "advice": [advice]}
    (tmp_path / "spec.yaml").write_text("dataset: emoji\n")
    asked: list[str] = []

    def answer(request: Request) -> Answer:
        asked.append(request.path)
        return answer_json(checked if request.path.endswith("validate") else job)

    with scripted(answer) as server:
        monkeypatch.setenv("DASL_URL", server.url)
        result = run("submit", str(tmp_path / "spec.yaml"))
        again = run("submit", str(tmp_path / "spec.yaml"), "--idempotency-key", "one")
    warning = "Warning: resources: too large now.\n"
    assert result.stderr == f"Advice: augment.flip: X-rays. --set augment.flip=0.0\n{warning}"
    # It may be stored already, and its data set gone.
    assert again.stderr == warning
    assert asked == ["/v1/jobs/validate", "/v1/jobs", "/v1/jobs"]


def test_submit_accepts_every_form_and_is_idempotent(
    client: Client, dataset: Dataset, spec_file: Path
) -> None:
    ids = {
        client.jobs.submit(form, idempotency_key="the-same").id
        for form in (SPEC, spec_file, str(spec_file), JobSpec.model_validate(SPEC))
    }
    assert len(ids) == 1
    with pytest.raises(ApiError) as caught:
        client.jobs.submit({**SPEC, "name": "other"}, idempotency_key="the-same")
    assert caught.value.status == 422


def test_submit_names_the_method_of_a_spec_object(client: Client, dataset: Dataset) -> None:
    spec = JobSpec(dataset="emoji", method=SimCLR(temperature=0.3))
    submitted = client.jobs.submit(spec)
    assert submitted.spec == {"dataset": "emoji", "method": {"name": "simclr", "temperature": 0.3}}


def test_submit_list_show_and_cancel_commands(
    client: Client, dataset: Dataset, spec_file: Path
) -> None:
    job = run_json("submit", spec_file, "--set", "method.temperature=0.1", "--set", "name=second")
    assert job["status"] == "queued"
    assert job["spec"]["method"]["temperature"] == 0.1
    said = run("submit", spec_file).stdout
    assert "dasl watch job_" in said

    listed = run_json("jobs", "--status", "queued", "--tag", "team:vision", "-n", "1")
    assert len(listed) == 1
    assert said.count(listed[0]["id"]) == 2
    assert job["id"] in run("jobs").stdout
    assert run_json("show", job["id"])["id"] == job["id"]
    assert "emoji" in run("show", job["id"]).stdout
    assert "no log lines yet" in run("logs", job["id"]).stderr

    assert client.jobs.update(job["id"], name="third", priority=3).priority == 3
    assert run_json("cancel", job["id"])["status"] == "cancelled"
    assert "No log lines are stored" in run("logs", job["id"]).stderr
    assert run("watch", job["id"], code=1).stdout.splitlines()[-1].endswith("cancelled")


def test_commands_take_a_name_or_a_beginning_or_last(client: Client, dataset: Dataset) -> None:
    job = client.jobs.submit({**SPEC, "name": "birds"}).id
    for reference in ("birds", "last", job[:29], job[4:29]):
        assert run_json("show", reference)["id"] == job
        assert job in run("logs", reference, "--json").stdout
    newer = client.jobs.submit({**SPEC, "name": "cats"}).id
    assert run_json("cancel", "birds")["id"] == job
    assert run_json("update", "last", "--priority", 7)["id"] == newer
    assert run("download", "birds", code=1).stderr.startswith(f"Error: Job {job} has no checkpoint")
    assert run_json("delete", job[:29], "--yes") == {"deleted": job}
    assert run_json("cancel", newer)["status"] == "cancelled"
    client.jobs.submit({**SPEC, "name": "cats"}).cancel()
    refused = run("pause", "cats", code=1).stderr
    assert "matches 2 jobs, newest first: job_" in refused
    assert f"{newer} (cats, cancelled)" in refused


def test_metrics_command(client: Client, finished: tuple[str, str]) -> None:
    job, _ = finished
    assert run_json("metrics", job, "--name", "loss")["values"] == {"loss": [5.0, 4.0, 3.0]}
    table = run("metrics", job).stdout.splitlines()
    assert table[0].split() == ["METRIC", "LAST", "SMALLEST", "LARGEST", "CURVE"]
    assert "loss    3     3         5" in table[1]
    lines = run("metrics", job, "--csv", "--name", "lr", "--name", "loss").stdout.splitlines()
    assert lines[0] == "step,time,loss,lr"
    assert [line.split(",")[0] for line in lines[1:]] == ["0", "1", "2"]
    assert lines[1].endswith(",5.0,0.1")
    empty = client.jobs.submit(SPEC)
    assert "There are no metrics" in run("metrics", empty.id).stderr
    assert run("metrics", empty.id, "--csv").stdout == "step,time\n"
    empty.cancel()


def test_jobs_command_shows_accuracies_and_writes_csv(
    client: Client, finished: tuple[str, str]
) -> None:
    rows = list(csv.DictReader(run("jobs", "--csv").stdout.splitlines()))
    [row] = [row for row in rows if row["ID"] == finished[0]]
    assert (row["NAME"], row["METHOD"], row["DATA SET"]) == ("first", "simclr", "emoji")
    assert (row["k-NN"], row["R@1"], row["TAGS"]) == ("50.0%", "25.0%", "team:vision")


def test_update_changes_priority_name_and_tags(client: Client, dataset: Dataset) -> None:
    job = client.jobs.submit({**SPEC, "tags": {"team": "vision", "try": "1"}})
    changed = run_json(
        "update", job.id, "--priority=7", "--name=next", "--tag=try:2", "--max-hours=48"
    )
    assert changed["max_hours"] == 48
    assert (changed["priority"], changed["name"]) == (7, "next")
    assert changed["tags"] == {"team": "vision", "try": "2"}
    said = run("update", job.id, "--untag", "team", "--tag", "where:a:b").stdout
    assert (
        said == f"Job {job.id}: name next, priority 7, tags try:2, where:a:b, at most 48 hours.\n"
    )
    assert next(row for row in run("jobs").stdout.splitlines() if job.id in row).split()[3] == "7"
    job.cancel()


def test_events_and_evaluations_commands(
    service: Service, client: Client, dataset: Dataset
) -> None:
    job = client.jobs.submit(SPEC)
    assert "no evaluations yet" in run("evaluations", job.id).stderr
    cancelled = client.jobs.submit(SPEC).cancel()
    assert "no evaluations: nothing was held out, or" in run("evaluations", cancelled.id).stderr
    worker = service.start_attempt(job.id)
    worker.start()
    figures = {f"distance_q{share:02d}": share / 100 for share in range(30)}
    worker.evaluation(step=0, epoch=0, subject="raw", metrics={"knn_top1": 0.25})
    for step in (9, 18):
        metrics = {"knn_top1": step / 20, "effective_rank": 12.5, **figures}
        worker.evaluation(step=step, epoch=step / 9, subject="backbone", metrics=metrics)
    rows = run("evaluations", job.id).stdout.splitlines()
    assert rows[0].split("  ")[0] == "METRIC"
    assert rows[0].endswith("RAW, STEP 0  BACKBONE, STEP 18")
    assert rows[1].split() == ["knn_top1", "0.25", "0.9"]
    assert ["distance_q29", "-", "0.29"] in [row.split() for row in rows]
    assert len(run_json("evaluations", job.id)) == 3
    listed = run("events", job.id).stdout.splitlines()
    assert listed[1].endswith("status      Job queued")
    assert listed[-1].endswith("Evaluated backbone at step 18: knn_top1 0.9, effective_rank 12.5")
    events = run_json("events", job.id, "--type", "evaluation")
    assert len(events[-1]["data"]["metrics"]) == 32
    shown = run("show", job.id).stdout
    assert "distance_q29" not in shown
    assert f"dasl evaluations {job.id}" in shown
    worker.finish("failed", {"type": "x", "message": "y"}, retryable=False)


def test_clone_shows_its_start_checkpoint(
    service: Service, client: Client, finished: tuple[str, str]
) -> None:
    job_id, checkpoint = finished
    clone = client.jobs.clone(job_id, {"train": {"epochs": 4}})
    assert f"step 18 of {job_id} ({checkpoint})" in run("show", clone.id).stdout
    worker = service.start_attempt(clone.id)
    progress = client.jobs.get(clone.id).progress
    assert progress is not None
    assert progress.step == 18
    worker.start()
    assert worker.heartbeat({"worked": 1}) == "run"
    progress = client.jobs.get(clone.id).progress
    assert progress is not None
    assert progress.step == 18, "missing fields keep their values"
    worker.finish("failed", {"type": "x", "message": "y"}, retryable=False)


def test_refused_spec_names_the_field(client: Client, dataset: Dataset, spec_file: Path) -> None:
    result = run("submit", spec_file, "--set", "train.batch_size=4096", code=1)
    assert "train.batch_size: is larger than" in result.stderr
    assert "Traceback" not in result.stderr
    result = run("submit", spec_file, "--set", "dataset=unknown", code=1)
    assert "dataset" in result.stderr


def test_validate_command(client: Client, dataset: Dataset, spec_file: Path) -> None:
    answer = run_json("validate", spec_file)
    assert answer["resolved"]["train"]["optimizer"]["name"] == "sgd"
    assert answer["estimate"]["total_steps"] > 0
    text = run("validate", spec_file).stdout
    chosen_at_the_start = {"cpus_per_worker: auto", "gpus_per_worker: auto"}
    assert {line.strip() for line in text.splitlines() if "auto" in line} == chosen_at_the_start
    assert "training images" in text
    assert "held-out images" in text
    assert "total steps" in text


def test_job_from_submit_to_download(
    service: Service, client: Client, finished: tuple[str, str], tmp_path: Path
) -> None:
    job_id, checkpoint = finished
    job = client.jobs.wait(job_id)
    assert job.progress is not None
    assert job.progress.step == 18

    assert "succeeded" in run("cancel", job_id, code=1).stderr

    shown = run("show", job_id).stdout
    assert checkpoint in shown
    assert "recall_at_1" in shown
    assert max(len(line) for line in shown.splitlines()) < 120
    facts = dict(line.split(maxsplit=1) for line in shown.splitlines()[:12])
    without = "1 x 1 CPUs (no GPU for it; the event no_gpus says what to do)"
    assert (facts["method"], facts["resources"]) == ("simclr", without)
    lines = run("watch", job_id).stdout
    assert "k-NN 50.0%  R@1 25.0%" in lines
    assert "succeeded" in lines.splitlines()[-1]
    assert run("logs", job_id, "--tail", "2").stdout == "two\nthree\n"
    assert run_json("logs", job_id)["lines"] == ["one", "two", "three"]

    metrics = client.jobs.metrics(job_id, name="loss", max_points=10)
    assert metrics.values == {"loss": [5.0, 4.0, 3.0]}
    second = metrics.step[1]
    part = client.jobs.metrics(job_id, name="loss", from_step=second, to_step=second)
    assert part.values == {"loss": [4.0]}
    several = client.metrics([job_id], ["loss"], to_step=second)
    assert several[job_id].values == {"loss": [5.0, 4.0]}
    assert [attempt.state for attempt in client.jobs.attempts(job_id)] == ["succeeded"]
    sequence = [event.seq for event in client.jobs.events(job_id, page_size=2)]
    assert sequence == list(range(1, len(sequence) + 1))
    assert [event.seq for event in client.jobs.stream_events(job_id, after=2)] == sequence[2:]

    assert [found["final"] for found in run_json("checkpoints", job_id)] == [False, True]
    done = run_json("download", job_id, "-o", tmp_path / "out")
    assert done["checkpoint"] == checkpoint
    fetched = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert fetched == FILES
    assert "curves.png" in run("artifacts", job_id, "-o", tmp_path / "pictures").stdout
    assert (tmp_path / "pictures" / "curves.png").read_bytes() == b"PNG"
    assert run_json("artifacts", job_id)[0]["content_type"] == "image/png"


def test_removal_of_files_by_retention_is_said(
    service: Service, client: Client, finished: tuple[str, str]
) -> None:
    job_id, _ = finished
    assert "Retention" not in run("artifacts", job_id).stderr
    with service.database.write() as session:
        session.get_one(Job, job_id).artifacts_removed_at = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    assert "Retention removed this job's files on 2026-01-02 03:04 UTC." in (
        run("artifacts", job_id).stderr
    )


def test_download_of_a_lost_file_fails(
    service: Service, client: Client, finished: tuple[str, str], tmp_path: Path
) -> None:
    for path in (service.settings.home / "artifacts" / "jobs" / finished[0]).rglob("model.json"):
        path.unlink()
    result = run("download", finished[1], "-o", tmp_path / "out", code=1)
    assert "model.json" in result.stderr


def test_download_without_a_checkpoint_fails(client: Client, dataset: Dataset) -> None:
    job = client.jobs.submit(SPEC)
    assert "has no checkpoint yet" in run("download", job.id, code=1).stderr
    assert "dasl clone --checkpoint none" in run("clone", job.id, code=1).stderr
    job.cancel()


def test_follow_events_and_logs_of_a_running_job(
    service: Service, client: Client, started: Started
) -> None:
    job, worker = started
    service.log(job.id, "first\n")
    events: list[EventView] = []
    lines: list[str] = []
    followers = [
        Thread(target=lambda: events.extend(client.jobs.stream_events(job.id))),
        Thread(target=lambda: lines.extend(client.jobs.follow_logs(job.id))),
    ]
    for thread in followers:
        thread.start()
    service.log(job.id, "second\n\nthird\n")
    worker.event("note", "hello")
    worker.finish("failed", {"type": "RuntimeError", "message": "boom"}, retryable=False)
    for thread in followers:
        thread.join(60)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert "hello" in [event.message for event in events]
    assert events[-1].ends_job
    assert lines == ["first", "second", "", "third"]

    result = run("watch", job.id, code=1)
    assert result.stderr.splitlines() == [
        "  first",
        "  second",
        "  ",
        "  third",
        f"Job {job.id} failed: boom",
    ]
    assert "RuntimeError: boom" in run("show", job.id).stdout


def test_show_lists_failed_attempts(service: Service, client: Client, dataset: Dataset) -> None:
    job = client.jobs.submit(JobSpec(dataset="emoji"))
    worker = service.start_attempt(job.id)
    worker.start()
    service.log(job.id, "of the first\n")
    worker.finish("failed", {"type": "rank-died", "message": "The process of rank 1 ended: so."})
    with service.database.write() as session:
        assert lifecycle.requeue(session, job.id)
    again = service.start_attempt(job.id)
    again.start()
    shown = run("show", job.id).stdout
    assert "1        failed   rank-died  The process of rank 1 ended: so." in shown
    assert "2        running" in shown
    [failed] = [e.message for e in client.jobs.events(job.id) if "Restart 1" in e.message]
    assert failed == "Attempt 1 failed: The process of rank 1 ended: so. Restart 1 of 3 in 2 s"
    assert run("logs", job.id, "--attempt", 1).stdout == "of the first\n"
    assert run_json("logs", job.id)["lines"] == []
    assert "remove --attempt" in run("logs", job.id, "-f", "--attempt", 1, code=2).stderr
    again.finish("failed", {"type": "ValueError", "message": "no"}, retryable=False)


def test_submit_and_watch(
    service: Service, client: Client, dataset: Dataset, spec_file: Path
) -> None:
    def work() -> None:
        deadline = time.monotonic() + 30
        while not (found := list(client.jobs.list(status="queued", tag="case:watch"))):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        worker = service.start_attempt(found[0].id)
        train(worker)
        worker.finish("succeeded")

    thread = Thread(target=work)
    thread.start()
    result = run("submit", spec_file, "--set", "tags.case=watch", "--watch", "--json")
    thread.join()
    documents = [json.loads(line) for line in result.stdout.splitlines()]
    assert documents[-1]["job"]["status"] == "succeeded"
    assert "half way" in [document.get("event", {}).get("message") for document in documents]


def test_cancel_a_running_job(client: Client, started: Started) -> None:
    job, worker = started
    assert "stops after its current step" in run("cancel", job.id).stdout
    assert worker.heartbeat() == "cancel"
    worker.finish("cancelled")
    assert client.jobs.get(job.id).status == "cancelled"
    with pytest.raises(StaleAttempt):
        worker.heartbeat()


def test_pause_and_resume_a_running_job(started: Started) -> None:
    job, worker = started
    assert "pauses after its current step" in run("pause", job.id).stdout
    assert worker.heartbeat() == "pause"
    worker.finish("paused")
    assert job.refresh().status == "paused"
    assert not job.refresh().done
    assert "is paused" in run("pause", job.id).stdout
    assert "is queued again" in run("resume", job.id).stdout
    assert "queued" in run("resume", job.id, code=1).stderr
    assert job.pause().resume().cancel().status == "cancelled"


def test_non_finite_metrics_do_not_fail_a_worker(client: Client, started: Started) -> None:
    job, worker = started
    values = {"loss": float("nan"), "lr": 0.1}
    worker.metrics([{"step": 1, "time": time.time(), "values": values}])
    worker.heartbeat({"step": 1, "loss": float("inf")})
    assert client.jobs.metrics(job.id).values == {"lr": [0.1]}
    assert "nan" in [event.type for event in client.jobs.events(job.id)]
    worker.finish("failed", {"type": "x", "message": "y"}, retryable=False)


def test_token_commands(service: Service, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    created = run_json("tokens", "create", "reader", "--scope", "read")
    assert created["scopes"] == ["read"]
    listed = {token["id"]: token for token in run_json("tokens", "list")}
    assert listed[created["id"]].get("token") is None
    assert created["id"] in run("tokens", "list").stdout

    monkeypatch.setenv("DASL_TOKEN", created["token"])
    assert run_json("jobs") is not None
    assert "admin" in run("tokens", "list", code=1).stderr

    monkeypatch.setenv("DASL_TOKEN", service.token)
    assert run_json("tokens", "revoke", created["id"]) == {"revoked": created["id"]}
    monkeypatch.setenv("DASL_TOKEN", created["token"])
    assert "DASL_TOKEN" in run("jobs", code=1).stderr


def test_audit_command(service: Service, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    created = client.tokens.create("a reader", ["read"])
    monkeypatch.setenv("DASL_TOKEN", created.token)
    assert "admin" in run("audit", code=1).stderr
    monkeypatch.setenv("DASL_TOKEN", service.token)
    [refused] = run_json("audit", "--token", created.id)
    assert (refused["method"], refused["path"], refused["status"]) == ("GET", "/v1/audit", 403)
    created = run_json("audit", "--limit", "2")[1]
    assert (created["method"], created["path"], created["status"]) == ("POST", "/v1/tokens", 201)
    assert created["token_name"] == "test"
    assert [entry.id for entry in client.audit.list(page_size=1)][1] == created["id"]
    assert "GET /v1/audit" in run("audit", "--since", "2020-01-01").stdout
    assert run_json("audit", "--since", "9999-01-01") == []
    assert "since" in run("audit", "--since", "yesterday", code=1).stderr


def test_token_quotas(client: Client, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    created = run_json("tokens", "create", "lab", "--max-queued-jobs", "1", "--max-gpus", "8")
    assert (created["max_queued_jobs"], created["max_running_jobs"], created["max_gpus"]) == (
        1,
        None,
        8,
    )
    assert "1 queued jobs, 8 GPUs" in run("tokens", "list").stdout
    with monkeypatch.context() as own:
        own.setenv("DASL_TOKEN", created["token"])
        with Client() as limited:
            limited.jobs.submit(SPEC)
            with pytest.raises(ApiError, match="max_queued_jobs of this token is 1") as refused:
                limited.jobs.submit(SPEC)
        assert refused.value.status == 429
        assert "admin" in run("tokens", "set", created["id"], "--max-gpus", "9", code=1).stderr

    limits = ["--max-queued-jobs", "none", "--max-running-jobs", "2"]
    limits += ["--max-pending-datasets", "none"]
    changed = run("tokens", "set", created["id"], *limits).stdout
    assert changed == "Limits of token lab: 2 running jobs, 8 GPUs.\n"
    assert run_json("tokens", "set", created["id"], "--max-gpus", "none")["max_gpus"] is None
    unlimited = run("tokens", "set", created["id"], "--max-running-jobs", "none").stdout
    assert unlimited == "Limits of token lab: none.\n"
    assert client.tokens.set(created["id"], max_gpus=0).max_gpus == 0


def test_cluster_command(client: Client) -> None:
    assert run_json("cluster")["nodes"] == []
    assert "not seen yet" in run("cluster").stdout


@pytest.mark.parametrize("job", ["job_1", "nonsense", "job_" + "0" * 26])
def test_unknown_job_is_reported(client: Client, job: str) -> None:
    for command in ("show", "watch", "logs", "cancel", "checkpoints", "artifacts", "download"):
        result = run(command, job, code=1)
        assert result.stdout == ""
        assert job in result.stderr


def test_db_upgrade_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASL_DATABASE_URL", f"sqlite:///{tmp_path / 'new' / 'dasl.db'}")
    assert run_json("db", "upgrade")["upgraded"] is True
    assert (tmp_path / "new" / "dasl.db").exists()
    monkeypatch.setenv("DASL_DATABASE_URL", "oracle://somewhere")
    assert "oracle" in run("db", "upgrade", code=1).stderr


def test_delete_asks_and_removes_jobs_checkpoints_and_data_sets(
    service: Service, client: Client, finished: tuple[str, str], tmp_path: Path
) -> None:
    job, checkpoint = finished
    refused = run("delete", job, code=2)
    assert "add --yes" in refused.stderr
    assert client.jobs.get(job).id == job
    assert "add --yes" in run("delete", "--only-checkpoints", job, code=2).stderr
    other = next(each.id for each in client.jobs.checkpoints(job) if each.id != checkpoint)
    assert run_json("delete", other, "--yes") == {"deleted": other}
    none = {"job": job, "deleted": 0, "bytes": 0}
    assert run_json("delete", "--only-checkpoints", job, "--yes") == none
    name = "to be deleted"
    client.jobs.update(job, name=name)
    assert f"Deleted job {name} ({job})" in run("delete", name, "--yes").stdout
    assert "No data set" in run("delete", name, "--yes", code=1).stderr
    assert "404" not in run("delete", job, "--yes", code=1).stdout
    with pytest.raises(ApiError) as gone:
        client.jobs.delete(job)
    assert gone.value.status == 404
    folder = tmp_path / "dogs"
    folder.mkdir()
    # "prep" begins the ids of preparations, which are not looked for without its underscore.
    for name in ("dogs", "prep"):
        added = run_json("datasets", "add", folder, "--name", name, "--no-wait")
        assert run_json("delete", name, "--yes") == {"deleted": added["id"]}


def test_storage_shows_what_the_jobs_of_the_tenant_take(
    service: Service, client: Client, finished: tuple[str, str]
) -> None:
    job, _ = finished
    report = run_json("storage")
    sizes = [each.size for each in client.jobs.checkpoints(job)]
    [largest] = [each for each in report["largest_jobs"] if each["id"] == job]
    assert largest["bytes"] == sum(sizes) + 3
    assert report["checkpoints"]["bytes"] >= sum(sizes)
    assert report["artifacts"]["count"] >= 1
    assert report["metrics"]["count"] > 0
    assert report["store"]["bytes"] >= largest["bytes"]
    assert 0 < report["store"]["free_bytes"] < report["store"]["total_bytes"]
    shown = run("storage").stdout
    assert "free on the disk" in shown
    assert job in shown
