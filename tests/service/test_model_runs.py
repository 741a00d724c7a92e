"""Evaluations, embeddings and exports of checkpoints, and questions for neighbors, over the API."""

import base64
import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from service.checkpoints import repository as checkpoints
from service.checkpoints import retention
from service.datasets.uploads.body import Body
from service.db.locks import lock_token
from service.db.models import (
    Attempt,
    Checkpoint,
    Job,
    ModelRun,
    Search,
    SearchQuery,
    WebhookDelivery,
)
from service.dispatcher.context import utc_now
from service.dispatcher.garbage import Garbage
from service.dispatcher.retention import Retention
from service.model_runs import neighbor_endpoints
from service.runs import repository as runs
from service.storage import repository as storage
from service.tasks.repository import model_runs, searches
from service.tasks.service import MAX_PENDING
from service.worker_api import endpoints as worker_endpoints
from service.worker_api import searches as worker_searches
from service.worker_api.searches import IDLE
from tests.service.test_deletion import finalize
from tests.support.api_under_test import Api, TaskRun, Worker, refused, snapshot
from tests.support.clocks import agree, something_happens
from tests.support.databases import waits_for_lock
from tests.support.polling import until

VIT = {"backbone": {"name": "vit_small_patch16_224", "image_size": 224}}
SHA = "0" * 64
FILES = [
    {"name": name, "size": 2, "sha256": SHA}
    for name in ("backbone.safetensors", "model.json", "metrics.json", "state.safetensors")
]


def checkpoint_of(worker: Worker, step: int = 1, **more: Any) -> str:
    """Register a checkpoint, and return its id."""
    uri = f"{worker.uri}/checkpoints/{step}"
    body: dict[str, Any] = {"step": step, "epoch": step, "uri": uri, "files": FILES}
    answer = worker.post("checkpoints", **(body | more))
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def training(api: Api, **spec: Any) -> Worker:
    """Start the training of a job on the data set `emoji`."""
    return api.run(api.submit(**spec)["id"])


def trained(api: Api, **spec: Any) -> str:
    """Return a checkpoint of a job on the data set `emoji`, which is added."""
    api.dataset()
    return checkpoint_of(training(api, **spec))


def post(api: Api, checkpoint: str, kind: str, **body: Any) -> Any:
    return api.client.post(f"/v1/checkpoints/{checkpoint}/{kind}", json=body)


