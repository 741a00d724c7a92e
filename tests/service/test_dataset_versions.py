"""Refreshing data sets, their versions, and the version that a job runs on."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from service.datasets import repository as datasets
from service.datasets.ingests import repository as ingests
from service.datasets.versions import repository as versions
from service.db.models import Checkpoint, Dataset, DatasetVersion, Job
from service.db.session import Database
from service.tasks.repository import preparations, previews
from tests.service.test_retention import save
from tests.support.api_under_test import FACTS, Api, TaskRun, refused


def request_refresh(api: Api, dataset: str) -> Any:
    return api.client.post(f"/v1/datasets/{dataset}/refresh")


def shown(api: Api, dataset: str) -> Any:
    return api.client.get(f"/v1/datasets/{dataset}").json()


def listed(api: Api, dataset: str) -> Any:
    return api.client.get(f"/v1/datasets/{dataset}/versions").json()["data"]


def run_ingest(
    api: Api, dataset: str, images: int | None, *, changed: bool = True, **report: Any
) -> str | None:
    """Run the ingest that is due, and return the URI of the index before.

    It fails if `images` is None, and reports that index again if nothing has `changed`.
    """
    worker = api.ingest(dataset)
    started = worker.post("start").json()
    error = {"type": "ingest-failed", "message": "the folder is gone"}
    body: dict[str, Any] = {"state": "failed", "error": error}
    if images is not None:
        new = f"{started['artifacts_uri']}/{worker.number}/index.safetensors"
        uri = new if changed else started["previous_index_uri"]
        facts = {**FACTS, "num_images": images}
        body = {"state": "succeeded", "facts": facts, "index_uri": uri, "report": report}
    for _ in range(2):
        assert worker.post("finish", **body).status_code == 204
    previous: str | None = started["previous_index_uri"]
    return previous


def refresh(api: Api, dataset: str, images: int | None = 200) -> str | None:
    assert request_refresh(api, dataset).status_code == 202
    return run_ingest(api, dataset, images)


def dataset_of(api: Api, job: str, action: str = "start") -> Any:
    worker = api.start(job)
    return worker.post(action).json()["dataset"]


def unneeded(api: Api) -> list[int]:
    """Return the numbers of the versions whose files can be removed."""
    with api.database.read() as session:
        return [row.number for row in versions.unneeded(session, 10, ())]


def test_refresh_makes_a_version_while_the_data_set_stays_usable(api: Api) -> None:
    dataset = api.dataset(state="pending")
    assert run_ingest(api, dataset, 100) is None
    before = api.submit()
    for _ in range(2):  # the second changes nothing
        view = request_refresh(api, dataset).json()
        assert (view["state"], view["version"], view["refresh"]["state"]) == ("ready", 1, "pending")
    worker = api.ingest(dataset)
    assert shown(api, dataset)["refresh"]["state"] == "ingesting"
    assert request_refresh(api, dataset).status_code == 202
    during = api.submit()
    started = worker.post("start").json()
    changes = {"added": 100, "removed": 0, "changed": 1, "unchanged": 99, "relabeled": 0}
    body = {
        "state": "succeeded",
        "facts": {**FACTS, "num_images": 200},
        "index_uri": f"{started['artifacts_uri']}/new/index.safetensors",
        "report": {"num_images": 200, "changes": changes},
    }
    assert worker.post("finish", **body).status_code == 204
    view = shown(api, dataset)
    assert (view["state"], view["version"], view["refresh"]) == ("ready", 2, None)
    assert view["facts"]["num_images"] == 200
    assert [
        (v["number"], v["facts"]["num_images"], v["changes"]) for v in listed(api, dataset)
    ] == [(2, 200, changes), (1, 100, None)]
    after = api.submit()
    assert [job["dataset_version"] for job in (before, during, after)] == [1, 1, 2]
    for job, images, index in ((during, 100, "1/index"), (after, 200, "new/index")):
        used = dataset_of(api, job["id"])
        assert used["facts"]["num_images"] == images
        assert index in used["index_uri"]
    assert started["previous_index_uri"].endswith("1/index.safetensors")


def test_data_set_deleted_during_its_refresh_gives_its_turn_back(api: Api) -> None:
    dataset = api.dataset(state="pending")
    run_ingest(api, dataset, 100)
    request_refresh(api, dataset)
    api.ingest(dataset)
    assert api.client.delete(f"/v1/datasets/{dataset}").status_code == 204
    waiting = api.dataset("another", state="pending")
    with api.database.write() as session:
        assert ingests.awaiting_ingest(session, 1) == [], "its run is not stopped yet"
        datasets.mark_removed(session, dataset)
        assert ingests.awaiting_ingest(session, 1) == [waiting]


def test_failed_refresh_keeps_the_version_and_shows_the_error(api: Api) -> None:
    dataset = api.dataset()
    index = refresh(api, dataset, None)
    view = shown(api, dataset)
    assert (view["state"], view["version"], view["error"]) == ("ready", 1, None)
    assert view["refresh"]["state"] == "failed"
    assert view["refresh"]["error"]["message"] == "the folder is gone"
    assert dataset_of(api, api.submit()["id"])["index_uri"] == index
    refresh(api, dataset)
    assert (shown(api, dataset)["version"], shown(api, dataset)["refresh"]) == (2, None)


def test_refresh_that_finds_no_change_makes_no_version(api: Api) -> None:
    dataset = api.dataset()
    request_refresh(api, dataset)
    run_ingest(api, dataset, 100, changed=False)
    assert (shown(api, dataset)["version"], shown(api, dataset)["refresh"]) == (1, None)
    assert len(listed(api, dataset)) == 1


def test_refresh_repeats_a_first_ingest_that_failed(api: Api) -> None:
    dataset = api.dataset(state="failed")
    view = request_refresh(api, dataset).json()
    assert (view["state"], view["error"], view["refresh"]) == ("pending", None, None)
    run_ingest(api, dataset, 7)
    view = shown(api, dataset)
    assert (view["state"], view["version"], view["facts"]["num_images"]) == ("ready", 1, 7)


def test_refresh_counts_for_the_token_that_asks_for_it(api: Api) -> None:
    folder = api.settings.home.parent / "images" / "emoji"
    owner, other = (api.token("submit", max_pending_datasets=1) for _ in range(2))
    first, second = api.dataset(), api.dataset(name="broken", state="failed")
    body = {"name": "own", "uri": str(folder)}
    own = api.client.post("/v1/datasets", json=body, headers=owner).json()["id"]
    run_ingest(api, own, 5)

    def ask(dataset: str, headers: dict[str, str]) -> Any:
        return api.client.post(f"/v1/datasets/{dataset}/refresh", headers=headers)

    assert ask(own, other).status_code == 202
    for dataset in (first, second):  # a refresh, and a first ingest that is repeated
        refused(ask(dataset, other), 429, None, "quota-exceeded")
        assert shown(api, dataset)["refresh"] is None
    assert ask(own, owner).status_code == 202, "it was asked for already"
    assert ask(second, owner).status_code == 202, "the refresh of its data set is another token's"
    refused(ask(first, owner), 429, None, "quota-exceeded")
    run_ingest(api, own, 6)
    assert ask(first, other).status_code == 202


def test_spec_names_an_older_version(api: Api) -> None:
    dataset = api.dataset(state="pending")
    run_ingest(api, dataset, 100)
    api.submit()
    refresh(api, dataset)
    for name, version in (("emoji@1", 1), (f"{dataset}@1", 1), ("emoji@2", 2), (dataset, 2)):
        assert api.submit(dataset=name)["dataset_version"] == version
    for name in ("emoji@3", "emoji@0", "emoji@", "other@1", "emoji@1@1"):
        refused(api.client.post("/v1/jobs", json={"dataset": name}), 422, "dataset")
    (api.settings.home.parent / "images" / "emoji").rmdir()
    gone = refused(api.client.post("/v1/jobs", json={"dataset": "emoji@1"}), 422, "dataset")
    assert "was ingested, but its folder" in gone["detail"]
    body = {"name": "emoji@4", "uri": str(api.settings.home)}
    refused(api.client.post("/v1/datasets", json=body), 422, "name")


def test_clone_from_a_checkpoint_keeps_the_version(api: Api) -> None:
    dataset = api.dataset(state="pending")
    run_ingest(api, dataset, 100)
    job = api.submit()["id"]
    worker = api.start(job)
    worker.post("start")
    save(worker, 1)
    refresh(api, dataset)

    def clone(**request: Any) -> int:
        answer = api.client.post(f"/v1/jobs/{job}/clone", json=request)
        assert answer.status_code == 202, answer.text
        version: int = answer.json()["dataset_version"]
        return version

    assert clone() == 1
    assert clone(checkpoint=None) == 2
    assert clone(changes={"dataset": "emoji@1"}, checkpoint=None) == 1


def test_versions_that_a_job_needs_are_kept(api: Api, database: Database) -> None:
    dataset = api.dataset(state="pending")
    jobs: list[str] = []
    for number in range(1, 6):
        run_ingest(api, dataset, 100) if number == 1 else refresh(api, dataset)
        jobs.append(api.submit()["id"])
    _, cancelled, cloneable, deleted, _ = jobs
    for job in (cancelled, deleted):
        assert api.client.post(f"/v1/jobs/{job}/cancel").status_code == 202
    worker = api.start(cloneable)
    worker.post("start")
    saved = save(worker, 1)
    worker.post("finish", outcome="succeeded")
    assert api.client.delete(f"/v1/jobs/{deleted}").status_code == 204

    assert unneeded(api) == [2, 4], "the newest one is kept, too"
    with database.write() as session:
        assert not versions.give_up(session, dataset, 1)
        assert versions.give_up(session, dataset, 2)
        session.get_one(Checkpoint, saved).state = "deleted"
    assert unneeded(api) == [2, 4], "a checkpoint of its attempt may still be found"
    with database.write() as session:
        session.get_one(Job, cloneable).finished_at = datetime(2026, 1, 1, tzinfo=UTC)
    refused(api.client.post("/v1/jobs", json={"dataset": "emoji@2"}), 422, "dataset")
    assert unneeded(api) == [2, 3, 4], "an interrupted removal is repeated"
    with database.write() as session:
        versions.mark_removed(session, dataset, 2)
    assert unneeded(api) == [3, 4]
    assert [each["removed"] for each in listed(api, dataset)] == [False, False, False, True, False]


def test_version_that_is_being_prepared_is_kept(api: Api) -> None:
    dataset = api.dataset(state="pending")
    run_ingest(api, dataset, 100)
    answer = api.client.post(f"/v1/datasets/{dataset}/preparations", json={"spec": {}})
    refresh(api, dataset)

    assert unneeded(api) == []
    run = TaskRun(api, answer.json()["id"], preparations)
    started = run.post("start").json()
    [_, first] = listed(api, dataset)
    assert first["number"] == 1
    assert started["dataset"]["index_uri"].endswith("/1/index.safetensors")
    assert unneeded(api) == []
    assert run.post("finish", state="failed", error={"message": "no room"}).status_code == 204
    assert unneeded(api) == [1]


def test_preview_is_of_one_version_which_is_kept_until_it_is_drawn(api: Api) -> None:
    dataset = api.dataset()

    def requested(**body: Any) -> Any:
        return api.client.post(f"/v1/datasets/{dataset}/previews", json={"spec": {}} | body)

    def started(preview: str) -> tuple[int, str]:
        run = TaskRun(api, preview, previews)
        start = run.post("start").json()
        error = {"type": "ValueError", "message": "no such image"}
        assert run.post("finish", state="failed", error=error).is_success
        return start["dataset_version"], start["dataset"]["index_uri"]

    before = requested().json()
    first = refresh(api, dataset)
    named, newest = requested(version=1).json(), requested().json()
    shown = [each["dataset_version"] for each in (before, named, newest)]
    assert shown == [1, 1, 2]
    refused(requested(version=3), 422, "dataset")
    refused(requested(version=0), 422, "version")
    assert unneeded(api) == []
    assert started(before["id"]) == started(named["id"]) == (1, first)
    assert unneeded(api) == [1]
    assert [started(each)[0] for each in (newest["id"], requested().json()["id"])] == [2, 2]
    listed = api.client.get(f"/v1/datasets/{dataset}/previews").json()["data"]
    assert [each["dataset_version"] for each in listed] == [2, 2, 1, 1]


def test_evaluation_data_set_keeps_its_version(api: Api) -> None:
    api.dataset()
    other = api.dataset(name="other")
    job = api.submit(evaluate={"dataset": "other"})
    assert job["evaluate_dataset_version"] == 1
    first = refresh(api, other)
    assert unneeded(api) == []
    worker = api.start(job["id"])
    assert worker.post("start").json()["evaluate_dataset"]["index_uri"] == first


def test_contact_sheet_is_downloaded_in_ranges(api: Api, tmp_path: Path) -> None:
    dataset = api.dataset(state="pending")
    endpoint = f"/v1/datasets/{dataset}/contact-sheet"
    refused(api.client.get(endpoint), 404, None, "no-contact-sheet")
    run_ingest(api, dataset, 100)
    refused(api.client.get(endpoint), 404, None, "no-contact-sheet")
    with api.database.read() as session:
        uri = session.get_one(Dataset, dataset).index_uri
    assert uri is not None
    file = Path(uri.removeprefix("file://")).parent / "contact-sheet.jpg"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"0123456789")
    answer = api.client.get(endpoint)
    assert (answer.content, answer.headers["content-type"]) == (b"0123456789", "image/jpeg")
    part = api.client.get(endpoint, headers={"Range": "bytes=2-4"})
    assert (part.status_code, part.content) == (206, b"234")


@pytest.mark.dialect
def test_versions_are_listed_in_pages(api: Api) -> None:
    dataset, endpoint = api.dataset(), "/v1/datasets/{}/versions"
    with api.database.write() as session:
        row = session.get_one(Dataset, dataset)
        session.add_all(
            DatasetVersion(
                dataset_id=dataset, number=number, facts=row.facts, created_at=row.created_at
            )
            for number in range(2, 206)
        )
    found: list[int] = []
    after: dict[str, str] = {}
    while True:
        page = api.client.get(endpoint.format(dataset), params={"limit": 100, **after}).json()
        found += [each["number"] for each in page["data"]]
        if not page["has_more"]:
            break
        after = {"after": page["next"]}
    assert found == [*range(205, 0, -1)]
    assert page["next"] is None
    assert len(listed(api, dataset)) == 50
    last = api.client.get(endpoint.format(dataset), params={"after": "1"}).json()
    assert (last["data"], last["has_more"]) == ([], False)
    for bad in ({"after": "x"}, {"after": "0"}, {"after": str(2**31)}, {"limit": "0"}):
        refused(api.client.get(endpoint.format(dataset), params=bad), 422, next(iter(bad)))
