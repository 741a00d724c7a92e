"""Specs stored by an older and by a newer DASL: how jobs with them are shown, cloned and run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from dasl_core.spec import ResolvedJobSpec, versions
from dasl_core.spec.resolve.train import precision_with
from service.db.models import Checkpoint, Job
from service.scheduling import repository as scheduling
from service.scheduling.nodes import Node
from service.scheduling.packing import Worker as Resources
from tests.support.api_under_test import Api, Worker, decide, refused, save_nodes
from tests.support.older_specs import rename_passes, written_before


def store_old(job: Job) -> None:
    """Store the specs of a job as the version did that `rename_passes` upgrades from."""
    for name in ("spec", "resolved"):
        setattr(job, name, written_before(getattr(job, name)))
    job.spec_version = 1


def store_newer(job: Job) -> None:
    """Mark the specs of a job as a newer version's."""
    job.spec_version = versions.current() + 1


@pytest.fixture
def scheduling_without_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling.resources, "_resources_by_job", {})


def change(api: Api, job_id: str, store: Callable[[Job], None]) -> None:
    with api.database.write() as session:
        store(session.get_one(Job, job_id))


def submit(api: Api) -> str:
    spec = {"train": {"epochs": 4}, "resources": {"cpus_per_worker": 2}}
    job_id: str = api.submit(**spec)["id"]
    return job_id


def save(worker: Worker, step: int) -> str:
    uri = f"{worker.uri}/checkpoints/step-{step}"
    Path(uri.removeprefix("file://")).mkdir(parents=True)
    files = [{"name": "weights", "size": 1, "sha256": "0" * 64}]
    answer = worker.post("checkpoints", step=step, epoch=2.0, uri=uri, files=files)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


@pytest.fixture
def older(api: Api, monkeypatch: pytest.MonkeyPatch) -> str:
    """A job that an older DASL stored."""
    monkeypatch.setattr(versions, "UPGRADERS", [rename_passes])
    api.dataset()
    job_id = submit(api)
    change(api, job_id, store_old)
    return job_id


@pytest.fixture
def newer(api: Api, scheduling_without_cache: None) -> str:
    """A job that a newer DASL stored."""
    api.dataset()
    job_id = submit(api)
    change(api, job_id, store_newer)
    return job_id


def test_new_job_has_the_current_version(api: Api) -> None:
    api.dataset()
    job_id = submit(api)
    with api.database.read() as session:
        assert session.get_one(Job, job_id).spec_version == versions.current()


def test_older_spec_is_shown_as_it_was_stored(api: Api, older: str) -> None:
    for job in (
        api.client.get(f"/v1/jobs/{older}").json(),
        api.client.get("/v1/jobs").json()["data"][0],
    ):
        assert job["spec"]["train"] == {"passes": 4}
        assert job["resolved"]["train"]["passes"] == 4
        assert "epochs" not in job["resolved"]["train"]


def test_older_spec_is_read_as_if_written_today(api: Api, older: str) -> None:
    with api.database.read() as session:
        job = session.get_one(Job, older)
        assert job.resolved_spec.train.epochs == 4
        assert job.submitted_spec["train"] == {"epochs": 4}


def test_worker_gets_older_spec_upgraded(api: Api, older: str) -> None:
    start = api.start(older).post("start").json()
    assert ResolvedJobSpec.model_validate(start["spec"]).train.epochs == 4


def test_clone_of_older_spec_is_stored_in_the_current_version(api: Api, older: str) -> None:
    worker = api.run(older)
    save(worker, 20)
    changes = {"train": {"epochs": 6}}
    answer = api.client.post(f"/v1/jobs/{older}/clone", json={"changes": changes})
    assert answer.status_code == 202, answer.text
    assert answer.json()["spec"]["train"] == {"epochs": 6, "precision": "fp32"}
    with api.database.read() as session:
        assert session.get_one(Job, answer.json()["id"]).spec_version == 2


def test_newer_spec_is_shown_and_its_clone_refused(api: Api, newer: str) -> None:
    assert api.client.get(f"/v1/jobs/{newer}").json()["resolved"]["train"]["epochs"] == 4
    answer = api.client.post(f"/v1/jobs/{newer}/clone", json={"checkpoint": None})
    problem = refused(answer, 409, type="spec-unreadable")
    why = (
        f"the spec is of version {versions.current() + 1}, and this DASL reads versions up to "
        f"{versions.current()}; upgrade the server, or for a checkpoint the DASL that reads it"
    )
    assert problem["detail"] == f"This server cannot read the job's spec: {why}"
    [waiting] = api.client.get("/v1/cluster").json()["queue"]
    assert waiting["reason"] == f"It cannot start: {why}"


def test_attempt_of_newer_spec_counts_as_what_ray_reports(
    api: Api, scheduling_without_cache: None
) -> None:
    api.dataset()
    job_id = submit(api)
    api.start(job_id).post("start")
    change(api, job_id, store_newer)
    scheduling.resources._resources_by_job.clear()
    other = submit(api)
    for used, waits_for in ((0, None), (2, "room")):
        save_nodes(api, [Node("n1", "127.0.0.1", 3, 0, used, 0)])
        with api.database.read() as session:
            [attempt] = scheduling.live_attempts(session)
        assert (attempt.job_id, attempt.demand.cpus) == (job_id, 0)
        decide(api)
        [queued] = api.client.get("/v1/cluster").json()["queue"]
        assert (queued["id"], queued["waits_for"]) == (other, waits_for)


def test_newer_spec_keeps_all_its_checkpoints(api: Api) -> None:
    api.dataset()
    job_id = api.submit(checkpoints={"keep_last": 1, "keep_best": 0})["id"]
    worker = api.run(job_id)
    save(worker, 1)
    change(api, job_id, store_newer)
    save(worker, 2)
    with api.database.read() as session:
        assert set(session.scalars(select(Checkpoint.state))) == {"registered"}


def start_from_a_checkpoint_of_64_pixels(job: Job) -> None:
    job.resolved = {**job.resolved, "backbone": {**job.resolved["backbone"], "image_size": 64}}


def test_clone_has_the_image_size_of_its_checkpoint(api: Api) -> None:
    api.dataset()
    job_id = api.submit()["id"]
    worker = api.run(job_id)
    save(worker, 1)
    change(api, job_id, start_from_a_checkpoint_of_64_pixels)
    answer = api.client.post(f"/v1/jobs/{job_id}/clone", json={"changes": {"dar": {}}})
    assert answer.status_code == 202, answer.text
    assert answer.json()["resolved"]["backbone"]["image_size"] == 64


@pytest.mark.parametrize(("had", "gets", "precision"), [(1, 0, "bf16"), (0, 1, "fp32")])
def test_clone_keeps_the_precision_of_its_checkpoint(
    api: Api, had: int, gets: int, precision: str
) -> None:
    api.dataset()
    job_id = api.submit()["id"]
    worker = api.run(job_id, numbers=Resources(4, had))
    save(worker, 1)

    def precision_of_clone(**request: Any) -> str:
        clone = api.client.post(f"/v1/jobs/{job_id}/clone", json=request).json()["id"]
        started = api.start(clone, numbers=Resources(4, gets)).post("start").json()
        return str(started["spec"]["train"]["precision"])

    assert precision_of_clone(changes={}) == precision
    new = precision_with(gets > 0)
    assert precision_of_clone(changes={"train": {"precision": "auto"}}) == new
    assert precision_of_clone(checkpoint=None) == new