def requested(api: Api, checkpoint: str, kind: str = "embeddings", **body: Any) -> str:
    answer = post(api, checkpoint, kind, **({"dataset": "emoji"} | body))
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def embedded(api: Api, checkpoint: str, content: bytes = b"vectors", **settings: Any) -> str:
    """Let a run write the file of an embedding; return its id."""
    run_id = requested(api, checkpoint, **settings)
    run = TaskRun(api, run_id)
    uri = f"{run.post('start').json()['artifacts_uri']}/1"
    file = Path(uri.removeprefix("file://")) / "embedding-00000.parquet"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    entry = {"name": file.name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    result = {"images": 100, "shape": [512]}
    for _ in range(2):  # its answer may get lost
        answer = run.post("finish", state="succeeded", result=result, uri=uri, files=[entry])
        assert answer.status_code == 204, answer.text
    return run_id


def shown(api: Api, run: str) -> Any:
    return api.client.get(f"/v1/model-runs/{run}").json()


def test_embedding_is_requested_once_and_downloaded(api: Api) -> None:
    checkpoint = trained(api)
    answer = post(api, checkpoint, "embeddings", dataset="emoji", normalize=True)
    assert answer.status_code == 201, answer.text
    view = answer.json()
    assert answer.headers["location"] == f"/v1/model-runs/{view['id']}"
    settings = {"features": "pooled", "format": "parquet", "normalize": True, "dtype": "float32"}
    expected = {
        "kind": "embedding",
        "checkpoint_id": checkpoint,
        "dataset_version": 1,
        "settings": settings,
        "state": "queued",
        "files": [],
    }
    assert {name: view[name] for name in expected} == expected
    run = TaskRun(api, view["id"])
    started = run.post("start").json()
    names = {file["name"] for file in started["checkpoint"]["files"]}
    assert names == {"backbone.safetensors", "model.json", "metrics.json"}
    assert (started["kind"], started["settings"]) == ("embedding", settings)
    assert started["dataset"]["name"] == "emoji"
    progress = {"images_read": 3, "images_total": 100, "phase": "features"}
    assert run.post("heartbeat", progress=progress).json() == {"desired": "run"}
    assert shown(api, view["id"])["progress"].items() >= progress.items()
    refused(run.post("heartbeat", progress={"step": 1}), 422)
    refused(run.post("finish", state="succeeded"), 422)
    refused(run.post("queries"), 409, None, "wrong-kind-of-run")
    outside = {"state": "succeeded", "result": {}, "uri": "file:///etc", "files": FILES}
    refused(run.post("finish", **outside), 422, "uri")
    again = post(api, checkpoint, "embeddings", dataset="emoji", normalize=True)
    assert (again.status_code, again.json()["id"]) == (200, view["id"])
    other = embedded(api, checkpoint, b"0123456789")
    path = f"/v1/model-runs/{other}/files/embedding-00000.parquet"
    assert api.client.get(path).content == b"0123456789"
    part = api.client.get(path, headers={"Range": "bytes=2-4"})
    assert (part.status_code, part.content) == (206, b"234")
    refused(api.client.get(f"/v1/model-runs/{other}/files/x"), 404)
    done = shown(api, other)
    assert (done["state"], done["size"], done["result"]["images"]) == ("succeeded", 10, 100)
    # The same images give the same vectors.
    assert post(api, checkpoint, "embeddings", dataset="emoji").json()["id"] == other
    listed = api.client.get(f"/v1/checkpoints/{checkpoint}/embeddings").json()["data"]
    assert [each["id"] for each in listed] == [other, view["id"]]
    stored = api.client.get("/v1/storage", headers=api.token("admin")).json()
    assert stored["model_runs"] == {"count": 1, "bytes": 10}
    with api.database.read() as session:
        assert storage.stored_by_tenant(session, only=None)["default"] == 8 + 10


def test_evaluation_and_export_are_requested(api: Api) -> None:
    checkpoint = trained(api)
    evaluation = requested(
        api, checkpoint, "evaluations", settings={"linear": True, "holdout": {"fraction": 0.5}}
    )
    run = TaskRun(api, evaluation)
    settings = run.post("start").json()["settings"]
    assert settings["linear"]["epochs"] == 100
    assert (settings["holdout"]["fraction"], settings["on"]) == (0.5, "backbone")
    result = {"metrics": {"backbone": {"knn_top1": 0.5}}}
    assert run.post("finish", state="succeeded", result=result).status_code == 204
    assert shown(api, evaluation)["result"] == result
    export = post(api, checkpoint, "exports", format="onnx").json()
    assert (export["dataset_id"], export["settings"]) == (None, {"format": "onnx"})
    started = TaskRun(api, export["id"]).post("start").json()
    assert (started["dataset"], started["gpu_is_free"]) == (None, False)
    for kind, run_id in (("evaluations", evaluation), ("exports", export["id"])):
        listed = api.client.get(f"/v1/checkpoints/{checkpoint}/{kind}").json()["data"]
        assert [each["id"] for each in listed] == [run_id]
    snapshot(api, cpus=4, gpus=1)
    assert TaskRun(api, requested(api, checkpoint)).post("start").json()["gpu_is_free"]


@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        ("embeddings", {"dataset": "nothing"}, "dataset"),
        ("embeddings", {"dataset": "emoji", "version": 2}, "dataset"),
        ("embeddings", {"dataset": "emoji", "version": True}, "version"),
        ("evaluations", {"dataset": "emoji", "version": "1"}, "version"),
        ("embeddings", {"dataset": "emoji", "features": "patch"}, "features"),
        ("embeddings", {"dataset": "emoji", "features": "cls"}, "features"),
        ("embeddings", {"dataset": "emoji", "features": "mean"}, "features"),
        ("embeddings", {"dataset": "emoji", "dtype": "bfloat16"}, "dtype"),
        ("embeddings", {"dataset": "emoji", "normalize": 1}, "normalize"),
        ("embeddings", {"dataset": "five bands"}, "dataset"),
        ("evaluations", {"dataset": "emoji", "settings": {"on": "embedding"}}, "settings.on"),
        ("evaluations", {"dataset": "emoji", "settings": {"knn": {"k": 0}}}, "settings.knn.k"),
        (
            "evaluations",
            {"dataset": "emoji", "settings": {"holdout": {"fraction": 0.001}}},
            "settings.holdout.fraction",
        ),
        (
            "evaluations",
            {"dataset": "emoji", "settings": {"holdout": None, "linear": True}},
            "settings.linear",
        ),
        ("evaluations", {"dataset": "plain", "settings": {"linear": True}}, "settings.linear"),
        ("evaluations", {"dataset": "few"}, "settings.holdout.fraction"),
        ("exports", {"format": "zip"}, "format"),
    ],
)
def test_problems_name_the_field(api: Api, kind: str, body: dict[str, Any], field: str) -> None:
    checkpoint = trained(api)
    api.dataset("five bands", bands=5)
    api.dataset("plain", num_classes=None)
    api.dataset("few", num_images=4)
    refused(post(api, checkpoint, kind, **body), 422, field)
    assert api.client.get(f"/v1/checkpoints/{checkpoint}/{kind}").json()["data"] == []


