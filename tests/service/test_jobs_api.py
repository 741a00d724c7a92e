"""Submitting, listing, changing, cloning and cancelling jobs over REST."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import select

from service import lifecycle
from service.db.models import Attempt, DatasetVersion, IdempotencyKey
from service.protocol import AttemptStart
from service.scheduling import repository as scheduling
from service.scheduling.automatic import NOTHING
from service.scheduling.nodes import GPU_TYPE_LABEL, Node
from service.scheduling.packing import Worker
from service.settings import ClusterLimit, NodeShape
from service.states import StopReason
from tests.support.api_under_test import Api, decide, refused, save_nodes, snapshot
from tests.support.statements import recorded_statements


def test_submit_stores_submitted_and_resolved_spec(api: Api) -> None:
    dataset = api.dataset()
    answer = api.client.post(
        "/v1/jobs", json={"dataset": "emoji", "name": "first", "tags": {"team": "vision"}}
    )
    assert answer.status_code == 201
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert job["spec"] == {"dataset": "emoji", "name": "first", "tags": {"team": "vision"}}
    assert isinstance(job["resolved"]["train"]["batch_size"], int)
    resources = job["resolved"]["resources"]
    assert resources["cpus_per_worker"] == resources["gpus_per_worker"] == "auto"
    assert str(job["resolved"]).count("auto") == 2
    assert (job["status"], job["desired"], job["attempt"]) == ("queued", "run", 0)
    assert job["dataset"] == {"id": dataset, "name": "emoji"}
    stored = api.client.get(f"/v1/jobs/{job['id']}").json()
    assert {**stored, "estimate": job["estimate"], "warnings": []} == job
    assert job["estimate"]["total_steps"] > 0
    events = api.client.get(f"/v1/jobs/{job['id']}/events").json()
    assert [event["seq"] for event in events["data"]] == [1]
    by_id = api.client.post("/v1/jobs", json={"dataset": dataset})
    assert by_id.json()["dataset"]["name"] == "emoji"


def test_job_at_its_time_limit_resumes_after_the_limit_is_raised(api: Api) -> None:
    api.dataset()
    worker = api.start(api.submit(resources={"max_hours": 1.0})["id"])
    path = f"/v1/jobs/{worker.job_id}"
    assert worker.post("start").status_code == 200
    assert worker.post("heartbeat").json() == {"desired": "run"}
    with api.database.write() as session:
        session.get_one(Attempt, (worker.job_id, 1)).ran_seconds = 3600.0
        assert lifecycle.request_stop(session, worker.job_id, 1, StopReason.TIME_LIMIT)
        assert not lifecycle.request_stop(session, worker.job_id, 1, StopReason.TIME_LIMIT)
    assert api.client.get(path).json()["status"] == "pausing"
    assert worker.post("heartbeat").json() == {"desired": "pause"}
    assert worker.post("finish", outcome="paused").status_code == 204
    job = api.client.get(path).json()
    assert (job["status"], job["error"]["type"], job["max_hours"]) == ("paused", "max-hours", None)
    attempt = api.client.get(f"{path}/attempts").json()["data"][0]
    assert (attempt["state"], attempt["stop_reason"]) == ("paused", "time-limit")

    detail = refused(api.client.post(f"{path}/resume"), 409, None, "time-limit-reached")["detail"]
    assert detail.startswith("The job has run for 1.0 hours, and resources.max_hours is 1. Raise")
    for bad in ({"max_hours": 0}, {"max_hours": None}, {}, None, {"cpus_per_worker": 2}):
        assert api.client.patch(path, json={"resources": bad}).status_code == 422, bad
    changed = api.client.patch(path, json={"resources": {"max_hours": 48}})
    assert (changed.status_code, changed.json()["max_hours"]) == (200, 48.0)
    assert changed.json()["resolved"]["resources"]["max_hours"] == 1.0, "as it was submitted"
    resumed = api.client.post(f"{path}/resume").json()
    assert (resumed["status"], resumed["error"]) == ("queued", None)
    events = api.client.get(f"{path}/events").json()["data"]
    assert "resources.max_hours is 48 now" in [event["message"] for event in events]
    api.client.post(f"{path}/cancel")
    refused(api.client.patch(path, json={"resources": {"max_hours": 72}}), 409, None, "wrong-state")


def test_validate_returns_estimate_and_stores_nothing(api: Api) -> None:
    api.dataset()
    spec = {"dataset": "emoji", "train": {"epochs": 3, "batch_size": 10}}
    answer = api.client.post("/v1/jobs/validate", json=spec)
    assert answer.status_code == 200
    body = answer.json()
    assert body["resolved"]["train"]["batch_size"] == 10
    assert body["estimate"]["total_steps"] == 27
    assert body["estimate"]["backbone_parameters"] > 10_000_000
    assert api.client.get("/v1/jobs").json()["data"] == []


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"method": {"name": "simclir"}}, "method.name"),
        ({"train": {"batch_size": 10}, "resources": {"workers": 3}}, "train.batch_size"),
        ({"train": {"batch_size": 1000}}, "train.batch_size"),
        ({"dataset": "nowhere"}, "dataset"),
        ({"dataset": "../etc"}, "dataset"),
        ({"evaluate": {"dataset": "nowhere"}}, "evaluate.dataset"),
        ({"trian": {}}, "trian"),
        ({"train": {"epochs": 0}}, "train.epochs"),
        ({"backbone": {"name": "resnet19"}}, "backbone.name"),
    ],
)
def test_submit_names_the_bad_field(api: Api, spec: dict[str, Any], field: str) -> None:
    api.dataset()
    for path in ("/v1/jobs", "/v1/jobs/validate"):
        problem = refused(api.client.post(path, json={"dataset": "emoji", **spec}), 422, field)
        assert problem["type"] == "validation"
    assert api.client.get("/v1/jobs").json()["data"] == []


def test_submit_refuses_evaluation_on_unfit_data_set(api: Api) -> None:
    dataset_id = api.dataset()
    api.dataset("satellite", bands=5)
    same = "must differ from `dataset`"
    for name, why in (("satellite", "has images of 5 bands"), ("emoji", same), (dataset_id, same)):
        spec = {"dataset": "emoji", "evaluate": {"dataset": name}}
        problem = refused(api.client.post("/v1/jobs", json=spec), 422, "evaluate.dataset")
        assert why in problem["errors"][0]["message"]


def test_evaluation_images_of_other_classes_are_counted(api: Api) -> None:
    """The number of held-out images is that of `evaluate.dataset`."""
    reports = {"emoji": (["Rotkehlchen", "owl"], [50, 40]), "other": (["Möwe", "owl"], [12, 12])}
    for name, (classes, images) in reports.items():
        dataset = api.dataset(name, num_images=sum(images), num_classes=2)
        with api.database.write() as session:
            version = session.get_one(DatasetVersion, (dataset, 1))
            version.report = {"class_names": classes, "class_images": images}
    spec = {"dataset": "emoji", "evaluate": {"dataset": "other"}}
    answer = api.client.post("/v1/jobs/validate", json=spec).json()
    assert answer["estimate"]["held_out_images"] == 24
    assert answer["warnings"] == [
        "evaluate.dataset: 12 of 24 evaluation images are of classes without training images: Möwe."
    ]
    assert api.client.post("/v1/jobs", json=spec).json()["warnings"] == answer["warnings"]
    with api.database.write() as session:  # the report of many classes does not name all
        version = session.get_one(DatasetVersion, (dataset, 1))
        version.report = {"class_names": ["owl"], "class_images": [12]}
    assert api.client.post("/v1/jobs/validate", json=spec).json()["warnings"] == []


def test_workers_of_a_job_that_does_not_run_can_be_changed(api: Api) -> None:
    api.dataset()
    job = api.submit(train={"batch_size": 12}, resources={"workers": 4})
    path = f"/v1/jobs/{job['id']}"
    changed = api.client.patch(path, json={"resources": {"workers": 2, "max_hours": 48}})
    assert changed.status_code == 200, changed.text
    assert (changed.json()["workers"], changed.json()["max_hours"]) == (2, 48.0)
    assert changed.json()["resolved"]["resources"]["workers"] == 4, "as it was submitted"
    problem = refused(
        api.client.patch(path, json={"resources": {"workers": 5}}), 422, "resources.workers"
    )
    assert "the global batch of 12" in problem["errors"][0]["message"]
    for bad in (0, 1.5, "two", 5000):
        assert api.client.patch(path, json={"resources": {"workers": bad}}).status_code == 422

    worker = api.start(job["id"])
    resources = worker.post("start").json()["spec"]["resources"]
    assert (resources["workers"], resources.get("min_workers")) == (2, None)
    problem = refused(
        api.client.patch(path, json={"resources": {"workers": 3}}), 409, None, "wrong-state"
    )
    assert problem["job_status"] == "running"
    api.client.post(f"{path}/pause")
    assert worker.post("finish", outcome="paused").status_code == 204
    assert api.client.patch(path, json={"resources": {"workers": 3}}).json()["workers"] == 3
    attempt = api.client.get(f"{path}/attempts").json()["data"][0]
    assert attempt["workers"] == 2
    events = api.client.get(f"{path}/events").json()["data"]
    assert "resources.workers is 3 now" in [event["message"] for event in events]


def test_submit_refuses_more_workers_than_the_cluster_can_place(api: Api) -> None:
    """The nodes have one GPU each, of two types; one of them has a label."""
    api.dataset()
    api.settings.cluster_limit = "current"
    a100 = Node("1", "10.0.0.1", 4, 1, 0, 0, total_memory=8e9, labels={GPU_TYPE_LABEL: "A100"})
    h100 = Node("2", "10.0.0.2", 4, 1, 0, 0, labels={GPU_TYPE_LABEL: "H100", "rack": "x"})
    save_nodes(api, [a100, h100])

    def why(**resources: Any) -> dict[str, str]:
        spec = {"dataset": "emoji", "train": {"batch_size": 12}, "resources": resources}
        answer = api.client.post("/v1/jobs", json=spec)
        return {} if answer.is_success else refused(answer, 422)["errors"][0]

    assert why(gpus_per_worker=1, gpu_type="H100") == {}
    absent = why(gpus_per_worker=1, gpu_type="L4")
    assert absent["field"] == "resources.gpu_type"
    assert absent["message"] == (
        "no node has GPUs of type L4; the cluster has A100 (1 node), H100 (1 node)"
    )
    assert why(gpus_per_worker=1, workers=2, gpu_type="H100")["field"] == "resources.workers"
    assert why(gpu_type="H100", gpus_per_worker=0)["field"] == "resources.gpu_type"
    assert why(gpu_type="H100") == {}
    assert why(node_labels={"rack": "y"})["message"] == "no node has the label rack=y"
    assert why(workers=2, cpus_per_worker=3, same_node=True)["field"] == "resources.same_node"
    assert why(exclude_nodes=["10.0.0.1", "2"])["field"] == "resources.exclude_nodes"
    memory = why(memory_gb_per_worker=9)
    assert memory["field"] == "resources.memory_gb_per_worker"
    assert memory["expected"] == "at most 8"
    assert why(min_workers=2)["field"] == "resources.min_workers"
    for key, value in (("-", "x"), ("a", "!x"), ("a", "in(x)"), ("a", "")):
        assert "node_labels" in why(node_labels={key: value})["field"], (key, value)
    mixed = api.submit(train={"batch_size": 12}, resources={"workers": 2, "gpus_per_worker": 1})
    assert mixed["warnings"][0].startswith("resources.gpu_type: the cluster has GPUs of several")


def test_submit_refuses_more_resources_than_the_cluster_has(api: Api) -> None:
    api.dataset()
    api.settings.cluster_limit = "current"
    spec = {
        "dataset": "emoji",
        "train": {"batch_size": 12},
        "resources": {"workers": 3, "cpus_per_worker": 2},
    }
    assert api.client.post("/v1/jobs", json=spec).status_code == 201, "nothing is known yet"
    snapshot(api, cpus=4)
    problem = refused(api.client.post("/v1/jobs", json=spec), 422, "resources.workers")
    assert "at most 2" in problem["errors"][0]["expected"]
    # So many do not share the batch either: one error per field.
    many = {"dataset": "emoji", "resources": {"workers": 4096}}
    (error,) = refused(api.client.post("/v1/jobs", json=many), 422)["errors"]
    assert (error["field"], error["given"]) == ("resources.workers", "4096")
    assert "at most 4" in error["expected"]
    spec["resources"] = {"workers": 1, "gpus_per_worker": 1}
    problem = refused(api.client.post("/v1/jobs", json=spec), 422)
    (error,) = problem["errors"]
    assert error["field"] == "resources.gpus_per_worker"
    assert error["message"] == "no node has a GPU"
    assert (error["given"], error["expected"]) == ("1", "0")
    snapshot(api, cpus=4, gpus=1)
    assert api.client.post("/v1/jobs", json=spec).status_code == 201
    spec["resources"] = {"cpus_per_worker": 64}
    problem = refused(api.client.post("/v1/jobs", json=spec), 422)
    assert [error["field"] for error in problem["errors"]] == ["resources.cpus_per_worker"]


@pytest.mark.parametrize(
    ("resources", "field", "most", "because"),
    [
        ({"workers": 3, "cpus_per_worker": 2, "gpus_per_worker": 0}, None, None, ""),
        ({"workers": 3, "gpus_per_worker": 0}, None, None, ""),
        (
            {"workers": 2, "cpus_per_worker": 3, "gpus_per_worker": 0},
            "workers",
            1,
            "3 CPUs each: the cluster has room",
        ),
        ({"cpus_per_worker": 5}, "cpus_per_worker", 4, "than any node has for a worker: 4"),
        ({"cpus_per_worker": 3}, None, None, ""),
        (
            {"cpus_per_worker": 3, "gpus_per_worker": 1},
            "cpus_per_worker",
            2,
            "than any node with a GPU has",
        ),
    ],
)
def test_submit_refuses_worker_that_fits_on_no_node(
    api: Api, resources: dict[str, int], field: str | None, most: int | None, because: str
) -> None:
    """The nodes have 4 CPUs, 2 CPUs with a GPU, and none."""
    api.dataset()
    api.settings.cluster_limit = "current"
    snapshot(api, cpus=4, others=[(2, 1), (0, 0)])
    spec = {"dataset": "emoji", "train": {"batch_size": 12}, "resources": resources}
    answer = api.client.post("/v1/jobs", json=spec)
    if field is None:
        assert answer.status_code == 201, answer.text
        return
    (error,) = refused(answer, 422)["errors"]
    assert (error["field"], error["expected"]) == (f"resources.{field}", f"at most {most}")
    assert because in error["message"]


def test_auto_takes_the_gpus_of_the_cluster(api: Api) -> None:
    api.dataset()
    api.settings.cluster_limit = "current"
    snapshot(api, cpus=8, gpus=2)
    spec = {"dataset": "emoji", "train": {"batch_size": 12}, "resources": {"workers": 3}}
    (error,) = refused(api.client.post("/v1/jobs", json=spec), 422)["errors"]
    assert error["field"] == "resources.workers"
    assert error["message"] == "3 workers with 4 CPUs and 1 GPU each: the cluster has room for 2"
    assert error["expected"] == "at most 2, or resources.gpus_per_worker: 0"
    job = api.submit(train={"batch_size": 12}, resources={"workers": 2})
    assert job["resolved"]["train"]["precision"] == "bf16"
    assert job["resolved"]["resources"]["gpus_per_worker"] == 1, "it waits for them if they leave"
    assert job["resolved"]["resources"]["cpus_per_worker"] == "auto"
    without = api.token("submit", max_gpus=0)
    job = api.client.post("/v1/jobs", json=spec, headers=without).json()
    assert job["resolved"]["train"]["precision"] == "fp32"
    too_few = api.token("submit", max_gpus=1)
    (error,) = refused(api.client.post("/v1/jobs", json=spec, headers=too_few), 422)["errors"]
    assert error["message"] == (
        "3 workers with a GPU each need 3 GPUs, and max_gpus of its token or tenant is 1"
    )
    assert error["expected"] == "at most 1, or resources.gpus_per_worker: 0 to train on CPUs"
    spec["resources"] = {"workers": 2, "gpus_per_worker": 1}
    job = api.client.post("/v1/jobs", json=spec, headers=too_few).json()
    assert job["warnings"] == [
        "resources.workers: 2 workers with a GPU each need 2 GPUs, and max_gpus of its token or tenant is 1. The "
        "job waits until that is raised."
    ]


@pytest.mark.parametrize(
    ("gpus", "given", "precision"), [(0, "auto", "fp32"), (1, "auto", "bf16"), (1, "fp16", "fp16")]
)
def test_attempt_has_the_numbers_that_were_chosen(
    api: Api, gpus: int, given: str, precision: str
) -> None:
    """No node was known at the submission."""
    api.dataset()
    job_id = api.submit(train={"batch_size": 12, "precision": given})["id"]
    worker = api.start(job_id, numbers=Worker(4, gpus))
    job = api.client.get(f"/v1/jobs/{job_id}").json()
    assert job["spec"].get("resources") is None
    assert job["resolved"]["resources"]["cpus_per_worker"] == 4
    assert job["resolved"]["resources"]["gpus_per_worker"] == gpus
    assert job["resolved"]["train"]["precision"] == precision
    started = AttemptStart.model_validate(worker.post("start").json())
    assert started.resources().cpus_per_worker == 4
    assert started.resources().gpus_per_worker == gpus
    assert started.job_spec().train.precision == precision
    assert started.job_spec().dataset == "emoji@1"  # the model card names it
    event = api.client.get(f"/v1/jobs/{job_id}/events").json()["data"][1]
    message = f"Attempt 1 is starting (cpus_per_worker: 4; gpus_per_worker: {gpus})"
    assert (event["message"], event["data"]["cpus_per_worker"]) == (message, 4)
    # The next attempt keeps them.
    with api.database.read() as session:
        (held,) = scheduling.running(session, datetime.now(UTC))
        assert held.demand.worker == Worker(4, gpus)
    worker.post("finish", outcome="failed", error={"type": "x", "message": "y"}, retryable=True)
    with api.database.write() as session:
        (held,) = scheduling.running(session, datetime.now(UTC))
        assert held.demand.worker == Worker(4, gpus), "while it waits for a retry"
        lifecycle.requeue(session, job_id)
    with api.database.read() as session:
        (queued,) = scheduling.load_queued(session, [job_id])
    assert queued.automatic == NOTHING
    assert queued.demand.worker == Worker(4, gpus)


@pytest.mark.parametrize("limit", [None, (NodeShape(8, 64, 8),)])
def test_job_waits_for_nodes_that_are_away(api: Api, limit: ClusterLimit) -> None:
    api.dataset()
    api.settings.cluster_limit = limit
    snapshot(api, 64, 8, others=[(64, 8)] * 6)  # one of 8 nodes is down
    resources = {"workers": 64, "gpus_per_worker": 1}
    spec = {"dataset": "emoji", "train": {"batch_size": 64}, "resources": resources}
    end = "The job waits until Ray has more nodes."
    size = "64 workers with 8 CPUs and 1 GPU each: the cluster has room for 56"
    warnings = [f"resources.workers: {size}. {end}"]
    job = api.submit(**spec)
    assert job["warnings"] == warnings
    assert api.client.post("/v1/jobs/validate", json=spec).json()["warnings"] == warnings
    clone = api.client.post(f"/v1/jobs/{job['id']}/clone", json={"checkpoint": None})
    assert clone.json()["warnings"] == warnings
    decide(api)
    (first, _) = api.client.get("/v1/cluster").json()["queue"]
    assert first["waits_for"] == "machines"
    snapshot(api, 4)  # the nodes with GPUs are scaled down
    spec["resources"] = {"gpus_per_worker": 1}
    warnings = [f"resources.gpus_per_worker: no node has a GPU. {end}"]
    assert api.submit(**spec)["warnings"] == warnings
    snapshot(api, 4, 1)
    assert api.submit(**spec)["warnings"] == []


def test_submit_refuses_what_the_largest_cluster_cannot_run(api: Api) -> None:
    api.dataset()
    api.settings.cluster_limit = (NodeShape(2, 8, 4), NodeShape(1, 32, 0))
    for resources, field, expected in (
        ({"workers": 9, "gpus_per_worker": 1}, "workers", "at most 8"),
        ({"cpus_per_worker": 33}, "cpus_per_worker", "at most 32"),
        ({"cpus_per_worker": 9, "gpus_per_worker": 1}, "cpus_per_worker", "at most 8"),
    ):
        spec = {"dataset": "emoji", "train": {"batch_size": 18}, "resources": resources}
        for path in ("/v1/jobs", "/v1/jobs/validate"):
            (error,) = refused(api.client.post(path, json=spec), 422)["errors"]
            assert (error["field"], error["expected"]) == (f"resources.{field}", expected)


@pytest.mark.parametrize("field", ["dataset", "evaluate.dataset"])
def test_submit_refuses_dataset_whose_folder_is_gone(api: Api, field: str) -> None:
    for name in ("emoji", "other"):
        api.dataset(name)
    spec = {"dataset": "emoji", "evaluate": {"dataset": "other"}}
    key = {"Idempotency-Key": "before"}
    first = api.client.post("/v1/jobs", json=spec, headers=key)
    assert first.status_code == 201
    name = "emoji" if field == "dataset" else "other"
    (api.settings.home.parent / "images" / name).rmdir()
    for path in ("/v1/jobs", "/v1/jobs/validate"):
        problem = refused(api.client.post(path, json=spec), 422)
        (error,) = problem["errors"]
        assert (error["field"], error["given"]) == (field, name)
        assert "no longer exists" in error["message"]
    assert api.client.post("/v1/jobs", json=spec, headers=key).json() == first.json()
    api.settings.check_paths = False
    assert api.client.post("/v1/jobs", json=spec).status_code == 201


@pytest.mark.parametrize(
    ("state", "status"), [("pending", 409), ("ingesting", 409), ("failed", 422)]
)
def test_submit_refuses_dataset_that_is_not_ready(api: Api, state: str, status: int) -> None:
    api.dataset(state=state)
    problem = refused(api.client.post("/v1/jobs", json={"dataset": "emoji"}), status, "dataset")
    if status == 409:
        assert problem["type"] == "dataset-not-ready"
        assert state in problem["detail"]


@pytest.mark.dialect
def test_idempotency_key_replays_the_first_response(api: Api) -> None:
    api.dataset()
    key = {"Idempotency-Key": "abc"}
    first = api.client.post("/v1/jobs", json={"dataset": "emoji", "name": "a"}, headers=key)
    assert first.status_code == 201
    api.client.post(f"/v1/jobs/{first.json()['id']}/cancel")
    again = api.client.post("/v1/jobs", json={"name": "a", "dataset": "emoji"}, headers=key)
    assert (again.status_code, again.json()) == (201, first.json())
    assert again.headers["idempotency-replayed"] == "true"
    other = api.client.post("/v1/jobs", json={"dataset": "emoji", "name": "b"}, headers=key)
    refused(other, 422, None, "idempotency-key-reused")
    assert len(api.client.get("/v1/jobs").json()["data"]) == 1
    api.dataset(tenant="other")
    theirs = api.client.post(
        "/v1/jobs",
        json={"dataset": "emoji", "name": "b"},
        headers={**key, **api.token("submit", tenant="other")},
    )
    assert theirs.status_code == 201, "a key is the tenant's own"


def test_idempotency_key_replays_the_answer_of_another_version_as_it_was(api: Api) -> None:
    api.dataset()
    spec, key = {"dataset": "emoji"}, {"Idempotency-Key": "abc"}
    first = api.client.post("/v1/jobs", json=spec, headers=key).json()
    del first["token_id"]  # a field that version did not have
    first["stage"] = "waiting"  # and one that is gone
    with api.database.write() as session:
        session.scalars(select(IdempotencyKey)).one().answer = first
    again = api.client.post("/v1/jobs", json=spec, headers=key)
    assert (again.status_code, again.json()) == (201, first)
    assert again.headers["location"] == f"/v1/jobs/{first['id']}"


@pytest.mark.dialect
def test_idempotency_key_creates_one_job_for_concurrent_requests(api: Api) -> None:
    api.dataset()

    def submit(_: int) -> Any:
        return api.client.post(
            "/v1/jobs", json={"dataset": "emoji"}, headers={"Idempotency-Key": "one"}
        )

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(submit, range(8)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(api.client.get("/v1/jobs").json()["data"]) == 1


def test_job_list_deduplicates_status_filter(api: Api) -> None:
    api.dataset()
    cancelled, queued = (api.submit()["id"] for _ in range(2))
    api.client.post(f"/v1/jobs/{cancelled}/cancel")

    def ids_and_query_lengths(*statuses: str) -> tuple[list[str], list[int]]:
        with recorded_statements(api.database) as statements:
            answer = api.client.get("/v1/jobs", params={"status": statuses})
        assert answer.status_code == 200, answer.text
        lengths = [len(statement) for statement, _ in statements]
        return [job["id"] for job in answer.json()["data"]], lengths

    once, both = ids_and_query_lengths("queued"), ids_and_query_lengths("queued", "cancelled")
    assert (once[0], both[0]) == ([queued], [queued, cancelled])
    assert sum(once[1]) < sum(both[1])
    assert ids_and_query_lengths(*["queued"] * 501) == once
    assert ids_and_query_lengths(*["queued", "cancelled"] * 501) == both


@pytest.mark.dialect
def test_job_list_filters_by_current_tags(api: Api) -> None:
    def tagged(tag: str) -> list[str]:
        return [job["id"] for job in api.client.get(f"/v1/jobs?tag={tag}").json()["data"]]

    api.dataset()
    job = api.submit(tags={"team": "vision", "stage": "trial"})["id"]
    tags = {"team": "audio", "stage": "trial", "owner": "kim"}
    api.client.patch(f"/v1/jobs/{job}", json={"tags": tags})
    assert [tagged(tag) for tag in ("team:vision", "team:audio", "stage:trial", "owner:kim")] == [
        [],
        [job],
        [job],
        [job],
    ]
    api.client.patch(f"/v1/jobs/{job}", json={"tags": {}})
    assert tagged("team:audio") == []


def test_patch_changes_only_listed_fields(api: Api) -> None:
    api.dataset()
    job = api.client.get(f"/v1/jobs/{api.submit(name='old', tags={'a': 'b'})['id']}").json()
    changed = api.client.patch(f"/v1/jobs/{job['id']}", json={"priority": 7})
    assert changed.json() == {**job, "priority": 7}
    renamed = api.client.patch(f"/v1/jobs/{job['id']}", json={"name": "new", "tags": {}})
    assert renamed.json() == {**job, "priority": 7, "name": "new", "tags": {}}
    for body in ({"status": "succeeded"}, {"name": None}, {"name": "../x"}, {"priority": 10**6}):
        refused(api.client.patch(f"/v1/jobs/{job['id']}", json=body), 422, next(iter(body)))
    assert api.client.get(f"/v1/jobs/{job['id']}").json()["name"] == "new"


def test_cancel_ends_queued_job_and_refuses_terminal_job(api: Api) -> None:
    api.dataset()
    job = api.submit()["id"]
    answer = api.client.post(f"/v1/jobs/{job}/cancel")
    assert (answer.status_code, answer.json()["status"]) == (202, "cancelled")
    assert api.client.post(f"/v1/jobs/{job}/cancel").status_code == 202
    job = api.submit()["id"]
    worker = api.run(job)
    worker.post("finish", outcome="succeeded")
    problem = refused(api.client.post(f"/v1/jobs/{job}/cancel"), 409, None, "wrong-state")
    assert problem["job_status"] == "succeeded"


def test_pause_and_resume_follow_job_status(api: Api) -> None:
    api.dataset()
    job = api.submit()["id"]

    def request(verb: str) -> tuple[int, str, str]:
        answer = api.client.post(f"/v1/jobs/{job}/{verb}")
        body = answer.json()
        return answer.status_code, body.get("status"), body.get("desired")

    problem = refused(api.client.post(f"/v1/jobs/{job}/resume"), 409, None, "wrong-state")
    assert problem["detail"] == "The job is queued; only a paused job can be resumed"
    assert request("pause") == (202, "paused", "pause")
    assert request("pause") == (202, "paused", "pause")
    assert request("resume") == (202, "queued", "run")
    worker = api.run(job)
    assert request("pause") == (202, "running", "pause")
    assert worker.post("heartbeat").json()["desired"] == "pause"
    refused(api.client.post(f"/v1/jobs/{job}/resume"), 409, None, "wrong-state")
    worker.post("finish", outcome="paused")
    assert request("resume") == (202, "queued", "run")
    worker = api.run(job)
    assert request("cancel") == (202, "running", "cancel")
    problem = refused(api.client.post(f"/v1/jobs/{job}/pause"), 409, None, "wrong-state")
    assert problem["detail"].startswith("The job is about to be cancelled")
    worker.post("finish", outcome="cancelled")
    for verb in ("pause", "resume"):
        problem = refused(api.client.post(f"/v1/jobs/{job}/{verb}"), 409, None, "wrong-state")
        assert problem["job_status"] == "cancelled"


def with_checkpoint(api: Api, epochs: int = 4, **spec: Any) -> tuple[dict[str, Any], str]:
    """Return a finished job and the id of its only checkpoint, of epoch 2."""
    api.dataset()
    job = api.submit(train={"epochs": epochs}, tags={"team": "vision"}, **spec)
    worker = api.start(job["id"])
    started = worker.post("start").json()
    answer = worker.post(
        "checkpoints",
        step=20,
        epoch=2.0,
        uri=f"{started['artifacts_uri']}/checkpoints/step-20",
        files=[{"name": "a", "size": 1, "sha256": "0" * 64}],
    )
    worker.post("finish", outcome="succeeded")
    return job, answer.json()["id"]


def test_clone_resumes_from_checkpoint_with_changed_settings(api: Api) -> None:
    job, checkpoint = with_checkpoint(api)
    path = f"/v1/jobs/{job['id']}/clone"
    changes = {
        "name": "longer",
        "train": {"epochs": 6, "optimizer": {"lr": 0.01}},
        "dar": {},
        # The checkpoint has weights to keep, although its job started without.
        "backbone": {"freeze_blocks": 1},
    }
    answer = api.client.post(path, json={"changes": changes})
    clone = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (202, f"/v1/jobs/{clone['id']}")
    assert clone["id"] != job["id"]
    assert (clone["name"], clone["status"], clone["tags"]) == ("longer", "queued", job["tags"])
    assert clone["start_checkpoint_id"] == checkpoint
    assert clone["dataset"] == job["dataset"]
    assert clone["resolved"]["train"]["epochs"] == 6
    assert clone["resolved"]["train"]["batch_size"] == job["resolved"]["train"]["batch_size"]
    assert clone["resolved"]["dar"]["share"] == 0.1
    resume = api.start(clone["id"]).post("start").json()["resume"]
    assert (resume["checkpoint_id"], resume["branch"]) == (checkpoint, True)

    from_scratch = api.client.post(path, json={"checkpoint": None}).json()
    assert from_scratch["start_checkpoint_id"] is None
    assert from_scratch["resolved"] == job["resolved"] | {"dataset": job["dataset"]["id"]}
    named = api.client.post(path, json={"checkpoint": checkpoint}).json()
    assert named["start_checkpoint_id"] == checkpoint


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({}, True),
        ({"train": {"epochs": 6}}, True),
        ({"evaluate": {"dataset": "types"}}, True),
        ({"evaluate": {"dataset": "types@1", "every_epochs": 1}}, True),
        ({"evaluate": {"dataset": "others"}}, False),
        ({"evaluate": {"dataset": None}}, False),
    ],
    ids=str,
)
def test_clone_is_evaluated_on_the_data_set_of_its_checkpoint(
    api: Api, changes: dict[str, Any], is_same: bool
) -> None:
    for name in ("types", "others"):
        api.dataset(name)
    job, checkpoint = with_checkpoint(api, evaluate={"dataset": "types"})
    answer = api.client.post(f"/v1/jobs/{job['id']}/clone", json={"changes": changes})
    if not is_same:
        refused(answer, 422, "evaluate.dataset")
        return
    assert answer.status_code == 202, answer.text
    clone = answer.json()
    assert clone["start_checkpoint_id"] == checkpoint
    assert clone["evaluate_dataset_version"] == job["evaluate_dataset_version"]


def test_clone_with_idempotency_key_is_replayed(api: Api) -> None:
    job, checkpoint = with_checkpoint(api)
    path, headers = f"/v1/jobs/{job['id']}/clone", {"Idempotency-Key": "once"}
    first = api.client.post(path, headers=headers)
    again = api.client.post(path, headers=headers)
    assert again.json() == first.json()
    assert again.headers["Idempotency-Replayed"] == "true"
    # Also after its start checkpoint was deleted.
    assert api.client.post(f"/v1/jobs/{first.json()['id']}/cancel").status_code == 202
    assert api.client.delete(f"/v1/checkpoints/{checkpoint}").is_success
    assert api.client.post(path, headers=headers).json() == first.json()
    other = {"changes": {"train": {"epochs": 9}}}
    refused(api.client.post(path, headers=headers, json=other), 422, None, "idempotency-key-reused")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"method": {"name": "byol"}}, "method.name"),
        ({"method": {"projection_dim": 64}}, "method.projection_dim"),
        ({"backbone": {"name": "resnet34"}}, "backbone.name"),
        ({"backbone": {"pretrained": "/other.pth"}}, "backbone.pretrained"),
        ({"train": {"epochs": 2}}, "train.epochs"),
        ({"train": {"epochs": "many"}}, "train.epochs"),
        ({"train": {"batch_size": 10}}, "train.batch_size"),
        ({"evaluate": {"holdout": {"fraction": 0.4}}}, "evaluate.holdout"),
        ({"nothing": 1}, "nothing"),
        ({"train": 3}, "train"),
        ({"dataset": "unknown"}, "dataset"),
    ],
    ids=str,
)
def test_clone_names_settings_it_cannot_change(
    api: Api, changes: dict[str, Any], field: str
) -> None:
    job, _ = with_checkpoint(api)
    answer = api.client.post(f"/v1/jobs/{job['id']}/clone", json={"changes": changes})
    refused(answer, 422, field)


def test_clone_of_a_trained_job_says_what_else_there_is(api: Api) -> None:
    job, _ = with_checkpoint(api, epochs=2)
    answer = api.client.post(f"/v1/jobs/{job['id']}/clone")
    problem = refused(answer, 422, "train.epochs")
    assert problem["errors"][0]["expected"] == "more than 2, or a start from scratch"


def test_clone_refuses_missing_job_or_checkpoint(api: Api) -> None:
    job, checkpoint = with_checkpoint(api)
    other = api.submit()["id"]
    path = f"/v1/jobs/{other}/clone"
    refused(api.client.post(path), 409, None, "no-checkpoint")
    for wrong in (checkpoint, "ckpt_nothing"):
        refused(api.client.post(path, json={"checkpoint": wrong}), 422, "checkpoint")
    refused(api.client.post("/v1/jobs/job_0/clone"), 404)
    theirs = api.token("submit", tenant="theirs")
    refused(api.client.post(f"/v1/jobs/{job['id']}/clone", headers=theirs), 404)


def test_name_of_no_data_set_of_the_tenant_is_answered_with_a_similar_one(api: Api) -> None:
    api.dataset()
    api.dataset("emojis-of-others", tenant="other")
    problem = refused(api.client.post("/v1/jobs", json={"dataset": "emojis"}), 422, "dataset")
    assert problem["errors"][0]["message"] == "is not registered; did you mean 'emoji'?"