def test_only_own_ready_data_and_checkpoints_are_used(api: Api) -> None:
    checkpoint = trained(api)
    api.dataset("new", state="pending")
    api.dataset("theirs", tenant="other")
    refused(post(api, checkpoint, "embeddings", dataset="new"), 409, None, "dataset-not-ready")
    refused(post(api, checkpoint, "embeddings", dataset="theirs"), 422, "dataset")
    run = requested(api, checkpoint)
    other = api.token("submit", tenant="other")
    for method, path in (
        ("POST", f"/v1/checkpoints/{checkpoint}/embeddings"),
        ("GET", f"/v1/checkpoints/{checkpoint}/embeddings"),
        ("GET", f"/v1/checkpoints/{checkpoint}/neighbors?image=a"),
        ("GET", f"/v1/model-runs/{run}"),
        ("DELETE", f"/v1/model-runs/{run}"),
    ):
        body = {"dataset": "theirs"} if method == "POST" else None
        refused(api.client.request(method, path, json=body, headers=other), 404)
    reader = api.token("read")
    path = f"/v1/checkpoints/{checkpoint}/embeddings"
    refused(api.client.post(path, json={"dataset": "emoji"}, headers=reader), 403)


@pytest.mark.dialect
def test_pending_runs_of_a_token_are_limited(api: Api) -> None:
    checkpoint = trained(api)
    for number in range(MAX_PENDING):
        requested(api, checkpoint, "evaluations", settings={"retrieval": [number + 1]})
    answer = post(api, checkpoint, "exports", format="onnx")
    assert refused(answer, 429, None, "quota-exceeded")["quota"] == "pending_model_runs"


# PostgreSQL only: SQLite has one writer at a time.
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_concurrent_requests_of_a_token_are_counted_one_after_another(api: Api) -> None:
    """Else both would take the last place."""
    checkpoint = trained(api)
    for number in range(MAX_PENDING - 1):
        requested(api, checkpoint, "evaluations", settings={"retrieval": [number + 1]})

    with ThreadPoolExecutor() as threads, api.database.write() as session:
        token = session.scalars(select(ModelRun.token_id)).first()
        assert token is not None
        lock_token(session, token)  # as each request does first
        assert model_runs.count_pending(session, token) == MAX_PENDING - 1
        last = threads.submit(post, api, checkpoint, "exports", format="onnx")
        until(lambda: waits_for_lock(api.database), "the other request to wait", 20)
        session.commit()
        assert last.result().status_code == 201


@pytest.mark.dialect
def test_failed_run_is_repeated(api: Api) -> None:
    checkpoint = trained(api)
    first = requested(api, checkpoint)
    run = TaskRun(api, first)
    run.post("start")
    error = {"type": "ValueError", "message": "the folder is missing"}
    assert run.post("finish", state="failed", error=error).status_code == 204
    assert shown(api, first)["error"] == error
    assert requested(api, checkpoint) != first


@pytest.mark.parametrize("deleted", ["run", "checkpoint", "job", "dataset"])
def test_files_are_deleted_with_what_they_are_of(api: Api, garbage: Garbage, deleted: str) -> None:
    api.dataset("other")
    api.dataset()
    worker = training(api)
    checkpoint = checkpoint_of(worker, final=True)
    assert worker.post("finish", outcome="succeeded").status_code == 204
    run = embedded(api, checkpoint, dataset="other")
    folder = Path(api.context.storage.model_run_uri(run).removeprefix("file://"))
    assert folder.exists()
    other = api.client.get("/v1/datasets", params={"name": "other"}).json()["data"][0]["id"]
    path = {
        "run": f"model-runs/{run}",
        "checkpoint": f"checkpoints/{checkpoint}",
        "job": f"jobs/{worker.job_id}",
        "dataset": f"datasets/{other}",
    }[deleted]
    answer = api.client.delete(f"/v1/{path}")
    assert answer.status_code == 204, answer.text
    refused(api.client.get(f"/v1/model-runs/{run}"), 404)
    refused(api.client.get(f"/v1/model-runs/{run}/files/embedding-00000.parquet"), 404)
    with api.database.write() as session:  # as the dispatcher does once its processes are gone
        runs.mark_finalized(session, Attempt, worker.job_id, worker.number)
    for _ in range(3):
        garbage.round()
    assert not folder.exists()
    with api.database.read() as session:
        assert session.get(ModelRun, run) is None


def test_run_ends_with_its_checkpoint(api: Api) -> None:
    worker = training(api) if api.dataset() else None
    assert worker is not None
    checkpoint = checkpoint_of(worker)
    checkpoint_of(worker, 2)
    run = TaskRun(api, requested(api, checkpoint))
    run.post("start")
    assert api.client.delete(f"/v1/checkpoints/{checkpoint}").status_code == 204
    refused(run.post("heartbeat"), 409, None, "stale-attempt")
    refused(post(api, checkpoint, "embeddings", dataset="emoji"), 410, None, "checkpoint-deleted")


def test_retention_keeps_a_checkpoint_until_its_run_has_ended(api: Api) -> None:
    api.dataset()
    worker = training(api, checkpoints={"keep_last": 1, "keep_best": 0})
    first = checkpoint_of(worker)
    run = TaskRun(api, requested(api, first))
    run.post("start")
    checkpoint_of(worker, 2)
    with api.database.read() as session:
        assert session.get_one(Checkpoint, first).state == checkpoints.REGISTERED
    run.post("finish", state="succeeded", result={})
    with api.database.write() as session:
        retention.mark_obsolete(session, session.get_one(Job, worker.job_id))
    with api.database.read() as session:
        assert session.get_one(Checkpoint, first).state == checkpoints.DELETING


def test_retention_by_age_keeps_checkpoints_with_results_and_jobs_with_runs(
    api: Api, garbage: Garbage, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.dataset()
    worker = training(api)
    first, second, _ = (checkpoint_of(worker, step) for step in (1, 2, 3))
    embedded(api, first)
    waiting = requested(api, second)
    api.client.post(f"/v1/jobs/{worker.job_id}/cancel")
    worker.post("finish", outcome="cancelled")
    finalize(api, worker.job_id)
    path = f"/v1/jobs/{worker.job_id}/checkpoints"
    assert api.client.delete(path).json()["deleted"] == 0
    context, days = garbage._context, 40
    context.clock = lambda: utc_now() + timedelta(days=days)
    agree(monkeypatch, context.clock)
    context.settings = context.settings.model_copy(update={"keep_jobs_days": 35})

    def sweep() -> None:
        nonlocal days
        for _ in range(2):  # it is marked, and removed a day later
            days += 2
            something_happens(api.database, context.clock())
            assert context.take_lease()
            garbage._retention = Retention(context)
            garbage.round()

    sweep()
    assert api.client.get(f"/v1/jobs/{worker.job_id}").status_code == 200
    assert api.client.delete(f"/v1/model-runs/{waiting}").status_code == 204
    assert api.client.delete(path).json()["deleted"] == 1
    with api.database.read() as session:
        states = [session.get_one(Checkpoint, each).state for each in (first, second)]
    assert (states[0], states[1] != checkpoints.REGISTERED) == (checkpoints.REGISTERED, True)
    with api.database.write() as session:  # the store is full
        dropped = retention.drop_checkpoints(session, session.get_one(Job, worker.job_id), 10**9)
    assert dropped.checkpoints == 1
    sweep()
    assert api.client.get(f"/v1/jobs/{worker.job_id}").status_code == 404


def test_checkpoints_have_aliases(api: Api) -> None:
    api.dataset()
    worker = training(api)
    path = "/v1/checkpoints/{}?job=" + worker.job_id
    for alias in ("best", "final"):
        refused(api.client.get(path.format(alias)), 404)
    best = checkpoint_of(worker, 1, metrics={"knn_top1": 0.9})
    last = checkpoint_of(worker, 2, metrics={"knn_top1": 0.5})
    assert api.client.get(path.format("best")).json()["id"] == best
    assert api.client.get(path.format("final")).json()["id"] == last
    answer = api.client.post(path.format("best/embeddings"), json={"dataset": "emoji"})
    assert answer.json()["checkpoint_id"] == best
    refused(api.client.get("/v1/checkpoints/best"), 422, "job")
    refused(api.client.get(f"/v1/checkpoints/{best}?job={worker.job_id}"), 422, "job")
    refused(api.client.get("/v1/checkpoints/best?job=job_0"), 404)
    other = api.token("read", tenant="other")
    refused(api.client.get(path.format("best"), headers=other), 404)


class Asking:
    """A request for neighbors that waits in a thread for its answer."""

    def __init__(self, api: Api, checkpoint: str) -> None:
        self.api, self.path = api, f"/v1/checkpoints/{checkpoint}/neighbors"
        self.pool = ThreadPoolExecutor(4)

    def key(self, **params: Any) -> Future[Any]:
        return self.pool.submit(self.api.client.get, self.path, params=params)

    def file(self, content: bytes, **params: Any) -> Future[Any]:
        return self.pool.submit(self.api.client.post, self.path, content=content, params=params)


def search_of(api: Api, embedding: str) -> str:
    """Return the search that a question has added, once it is there."""
    while True:
        with api.database.read() as session:
            if (search := searches.pending(session, embedding)) is not None:
                return search.id


def open_questions(api: Api) -> int:
    with api.database.read() as session:
        return session.query(SearchQuery).count()


def test_neighbors_are_asked_of_a_search(api: Api) -> None:
    checkpoint = trained(api)
    embedding = embedded(api, checkpoint)
    asking = Asking(api, checkpoint)
    by_key = asking.key(image="a.png", k=1)
    search = search_of(api, embedding)
    run = TaskRun(api, search, searches)
    started = run.post("start").json()
    assert started["embedding"]["files"][0]["name"] == "embedding-00000.parquet"
    assert started["settings"]["features"] == "pooled"
    [query] = run.post("queries").json()["queries"]
    assert (query["key"], query["image"], query["k"]) == ("a.png", None, 1)
    near = [{"key": "b.png", "label": "b", "similarity": 0.5}]
    by_file = asking.file(b"picture", k=2, dataset="emoji")
    answers: list[Any] = [{"id": query["id"], "neighbors": near}]
    [query] = run.post("queries", answers=answers).json()["queries"]
    found = by_key.result().json()
    assert (found["embedding_id"], found["neighbors"]) == (embedding, near)
    assert base64.b64decode(query["image"]) == b"picture"
    again = asking.key(image="c.png")
    answers = [{"id": query["id"], "problem": "is not an image"}]
    [query] = run.post("queries", answers=answers).json()["queries"]
    problem = refused(by_file.result(), 422, "image")
    assert problem["errors"][0]["message"] == "is not an image"
    with api.database.write() as session:
        session.get_one(Search, search).deleted_at = session.get_one(Search, search).created_at
    refused(again.result(), 404)
    with api.database.read() as session:
        assert session.query(SearchQuery).count() == 0


def test_images_of_questions_are_bounded(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search gets few large images at once, and a token that asks too much sends none."""
    monkeypatch.setattr(worker_searches, "IMAGE_BYTES_AT_ONCE", 10)
    monkeypatch.setattr(worker_endpoints, "_LONG_POLL_SECONDS", 0.01)
    checkpoint = trained(api)
    embedding = embedded(api, checkpoint)
    asking = Asking(api, checkpoint)
    first = asking.file(b"8 bytes!")
    run = TaskRun(api, search_of(api, embedding), searches)
    second = asking.file(b"8 bytes?")
    until(lambda: open_questions(api) == 2 or None, "two questions", 60, pause=0.01)
    api.context.search_threads.per_token = 2
    refused(api.client.post(asking.path, content=b"x"), 429, None, "too-many-search-requests")
    run.post("start")
    answers: list[Any] = []
    for _ in range(2):
        [query] = run.post("queries", answers=answers).json()["queries"]
        assert base64.b64decode(query["image"]) in (b"8 bytes!", b"8 bytes?")
        answers = [{"id": query["id"], "neighbors": []}]
    run.post("queries", answers=answers)
    assert first.result().json()["neighbors"] == second.result().json()["neighbors"] == []
    assert api.context.search_threads.requests == 0


def test_problem_of_a_checkpoint_is_found_before_its_image_is_read(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    whole = neighbor_endpoints._whole

    async def counted(body: Body) -> bytes:
        image = await whole(body)
        read.append(len(image))
        return image

    monkeypatch.setattr(neighbor_endpoints, "_whole", counted)
    checkpoint = trained(api)
    path = f"/v1/checkpoints/{checkpoint}/neighbors"
    refused(api.client.post(path, content=b"x"), 409, None, "no-embedding")
    refused(api.client.post("/v1/checkpoints/ckpt_0/neighbors", content=b"x"), 404)
    assert read == []
    embedded(api, checkpoint)
    refused(api.client.post(path), 422, "image")
    assert read == [0]


@pytest.mark.dialect
def test_search_ends_when_nobody_asks(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbor_endpoints, "_PATIENCE_SECONDS", 0.01)
    checkpoint = trained(api)
    embedding = embedded(api, checkpoint)
    path = f"/v1/checkpoints/{checkpoint}/neighbors"
    problem = refused(api.client.get(path, params={"image": "a"}), 503, None, "search-starting")
    assert problem["status"] == 503
    search = search_of(api, embedding)
    run = TaskRun(api, search, searches)
    run.post("start")
    with api.database.write() as session:
        session.get_one(Search, search).asked_at -= IDLE + timedelta(seconds=1)
    assert run.post("queries").json() == {"queries": [], "stop": True}
    # Asked in the last moment: the next search answers.
    assert run.post("finish", state="succeeded").status_code == 204
    refused(api.client.get(path, params={"image": "a"}), 503, None, "search-starting")
    assert search_of(api, embedding) != search
    refused(run.post("queries"), 409, None, "stale-attempt")


def test_neighbors_need_an_embedding_and_an_image(api: Api) -> None:
    checkpoint = trained(api, **VIT)
    path = f"/v1/checkpoints/{checkpoint}/neighbors"
    problem = refused(api.client.get(path, params={"image": "a"}), 409, None, "no-embedding")
    assert f"dasl embed {checkpoint} --dataset DATASET" in problem["detail"]
    requested(api, checkpoint, features="cls")
    embedded(api, checkpoint, features="patch")
    problem = refused(api.client.get(path, params={"image": "a"}), 409, None, "no-embedding")
    assert "only embeddings of patches" in problem["detail"]
    embedded(api, checkpoint)
    refused(api.client.get(path), 422, "image")
    assert "missing or empty" in refused(api.client.post(path), 422, "image")["detail"]
    refused(api.client.get(path, params={"image": "a", "k": 0}), 422, "k")
    refused(api.client.get(path, params={"image": "a", "dataset": "nothing"}), 404)
    too_large = bytes(neighbor_endpoints.MAX_IMAGE_BYTES + 1)
    refused(api.client.post(path, content=too_large), 413)


def test_failed_search_says_why(api: Api) -> None:
    checkpoint = trained(api)
    embedding = embedded(api, checkpoint)
    asked = Asking(api, checkpoint).key(image="a.png")
    run = TaskRun(api, search_of(api, embedding), searches)
    run.post("start")
    error = {"type": "OSError", "message": "the disk is full"}
    assert run.post("finish", state="failed", error=error).status_code == 204
    problem = refused(asked.result(), 409, None, "search-failed")
    assert "the disk is full" in problem["detail"]


def test_webhooks_are_notified_by_kind_and_not_of_searches(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbor_endpoints, "_PATIENCE_SECONDS", 0.01)
    admin = api.token("admin")
    body = {"url": "https://hooks.example.com/x", "events": ["*"]}
    answer = api.client.post("/v1/webhooks", json=body, headers=admin)
    assert answer.status_code == 201, answer.text
    checkpoint = trained(api)
    embedding = embedded(api, checkpoint)
    api.client.get(f"/v1/checkpoints/{checkpoint}/neighbors", params={"image": "a.png"})
    search = search_of(api, embedding)
    assert TaskRun(api, search, searches).post("finish", state="succeeded").status_code == 204
    with api.database.read() as session:
        messages = [row.message for row in session.scalars(select(WebhookDelivery))]
    [ended] = [each for each in messages if not each["type"].startswith("job.")]
    assert ended["type"] == "embedding.succeeded"
    assert (ended["data"]["id"], ended["data"]["checkpoint_id"]) == (embedding, checkpoint)
